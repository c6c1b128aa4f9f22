"""Programs from outside: values against Clarabel, gradients against stable differences, smoothing against Newton.

What the engine was once seen to get wrong while it said OPTIMAL stands here, through the public interface alone.
"""

from __future__ import annotations

from conelayers import Derivative


def test_codes_of_derivatives() -> None:
    assert {d.name: int(d) for d in Derivative} == {
        "UNASKED": 0,
        "FACE": 1,
        "FACTORED": 2,
        "PATH": 3,
        "KINK": 4,
        "LOOSE": 5,
        "UNVERIFIED": 6,
    }

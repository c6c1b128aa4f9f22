"""Derivatives that break down are taken a little further up the central path, and their neighbours' are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drolayers.conic.interior.system import Data
from drolayers.conic.solvers.interior import Batched
from tests.conic.families import family

LEVEL, SPOILT = 1e-6, 2


@pytest.mark.parametrize("compiled", [True, False])
def test_an_item_on_the_boundary_is_moved_inward(compiled: bool) -> None:
    """A slack on the boundary of its cone has no barrier to take derivatives of, until it is moved inward."""
    socp = family("socp")
    backend = Batched() if compiled else _Plain()
    values = socp.program.values(socp.theta(5))
    data = Data.of(backend.plan(socp.program, torch.device("cpu")), values)
    anchor = backend._run(socp.program, data, LEVEL).anchor
    cones = socp.program.cones
    first, size = cones.zero + cones.nonneg, cones.soc[0]
    s = anchor.s.clone()
    s[first, SPOILT] = s[first + 1 : first + size, SPOILT].norm() * (1.0 - 1e-9)
    spoilt = replace(anchor, s=s)
    dx = torch.tensor([[1.0]], dtype=torch.float64).expand(socp.program.columns, 5).contiguous()

    plain = backend._pull(socp.program, data, LEVEL, spoilt, dx)
    assert not all(bool(part[:, SPOILT].isfinite().all()) for part in plain)

    mended = backend._mended(socp.program, data, LEVEL, spoilt, dx)
    beside = [k for k in range(5) if k != SPOILT]
    higher = backend._pull(socp.program, data, 10.0 * LEVEL, anchor, dx)
    for part, untouched, expected in zip(mended, plain, higher, strict=True):
        assert torch.equal(part[:, beside], untouched[:, beside])
        torch.testing.assert_close(part[:, SPOILT], expected[:, SPOILT], rtol=1e-5, atol=1e-7)


class _Plain(Batched):
    """The same without compiled code."""

    compiled = False  # type: ignore[assignment]

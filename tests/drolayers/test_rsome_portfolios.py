"""Values that RSOME's documentation prints, from the problems of the benchmark."""

from __future__ import annotations

import pytest

from research.problems.rsome import EXAMPLES


@pytest.mark.parametrize(
    ("name", "printed"), [("robust satisficing", 22.92106819493208), ("mean-CVaR portfolio", -1.1362073575769465)]
)
def test_value_is_the_one_on_its_page(name: str, printed: float) -> None:
    problem, theta, nominal = EXAMPLES[name].ours()
    assert float(problem.solve(theta, nominal, on_failure="raise").objective) == pytest.approx(printed, rel=1e-7)

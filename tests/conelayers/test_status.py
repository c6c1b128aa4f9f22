"""Statuses of the engine: their codes, which of them can be used, and the errors that name them."""

from __future__ import annotations

import pytest
import torch

from conelayers import Status
from conelayers.status import solve_error, usable


def test_codes_of_usable_solutions_come_first() -> None:
    assert [s.name for s in Status] == ["OPTIMAL", "INACCURATE", "GAP", "INFEASIBLE", "UNBOUNDED", "FAILED"]
    assert [int(s) for s in Status] == list(range(6))
    assert usable(torch.arange(6)).tolist() == [s.ok for s in Status] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("status", Status)
def test_advice_speaks_of_programs_and_not_of_sets(status: Status) -> None:
    assert status.advice.endswith(".")
    assert not any(word in status.advice for word in ("ambiguity", "worst case", "distribution", "dro."))


def test_an_error_lists_the_items_that_were_not_solved() -> None:
    error = solve_error([Status.OPTIMAL, Status.UNBOUNDED, Status.GAP])
    assert error.items == {1: Status.UNBOUNDED}
    assert "1 of 3 items" in str(error)
    assert Status.UNBOUNDED.advice in str(error)

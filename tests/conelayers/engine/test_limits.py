"""Programs beyond the memory of a machine, empty boxes of integers, and advice that fits the gradient rule."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import pytest

from conelayers import Derivative, compile_program, make_engine
from conelayers.errors import ModelError
from conelayers.interior import elimination, torch_algebra
from tests.helpers.programs import lp


def raising(error: Exception) -> Any:
    """Make a function that raises."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [MemoryError("74.5 GiB"), RuntimeError("SUPERLU_MALLOC fails for buf in intMalloc()")]
)
@pytest.mark.parametrize(
    ("engine", "module", "name"), [("batched", elimination.spla, "splu"), ("torch", torch_algebra, "system_pattern")]
)
def test_a_factorisation_without_memory_tells_the_size(
    error: Exception, engine: str, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lp()
    monkeypatch.setattr(module, name, raising(error))
    size = f"{made.program.rows} rows, {made.program.columns} columns and {made.program.nonzeros} non-zeros: use fewer"
    with pytest.raises(ModelError, match=size):
        make_engine(engine).solve(made.program, made.theta(2))


def test_other_errors_of_a_factorisation_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lp()
    monkeypatch.setattr(elimination.spla, "splu", raising(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        make_engine("batched").solve(made.program, made.theta(2))


def test_compiling_without_memory_tells_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x, c = cp.Variable(3), cp.Parameter(2)
    monkeypatch.setattr(cp.Problem, "get_problem_data", raising(MemoryError("74.5 GiB")))
    with pytest.raises(ModelError, match=r"3 variables and 2 parameters .* fewer atoms"):
        compile_program(cp.Problem(cp.Minimize(cp.sum_squares(x)), [x[:2] >= c]), [c])


def test_advice_names_the_rule_that_is_not_in_use() -> None:
    exact, smoothed = (Derivative.UNVERIFIED.advise(rule) for rule in ("exact", "smoothed"))
    assert exact.endswith('rescale the data, or use gradient="smoothed".')
    assert smoothed.endswith('rescale the data, or use gradient="exact".')
    assert Derivative.KINK.advise("exact") == Derivative.KINK.advice

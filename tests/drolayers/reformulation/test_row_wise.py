"""Worst cases row by row are written together: equal to a constraint for every row, in as many expressions as one."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.cost.parse import parse_entries

ATOMS = torch.as_tensor(np.random.default_rng(0).uniform(0.0, 3.0, size=(1, 4, 3)))
WEIGHTS = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
METRIC = np.array([[2.0, 0.3, 0.0], [0.0, 1.0, 0.4], [0.0, 0.0, 0.5]])
MU = [1.0, 1.4, 0.7]
SETS: dict[str, tuple[Callable[[dro.Uncertain], AmbiguitySet], list[float], bool]] = {
    "square": (lambda y: dro.MomentSet(y, [m.SquaredNorm()]), [*MU, 0.5], False),
    "two": (lambda y: dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()]), [*MU, 0.9, *MU, 0.6], False),
    "vectors": (lambda y: dro.MomentSet(y, [m.Mean(), m.Variance()]), [*MU, *MU, 0.3, 0.2, 0.4], False),
    "sum": (lambda y: dro.MomentSet(y, [m.SquaredNorm() + m.Norm(2)]), [*MU, *MU, 0.8], False),
    "maximum": (lambda y: dro.MomentSet(y, [m.maximum(m.SquaredNorm(), m.Norm(2))]), [*MU, *MU, 0.8], False),
    "linear": (lambda y: dro.MomentSet(y, [m.Linear(mu=[1.0, 1.0, -1.0]), m.Norm(2)]), [1.9, *MU, 0.8], False),
    "ball": (lambda y: dro.Wasserstein(y, 4), [0.2], True),
    "ball 2": (lambda y: dro.Wasserstein(y, 4, norm=2, order=2), [0.2], True),
    "ball inf": (lambda y: dro.Wasserstein(y, 4, norm=2, order=np.inf), [0.2], True),
    "metric": (lambda y: dro.Wasserstein(y, 4, 2, 1, METRIC), [0.2], True),
    "learnt metric": (lambda y: dro.Wasserstein(y, 4, 1, 2, dro.Learn(3, 3)), [0.2, *METRIC.ravel()], True),
    "fixed": (lambda y: dro.Wasserstein(y, 4, fixed=[1]), [0.2], True),
    "chi2": (lambda y: dro.Divergence(y, 4, "chi2"), [0.3], True),
    "hellinger": (lambda y: dro.Divergence(y, 4, "hellinger"), [0.3], True),
    "kl": (lambda y: dro.Divergence(y, 4, "kl"), [0.3], True),
    "tv": (lambda y: dro.Divergence(y, 4, "tv"), [0.3], True),
    "empirical": (lambda y: dro.Empirical(y, 4), [], True),
}


CASES = [(name, False, False) for name in SETS]
CASES += [
    (name, False, True)
    for name in ("square", "two", "vectors", "maximum", "ball", "ball 2", "ball inf", "learnt metric", "fixed")
]
CASES += [("ball inf", True, False)]
CASES += [(name, True, True) for name in ("square", "ball 2", "ball inf", "fixed", "tv")]


@pytest.mark.parametrize(("name", "everywhere", "boxed"), CASES)
def test_rows_together_are_rows_apart(name: str, everywhere: bool, boxed: bool) -> None:
    make, numbers, needs = SETS[name]
    support = dro.support.Box(0.0, 3.0) if boxed else dro.support.Reals()
    y, x, t = dro.Uncertain(3, support=support), cp.Variable(3), cp.Variable(4)
    price = cp.Parameter(3, nonneg=True, name="price")
    # The last row sees no y, the second no maximum; one is multiplied by known data.
    rows = [cp.pos(y[0] - x[0]), y @ x + 1.0, cp.maximum(price @ y, x[2] - y[1]), x[0] + x[1]]
    rules = [dro.always(cp.hstack(rows) <= t)] if everywhere else [dro.expected(cp.hstack(rows)) <= t]
    apart = [dro.always(r <= t[k]) if everywhere else dro.expected(r) <= t[k] for k, r in enumerate(rows)]
    ambiguity = make(y)
    theta = torch.tensor([numbers], dtype=torch.float64)
    nominal = (ATOMS, WEIGHTS) if needs else None
    known = {"price": torch.tensor([0.4, 1.1, 0.3], dtype=torch.float64)}
    cost = cp.sum_squares(x - 0.5) + t @ np.array([1.0, 0.6, 0.8, 0.3])
    together = dro.DecisionProblem(cost, rules, ambiguity)
    assert together._writer._alike(together.rules[0].parts)
    values = [
        problem.solve(theta, nominal, on_failure="raise", known=known).objective
        for problem in (together, dro.DecisionProblem(cost, apart, ambiguity))
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=1e-7)


def test_one_parse_and_one_formulation_for_all_rows() -> None:
    """The number of CVXPY's constraints, which is what building time goes with, does not grow with the rows."""
    limits = []
    for size in (3, 30):
        y, x = dro.Uncertain(size), cp.Variable(size)
        entries = parse_entries(cp.pos(y - x), y)
        assert len(entries) == size
        assert all(entry.variables is entries[0].variables for entry in entries)
        assert all(entry.products is entries[0].products for entry in entries)
        rule = dro.expected(cp.pos(y - x)) <= 0.3
        problem = dro.DecisionProblem(cp.sum(x), [rule], dro.MomentSet(y, [m.SquaredNorm()]))
        assert len(problem.rules[0].parts) == size
        limits.append(len(problem._decisions.limits))
    assert limits[0] == limits[1]
    # Matrices column by column; what cannot share a stack is taken apart by itself.
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable((2, 2))
    entries = parse_entries(cp.pos(cp.vstack([y, 2 * y]) - x), y)
    slopes = [entry.pieces.evaluate(np.zeros(4))[0].max(0).tolist() for entry in entries]
    assert slopes == [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
    assert len(parse_entries(cp.multiply(cp.square(x[0]), y), y)) == 2

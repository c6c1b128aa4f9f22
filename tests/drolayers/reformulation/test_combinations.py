"""Every kind of set for the cost beside every kind of set for a constraint: both worst distributions certify."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from tests.drolayers.ambiguity.sets import SETS, SetCase, stacked
from tests.drolayers.reformulation.certificates import assert_certifies
from tests.drolayers.reformulation.problems import SUPPORTS, Case, CostCase, Values

EMPIRICAL = SetCase("empirical", lambda y: dro.Empirical(y, 3), {"radius": np.array(0.0)}, divergence="tv")
"""The ball of radius zero, in the words of the certificates; it has no parameters."""
BY_NAME = {case.name: case for case in SETS}
KINDS: dict[str, SetCase] = {
    "moment": BY_NAME["first and second"],
    "ball": BY_NAME["ball 2, order 1"],
    "divergence": BY_NAME["chi2"],
    "empirical": EMPIRICAL,
    "mixture": BY_NAME["mixture"],
    "outcomes": BY_NAME["box of outcomes"],
    "mean-covariance": BY_NAME["mean and covariance"],
}
BOX = next(support for support in SUPPORTS if support.name == "box")
LIMIT = 50.0
BATCH = 2


def shortage(x: Values, y: np.ndarray) -> np.ndarray:
    return np.maximum(y - x["x"], 0).sum(1)


def newsvendor(x: Values, y: np.ndarray) -> np.ndarray:
    return 0.3 * x["x"].sum() + np.maximum(2 * (y - x["x"]), x["x"] - y).sum(1)


COST = CostCase("newsvendor", lambda v, y: (cp.Constant(0.0), []), newsvendor)
SHORTAGE = CostCase("shortage", lambda v, y: (cp.Constant(0.0), []), shortage)


@pytest.mark.parametrize(("mine", "theirs"), product(KINDS, KINDS))
def test_distributions_of_cost_and_constraint_certify(mine: str, theirs: str) -> None:
    y, x = dro.Uncertain(2, support=BOX.support), cp.Variable(2, nonneg=True, name="x")
    cost = 0.3 * cp.sum(x) + cp.sum(cp.maximum(2 * (y - x), x - y))
    short = cp.sum(cp.pos(y - x))
    first, second = KINDS[mine], KINDS[theirs]
    own = second.make(y).named("own")
    mean, every = dro.expected(short, ambiguity=own) <= LIMIT, dro.always(short <= LIMIT, ambiguity=own)
    problem = dro.DecisionProblem(cost, [mean, every], first.make(y))
    parameters = [{} if case is EMPIRICAL else case.base for case in (first, second)]
    by_name = {**parameters[0], **{f"own.{name}": value for name, value in parameters[1].items()}}
    theta = problem.pack(stacked([by_name] * BATCH)) if by_name else torch.zeros(BATCH, 0, dtype=torch.float64)
    nominal = BY_NAME["chi2"].nominal(BATCH) if problem.sets.needs_nominal else None
    decision = {x: torch.tensor([[0.4, 1.3], [1.5, 0.8]], dtype=torch.float64)}

    for case, integrand, of in ((first, COST, None), (second, SHORTAGE, mean)):
        if of is None:
            value = problem.worst_case_cost(decision, theta, nominal)
        else:
            value = problem.worst_case(decision, theta, nominal, of=of)[:, 0] + LIMIT
        found = problem.worst_case_distribution(decision, theta, nominal, of=of)
        assert value.isfinite().all()
        written = Case(case, BOX, integrand, problem, x)
        for item in range(BATCH):
            at = {"x": decision[x][item].numpy()}
            assert_certifies(written, at, case.base, nominal if case.around else None, item, value, found)

    value = problem.worst_case(decision, theta, nominal, of=every)[:, 0] + LIMIT
    atoms, probabilities = problem.worst_case_distribution(decision, theta, nominal, of=every)
    for item in range(BATCH):
        points, mass = atoms[item].numpy(), probabilities[item].numpy()
        at = {"x": decision[x][item].numpy()}
        assert mass.sum() == pytest.approx(1.0, abs=1e-6)
        assert (mass * BOX.excess(points)).max() < 1e-6
        assert float(mass @ shortage(at, points)) == pytest.approx(float(value[item]), abs=1e-5)
        # The mass lies at outcomes that attain the largest shortage.
        assert (mass * (float(value[item]) - shortage(at, points))).max() < 1e-5

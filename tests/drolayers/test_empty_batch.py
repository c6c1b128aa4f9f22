"""A batch of zero items: every public call returns empty tensors of the right shape, or one clear sentence."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet

ATOMS = 3
SETS: dict[str, Callable[[dro.Uncertain], AmbiguitySet]] = {
    "norm": lambda y: dro.MomentSet(y, [m.Norm(1)]),
    "moments": lambda y: dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()]),
    "ball": lambda y: dro.Wasserstein(y, ATOMS),
    "divergence": lambda y: dro.Divergence(y, ATOMS),
    "empirical": lambda y: dro.Empirical(y, ATOMS),
    "mixture": lambda y: dro.Mixture([dro.MomentSet(y, [m.SquaredNorm()]), dro.MomentSet(y, [m.Norm(1)])]),
    "outcomes": lambda y: dro.Outcomes(y),
    "mean-covariance": lambda y: dro.MeanCovariance(y),
}
NO_ATOMS = torch.zeros(0, ATOMS, 2), torch.zeros(0, ATOMS)
NO_OUTCOMES = torch.zeros(0, 2)
KNOWN = {"price": torch.zeros(0)}


class Setting:
    """A problem with known data and a constraint, with or without integers, and an empty batch for it."""

    def __init__(self, kind: str, integers: bool) -> None:
        y = dro.Uncertain(2, support=dro.support.Box(0, 3))
        x, opened = cp.Variable(2, nonneg=True, name="x"), cp.Variable(2, boolean=True, name="opened")
        price = cp.Parameter(nonneg=True, name="price")
        cost = price * cp.sum(x) + cp.sum(cp.maximum(2 * (y - x), x - y))
        self.rule = dro.expected(cp.sum(cp.pos(y - x))) <= 5.0
        constraints = [self.rule]
        if integers:
            cost, constraints = cost + cp.sum(opened), [self.rule, x <= 3 * opened]
        self.problem = dro.DecisionProblem(cost, constraints, SETS[kind](y))
        self.nominal = NO_ATOMS if self.problem.sets.needs_nominal else None
        self.decision = {v: torch.zeros(0, *v.shape) for v in self.problem.variables}

    @property
    def theta(self) -> Tensor:
        return torch.zeros(0, self.problem.size, requires_grad=True)


@pytest.fixture(params=[(kind, integers) for kind in SETS for integers in (False, True)], ids=str)
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(*request.param)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradient", ["exact", "smoothed"])
def test_layer(setting: Setting, gradient: str, training: bool) -> None:
    layer = dro.DROLayer(setting.problem, gradient=gradient).train(training)  # type: ignore[arg-type]
    theta = setting.theta
    decision = layer(theta, setting.nominal, KNOWN)
    assert {tuple(value.shape) for value in decision.best.values()} == {(0, 2)}
    assert decision.value.shape == decision.status.shape == (0,)
    assert decision.probabilities.shape[0] == decision.derivative.shape[0] == 0
    assert decision.effective_sample_size.shape == (0,)
    loss = decision.expected(lambda x: setting.problem.loss(x, NO_OUTCOMES, KNOWN))
    assert loss.shape == (0,)
    if setting.problem.size:
        (loss.sum() + decision.value.sum()).backward()
        assert theta.grad is not None
        assert theta.grad.shape == theta.shape


def test_evaluations(setting: Setting) -> None:
    problem, theta, nominal, x = setting.problem, setting.theta, setting.nominal, setting.decision
    assert problem.solve(theta, nominal, known=KNOWN).objective.shape == (0,)
    assert problem.worst_case_cost(x, theta, nominal, KNOWN).shape == (0,)
    assert problem.worst_case(x, theta, nominal, KNOWN, of=setting.rule).shape == (0, 1)
    for of in (None, setting.rule):
        spread = problem.worst_case_distribution(x, theta, nominal, KNOWN, of=of)
        assert spread.atoms.shape[0] == spread.directions.shape[0] == 0
        assert spread.atoms.shape[2:] == spread.directions.shape[2:] == (2,)
        assert spread.probabilities.shape == spread.mass.origin.shape == spread.atoms.shape[:2]
        assert spread.escaping_cost.shape == (0,)
    assert problem.loss(x, NO_OUTCOMES, KNOWN).shape == (0,)
    assert problem.shortfalls(theta, nominal, KNOWN)[setting.rule].shape == (0, 1)
    for values in (problem.violations(x, NO_OUTCOMES, KNOWN), problem.terms(x, NO_OUTCOMES, KNOWN)):
        assert values[setting.rule].shape == (0, 1)
    assert bool(problem.missed(x, NO_OUTCOMES, KNOWN)[setting.rule].isnan())
    assert problem.sets.emptiness(theta, nominal).shape == (0, len(problem.sets.members))
    assert problem.pack(problem.unpack(theta)).shape == theta.shape or not problem.size


def test_projection(setting: Setting) -> None:
    if not setting.problem.size:
        with pytest.raises(dro.ModelError, match="something to learn"):
            dro.Projection(setting.problem.sets)
        return
    assert dro.Projection(setting.problem.sets)(setting.theta, NO_ATOMS).shape == setting.theta.shape


@pytest.mark.parametrize("nominal", [dro.nominal.KNN(3), dro.nominal.Kernel(), dro.nominal.Forest()], ids=repr)
def test_nominal_distributions(nominal: dro.nominal.NominalDistribution) -> None:
    atoms, weights = nominal.fit(torch.rand(30, 3), torch.rand(30, 2))(torch.zeros(0, 3))
    assert (atoms.shape[0], atoms.shape[2]) == (0, 2)
    assert weights.shape == atoms.shape[:2]


@pytest.mark.parametrize("kind", ["norm", "ball"])
def test_policies_say_that_there_is_nothing_to_decide(kind: str) -> None:
    y, x = dro.Uncertain(2, support=dro.support.Box(0, 3)), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(cp.maximum(2 * (y - x), x - y)), [], SETS[kind](y))
    rng = np.random.default_rng(0)
    covariates, outcomes = rng.random((30, 2)), rng.random((30, 2))
    stage = dro.Stage(epochs=1, rate=1e-2)
    learner = dro.DecisionFocusedLearner(problem, nominal=dro.nominal.KNN(ATOMS), pretraining=stage, training=stage)
    policies = [learner, dro.baselines.MeanPrediction(problem), dro.baselines.SampleAverage(problem)]
    for policy in policies:
        policy.fit(covariates, outcomes)
        for empty in (np.zeros((0, 2)), torch.zeros(0, 2)):
            with pytest.raises(dro.ShapeError, match="Z must be a non-empty table"):
                policy.decide(empty)
    pipeline, empty = learner.pipeline_, torch.zeros(0, 2)
    assert pipeline.theta(empty).shape == (0, problem.size)
    assert pipeline.decide(empty).value.shape == (0,)

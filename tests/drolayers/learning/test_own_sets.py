"""Learning several sets at once: training, saving, baselines, pictures."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers import moments as m
from drolayers.learning.pretraining import PredictionLoss, PredictionLosses
from tests.drolayers.learning.small import learner, sales


def service() -> tuple[dro.DecisionProblem, cp.Variable, cp.Constraint]:
    """A shop whose shortage is limited under a set of its own, around the data."""
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    x = cp.Variable(2, nonneg=True, name="stock")
    ball, spread = dro.Wasserstein(y, 5).named("service"), dro.MomentSet(y, [m.Norm(1)]).named("spread")
    rule = dro.expected(cp.sum(cp.pos(y - x)), ambiguity=ball) <= 0.2
    idle = dro.cvar(cp.sum(x - y), 0.5, ambiguity=spread) <= 9.0
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y))
    return dro.DecisionProblem(cost, [rule, idle], dro.MomentSet(y, [m.SquaredNorm()])), x, rule


def test_learns_saves_and_loads(tmp_path: Path) -> None:
    problem, x, rule = service()
    Z, Y = sales()
    made = learner(problem, nominal=dro.nominal.KNN(k=5)).fit(Z, Y)
    found = made.predict_set(Z)
    assert {name: value.shape[1:] for name, value in found.items()} == dict(problem.parameters)
    assert list(found) == ["0.mu", "0.sigma", "service.radius", "spread.0.mu", "spread.0.sigma"]
    decision = made.decision(Z)
    assert bool(decision.ok.all())
    # What was promised of every set holds for the nominal distribution, which is in it.
    assert made.violations(Z, Y)[rule] < 0.5
    # All networks were trained, those of the constraints' sets too.
    before = learner(problem, nominal=dro.nominal.KNN(k=5), training=None, pretraining=None)
    with pytest.warns(UserWarning, match="does not determine the radius"):
        before.fit(Z, Y)
    for old, new in zip(before.pipeline_.model.networks, made.pipeline_.model.networks, strict=True):
        assert float((old.layers[-1].weight - new.layers[-1].weight).detach().abs().max()) > 1e-6
    made.save(tmp_path / "shop")
    again = dro.DecisionFocusedLearner.load(tmp_path / "shop", problem)
    np.testing.assert_array_equal(again.decide(Z)[x], made.decide(Z)[x])
    y = problem.ambiguity.y
    other = dro.DecisionProblem(problem.cost, [], problem.ambiguity)
    assert other.ambiguity.y is y
    with pytest.raises(dro.ModelError, match=r"saved for a set with parameters .*service\.radius"):
        dro.DecisionFocusedLearner.load(tmp_path / "shop", other)
    with pytest.raises(dro.ModelError, match=r"make it from problem\.sets"):
        learner(problem, projection=dro.Projection(problem.ambiguity)).fit(Z, Y)


def test_losses_of_moment_sets_are_added_up() -> None:
    problem, _, _ = service()
    Y = torch.as_tensor(sales()[1])
    theta = torch.rand(4, problem.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nominal = Y[:12].reshape(4, 3, 2), torch.full((4, 3), 1 / 3, dtype=torch.float64)
    parts, members = problem.sets.parts(theta), problem.sets.members
    for phase in ("location", "bound", "both"):
        one = [PredictionLoss(members[k], Y)(parts[k], nominal, phase) for k in (0, 2)]
        torch.testing.assert_close(PredictionLosses(problem.sets, Y)(theta, nominal, phase), one[0] + one[1])


def test_all_sets_grow_and_hold_outcomes_together() -> None:
    """An outcome is covered where every set holds it, and one factor scales all; else there is no promise."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    own, cost = dro.Outcomes(y).named("service"), cp.sum(cp.abs(y - x))
    rule = dro.always(cp.sum(y) <= cp.sum(x) + 5.0, ambiguity=own)
    problem = dro.DecisionProblem(cost, [rule], dro.MomentSet(y, [m.SquaredNorm()]))
    Z, Y = sales()
    theta = torch.cat([t.centre.reshape(-1) for t in problem.sets.typical(torch.as_tensor(Y)).values()])[None]
    outcomes = torch.as_tensor(Y)
    found = problem.sets.scores(theta.expand(len(Y), -1), outcomes)
    each = [
        one.scores(part.expand(len(Y), -1), outcomes)
        for one, part in zip(problem.sets.members, problem.sets.parts(theta), strict=True)
    ]
    torch.testing.assert_close(found, torch.maximum(*each))
    torch.testing.assert_close(
        problem.sets.scores(problem.sets.scaled(theta, 2.0).expand(len(Y), -1), outcomes), found / 2
    )
    made = learner(problem, training=None).fit(Z, Y, calibration_share=0.5)
    rows = made.calibration_rows_
    assert rows is not None
    made.calibrate(coverage=0.6)
    assert made.coverage(rows.Z, rows.Y).rate >= 0.6
    ball, _, _ = service()
    with pytest.raises(dro.ModelError, match="no scale for single outcomes"):
        ball.sets.scores(torch.ones(len(Y), ball.size, dtype=torch.float64), outcomes)


def test_the_cost_s_set_is_drawn_beside_others() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    rule = dro.expected(cp.sum(y), ambiguity=dro.MomentSet(y, [m.SquaredNorm()])) <= cp.sum(x)
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)), [rule], dro.Outcomes(y))
    theta = torch.tensor([[1.0, 2.0, 0.3, 0.5, 0.9, 1.8, 0.4]], dtype=torch.float64)
    axes = dro.plot.worst_case(problem, dro.DROLayer(problem)(theta), theta)
    edge = next(line for line in axes.get_lines() if line.get_label() == "set").get_xydata()
    np.testing.assert_allclose([edge.min(0), edge.max(0)], [[0.7, 1.5], [1.3, 2.5]], rtol=1e-6)


def test_baselines_take_one_set_for_all() -> None:
    """Sample averages mean the data themselves, whatever set a constraint names."""
    problem, x, _ = service()
    Z, Y = sales()
    y = dro.Uncertain(2, support=dro.support.Nonnegative())
    z = cp.Variable(2, nonneg=True, name="stock")
    rules = [dro.expected(cp.sum(cp.pos(y - z))) <= 0.2, dro.cvar(cp.sum(z - y), 0.5) <= 9.0]
    cost = cp.sum(z) + cp.sum(cp.maximum(4.0 * (y - z), z - y))
    plain = dro.DecisionProblem(cost, rules, dro.MomentSet(y, [m.SquaredNorm()]))
    found = [dro.baselines.SampleAverage(p).fit(Z, Y).decide(Z[:1])[v] for p, v in ((problem, x), (plain, z))]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    weak = dro.DecisionProblem(dro.fragility(cp.sum(cp.pos(y - z)), 1.0), [], dro.Wasserstein(y, 5))
    with pytest.raises(dro.ModelError, match="about distances from the data"):
        dro.baselines.SampleAverage(weak).fit(Z, Y)


def test_prices_of_robustness_by_any_parameter() -> None:
    problem, _, _ = service()
    Y = torch.as_tensor(sales()[1][:5])
    theta = {n: t.centre[None] for n, t in problem.sets.typical(Y).items()}
    nominal = Y[None], torch.full((1, 5), 0.2, dtype=torch.float64)
    axes = dro.plot.price_of_robustness(problem, theta, "service.radius", [0.01, 0.19], nominal=nominal)
    values = axes.get_lines()[0].get_ydata()
    assert values[1] > values[0] + 1e-6
    with pytest.raises(dro.ModelError, match=r"choose one of .*service\.radius"):
        dro.plot.price_of_robustness(problem, theta, "radius", [0.1])


@pytest.mark.parametrize("kind", ["box", "moments", "ball"])
def test_a_scale_is_taken_in_full(kind: str) -> None:
    """Not in single precision: the outcome that gave the scale would be outside."""
    y = dro.Uncertain(2)
    made = {
        "box": dro.Outcomes,
        "moments": lambda y: dro.MomentSet.grouped(y, 1),
        "ball": lambda y: dro.Wasserstein(y, 3),
    }
    sets = made[kind](y)
    theta = torch.ones(1, sets.size, dtype=torch.float64)
    torch.testing.assert_close(
        sets.scaled(theta, 0.8953762782291581),
        sets.scaled(theta, torch.tensor([0.8953762782291581], dtype=torch.float64)),
        rtol=1e-15,
        atol=0.0,
    )

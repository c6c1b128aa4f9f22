"""The layer as a module: what it returns, what it refuses, and what becomes of items that cannot be solved."""

from __future__ import annotations

import copy
import io
import itertools
import subprocess
import sys
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import drolayers as dro
from conelayers import Exact, Smoothed, make_engine
from conelayers.surrogate.proposal import Energy, Stratified
from tests.drolayers.surrogate.problems import CASES, Case, assignment, ball, cardinality, knapsack, soc2, soc3
from tests.helpers.programs import needs_moreau

MODES = ["all", 0, 8]


def layer_of(case: Case, **settings) -> dro.DROLayer:
    return dro.DROLayer(case.problem, **{"temperature": case.temperature, **settings})


@cache
def continuous() -> Case:
    """No integer variables."""
    y = dro.Uncertain(3)
    x = cp.Variable(3, nonneg=True, name="x")
    problem = dro.DecisionProblem(-y @ x + cp.sum_squares(x), [cp.sum(x) <= 2], dro.MomentSet.grouped(y, 1))
    theta = torch.tensor([[1.0, 0.5, 2.0, 0.1, 0.2, 0.3], [0.3, 1.5, 1.0, 0.2, 0.1, 0.1]], dtype=torch.float64)
    return Case(problem, theta, torch.tensor([[0.9, 0.7, 1.8], [0.5, 1.2, 1.1]], dtype=torch.float64), 1.0)


@cache
def separated() -> Case:
    """More than 32 points, and a set that is empty where the two centres lie too far apart."""
    y = dro.Uncertain(2)
    lots, extra = cp.Variable(6, boolean=True, name="lots"), cp.Variable(2, name="extra")
    size = np.array([[0.2, 0.4, 0.6, 0.0, 0.1, 0.0], [0.1, 0.0, 0.0, 0.7, 0.3, 0.5]])
    stock = size @ lots + extra
    cost = 0.1 * cp.sum(lots) + cp.sum_squares(extra) + cp.sum(cp.maximum(2 * (y - stock), stock - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm(), dro.moments.SquaredNorm()]))
    theta = [[1.0, 0.8, 0.3, 1.1, 0.9, 0.4], [0.0, 0.0, 0.1, 5.0, 5.0, 0.1], [0.4, 1.2, 0.5, 0.5, 1.0, 0.6]]
    outcome = torch.tensor([[1.2, 0.7], [0.0, 0.0], [0.3, 1.1]], dtype=torch.float64)
    return Case(problem, torch.tensor(theta, dtype=torch.float64), outcome, 0.5)


# What it returns.


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("samples", MODES)
def test_best_is_the_optimum_of_all_points(name: str, samples: int | str) -> None:
    case = CASES[name]()
    every = case.decide(layer_of(case, samples="all"), case.theta)
    lowest = every.objective.amin(1)
    decision = case.decide(layer_of(case, samples=samples), case.theta)
    evaluated = case.decide(layer_of(case, samples=samples).eval(), case.theta)
    for found in (decision, evaluated):
        torch.testing.assert_close(found.value, lowest, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(
            found.value, case.problem.worst_case_cost(found.best, case.theta, case.nominal), rtol=1e-6, atol=1e-7
        )
        torch.testing.assert_close(found.probabilities.sum(1), torch.ones(2, dtype=torch.float64))
    assert evaluated.probabilities.shape == (2, 1)


@pytest.mark.parametrize("samples", MODES)
def test_the_best_knapsack_in_closed_form(samples: int | str) -> None:
    """-μᵀx + Σ √σ_g ‖x_g‖ at each of the 42 points with three items at most."""
    case = knapsack()
    points = np.array([p for p in itertools.product((0.0, 1.0), repeat=6) if sum(p) <= 3])
    mu, root = case.theta[:, :6].numpy(), case.theta[:, 6:].sqrt().numpy()
    lengths = np.sqrt((points.reshape(-1, 3, 2) ** 2).sum(2))
    f = -mu @ points.T + root @ lengths.T
    decision = layer_of(case, samples=samples)(case.theta)
    (x,) = case.problem.variables
    np.testing.assert_allclose(decision.value, f.min(1), rtol=1e-6)
    np.testing.assert_array_equal(decision.best[x], points[f.argmin(1)])
    # All that has a weight is what it should be, and with all points so are the weights.
    known = {tuple(point): k for k, point in enumerate(points)}
    for item in range(2):
        there = decision.probabilities[item] > 0
        at = [known[tuple(point)] for point in decision.candidates[x][item][there].tolist()]
        np.testing.assert_allclose(decision.objective[item][there], f[item, at], rtol=1e-6, atol=1e-8)
        if samples == "all":
            energy = np.exp(-(f[item] - f[item].min()) / case.temperature)
            np.testing.assert_allclose(decision.probabilities[item][there], (energy / energy.sum())[at], rtol=1e-5)
            assert sorted(at) == list(range(len(points)))


def test_shapes() -> None:
    case = cardinality()
    held, chosen = case.problem.variables
    decision = layer_of(case, candidates=2, samples=5)(case.theta)
    assert decision.best[held].shape == (2, 7)
    assert decision.candidates[chosen].shape == (2, 7, 7)
    assert decision.objective.shape == decision.probabilities.shape == (2, 7)
    assert decision.value.shape == decision.status.shape == decision.effective_sample_size.shape == (2,)
    assert decision.expected(case.loss).shape == (2,)
    mean, count = decision.mean(case.loss)
    assert count == 2
    torch.testing.assert_close(mean, decision.expected(case.loss).mean())
    assert repr(decision) == "Decision(batch=2, OPTIMAL: 2)"
    matrix = assignment()
    assert layer_of(matrix)(matrix.theta).candidates[matrix.problem.integer_variables[0]].shape == (2, 6, 3, 3)


def test_without_integers_the_surrogate_is_the_loss_of_the_optimum() -> None:
    case = continuous()
    layer = layer_of(case)
    theta = case.theta.clone().requires_grad_()
    decision = layer(theta)
    assert decision.probabilities.tolist() == [[1.0], [1.0]]
    assert decision.oracle is None
    assert not layer.mixed_integer
    total, loss = decision.expected(case.loss), case.problem.loss(decision.best, case.y)
    torch.testing.assert_close(total, loss)
    ours, theirs = (torch.autograd.grad(v.sum(), theta, retain_graph=True)[0] for v in (total, loss))
    torch.testing.assert_close(ours, theirs)
    assert bool((ours != 0).any())


def test_an_integer_problem_without_continuous_variables() -> None:
    case = knapsack()
    assert len(case.problem.variables) == 1
    for samples in MODES:
        gradient = case.gradient(layer_of(case, samples=samples))
        assert bool(gradient.isfinite().all())
        assert bool((gradient != 0).any())


def test_integers_are_integral_to_the_last_digit() -> None:
    case = soc2()
    (wholesale,) = case.problem.integer_variables
    for samples in MODES:
        decision = layer_of(case, samples=samples)(case.theta)
        for points in (decision.best[wholesale], decision.candidates[wholesale]):
            assert torch.equal(points, points.round())


def test_few_points_are_enumerated_whatever_was_asked_before() -> None:
    case = cardinality()
    problem = dro.DecisionProblem(case.problem.cost, case.problem.constraints, case.problem.ambiguity)
    few, many = dro.DROLayer(problem, samples=8), dro.DROLayer(problem, samples=53)
    assert few(case.theta).probabilities.shape == (2, 11)
    assert many(case.theta).probabilities.shape == (2, 56)
    assert few(case.theta).probabilities.shape == (2, 11)


def test_evaluation_skips_sampling() -> None:
    case = cardinality()
    layer = layer_of(case, samples=6)
    before = layer.state_dict()["_extra_state"]["rng"]
    layer.eval()
    decision = layer(case.theta)
    assert decision.probabilities.shape == (2, 1)
    assert layer.state_dict()["_extra_state"]["rng"] == before
    torch.testing.assert_close(decision.expected(case.loss), case.problem.loss(decision.best, case.y))
    assert layer.train()(case.theta).probabilities.shape == (2, 9)


def test_float32_and_dictionaries() -> None:
    case = soc2()
    layer = layer_of(case, samples="all")
    theta = case.theta.float().requires_grad_()
    decision = layer(theta)
    for tensor in (decision.value, decision.probabilities, decision.objective, *decision.best.values()):
        assert tensor.dtype == torch.float32
    total = decision.expected(lambda x: case.problem.loss(x, case.y.float()))
    assert total.dtype == torch.float32
    (gradient,) = torch.autograd.grad(total.sum(), theta)
    torch.testing.assert_close(gradient.double(), case.gradient(layer), rtol=1e-3, atol=1e-4)
    named = layer(case.problem.ambiguity.unpack(case.theta))
    torch.testing.assert_close(named.value, layer(case.theta).value, rtol=0, atol=0)


@pytest.mark.parametrize("samples", MODES)
def test_no_items_at_all(samples: int | str) -> None:
    for case in (cardinality(), continuous()):
        layer = layer_of(case, samples=samples)
        for mode in (True, False):
            decision = layer.train(mode)(case.theta[:0])
            assert decision.value.shape == (0,)
            # A mean of nothing is no loss of zero.
            with pytest.raises(dro.SolveError, match="0 of 0 items"):
                decision.mean(lambda x, case=case: case.problem.loss(x, case.y[:0]))


# What it refuses.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"candidates": 0}, "candidates"),
        ({"candidates": 2.5}, "candidates"),
        ({"samples": -1}, "samples"),
        ({"samples": "some"}, "samples"),
        ({"samples": 2.5}, "samples"),
        ({"temperature": 0.0}, "positive"),
        ({"gradient": "wrong"}, "gradient"),
        ({"oracle": "wrong"}, "oracle"),
        ({"engine": "wrong"}, "engine"),
        ({"proposal": "stratified"}, "proposal"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"engine": make_engine(), "gradient": "smoothed"}, "Engine"),
    ],
)
def test_settings_are_checked(settings: dict, said: str) -> None:
    with pytest.raises(dro.ModelError, match=said):
        layer_of(soc2(), **settings)


def test_the_old_name_of_an_engine_is_told_where_it_is_given() -> None:
    with pytest.warns(FutureWarning, match="is now 'clarabel'") as warned:
        layer = dro.DROLayer(soc2().problem, engine="diffcp")
    assert warned[0].filename == __file__
    assert layer.engine.solver.name == "clarabel"


def test_only_problems_make_layers() -> None:
    with pytest.raises(dro.ModelError, match="DecisionProblem"):
        dro.DROLayer(cp.Problem(cp.Minimize(0)))


def test_bad_parameters_and_losses() -> None:
    case = soc2()
    layer = layer_of(case)
    with pytest.raises(dro.ShapeError, match="NaN"):
        layer(torch.where(torch.eye(2, 5, dtype=torch.bool), torch.nan, case.theta))
    with pytest.raises(dro.ShapeError, match="shape"):
        layer(case.theta[:, :4])
    with pytest.raises(dro.ShapeError, match="missing"):
        layer({"0.mu": case.theta[:, :4]})
    decision = layer(case.theta)
    with pytest.raises(dro.ModelError, match=r"\(2, 16\)"):
        decision.expected(lambda x: torch.zeros(2))
    with pytest.raises(dro.ModelError, match="float"):
        decision.expected(lambda x: 1.0)


def test_too_many_points_to_solve_them_all() -> None:
    y, x = dro.Uncertain(17), cp.Variable(17, boolean=True)
    layer = dro.DROLayer(dro.DecisionProblem(-y @ x, [], dro.MomentSet.grouped(y, 17)), samples="all")
    with pytest.raises(dro.ModelError, match="65536"):
        layer(torch.ones(1, 18))


# Items that cannot be solved.


@pytest.mark.parametrize("samples", MODES)
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_set_is_masked_and_the_others_are_as_they_were(samples: int | str, training: bool) -> None:
    case = separated()
    layer = layer_of(case, samples=samples).train(training)
    theta = case.theta.clone().requires_grad_()
    decision = layer(theta)
    assert decision.statuses == [dro.Status.OPTIMAL, dro.Status.EMPTY_SET, dro.Status.OPTIMAL]
    assert decision.ok.tolist() == [True, False, True]
    for tensor in (decision.value, *decision.best.values()):
        assert bool(tensor[1].isnan().all())
        assert bool(tensor[[0, 2]].isfinite().all())
    assert decision.probabilities[1].tolist() == [0.0] * decision.probabilities.shape[1]
    for tensor in decision.candidates.values():
        assert bool(tensor.isfinite().all())
    total = decision.expected(case.loss)
    assert total.isnan().tolist() == [False, True, False]
    mean, count = decision.mean(case.loss)
    assert count == 2
    torch.testing.assert_close(mean, total.nansum() / 2)
    (gradient,) = torch.autograd.grad(total.nansum(), theta)
    assert gradient[1].tolist() == [0.0] * 6
    if samples != 8 or not training:
        alone = case.theta[[0, 2]].clone().requires_grad_()
        other = layer(alone).expected(lambda x: case.problem.loss(x, case.y[[0, 2]]))
        torch.testing.assert_close(total[[0, 2]], other, rtol=1e-5, atol=1e-6)
        expected = torch.autograd.grad(other.sum(), alone)[0]
        torch.testing.assert_close(gradient[[0, 2]], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("samples", MODES)
@pytest.mark.parametrize("training", [True, False])
def test_a_batch_in_which_nothing_can_be_solved(samples: int | str, training: bool) -> None:
    case = separated()
    theta = case.theta[[1, 1]].clone().requires_grad_()
    decision = layer_of(case, samples=samples).train(training)(theta)
    assert decision.statuses == [dro.Status.EMPTY_SET] * 2
    with pytest.raises(dro.SolveError, match="2 of 2 items were not solved: 2 EMPTY_SET"):
        decision.mean(lambda x: case.problem.loss(x, case.y[:2]))
    total = decision.expected(lambda x: case.problem.loss(x, case.y[:2]))
    assert bool(total.isnan().all())
    total.sum().backward()
    assert theta.grad is not None
    assert bool((theta.grad == 0).all())


def test_an_empty_set_without_integers() -> None:
    y = dro.Uncertain(2)
    x = cp.Variable(2, name="x")
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm(), dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)) + cp.sum_squares(x), [], ambiguity)
    theta = separated().theta.clone().requires_grad_()
    decision = dro.DROLayer(problem)(theta)
    assert decision.ok.tolist() == [True, False, True]
    total = decision.expected(lambda x: problem.loss(x, separated().y))
    total.nansum().backward()
    assert theta.grad is not None
    assert total.isnan().tolist() == [False, True, False]
    assert theta.grad[1].tolist() == [0.0] * 6
    assert bool(theta.grad.isfinite().all())
    assert bool((theta.grad[[0, 2]] != 0).any())
    nothing = dro.DROLayer(problem)(theta[[1]]).expected(lambda x: problem.loss(x, separated().y[[1]]))
    assert bool((torch.autograd.grad(nothing.sum(), theta)[0] == 0).all())


@pytest.mark.parametrize("samples", MODES)
def test_losses_without_a_value_at_placeholders(samples: int | str) -> None:
    """Logarithms of what a placeholder makes zero or negative must not spoil the gradient."""
    case = separated()
    _, extra = case.problem.variables
    theta = case.theta.clone().requires_grad_()
    decision = layer_of(case, samples=samples)(theta)

    def loss(x: dict[cp.Variable, Tensor]) -> Tensor:
        there = decision.probabilities > 0
        return torch.log(torch.where(there[..., None], 5.0 + x[extra], x[extra] - x[extra])).sum(-1)

    total = decision.expected(loss)
    assert (total.isfinite() == decision.ok).all()
    total.nansum().backward()
    assert theta.grad is not None
    assert bool(theta.grad.isfinite().all())
    assert bool((theta.grad[[0, 2]] != 0).any())


@pytest.mark.parametrize("samples", MODES)
def test_no_integer_point_at_all(samples: int | str) -> None:
    y = dro.Uncertain(2)
    x, d = cp.Variable(2, nonneg=True), cp.Variable(6, boolean=True)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(-y @ x + cp.sum(d) + cp.sum_squares(x), [cp.sum(d) == 7], ambiguity)
    theta = torch.tensor([[1.0, 1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    for proposal in (Stratified(), Energy()):
        layer = dro.DROLayer(problem, samples=samples, proposal=proposal)
        for mode in (True, False):
            decision = layer.train(mode)(theta)
            assert decision.statuses == [dro.Status.INFEASIBLE]
            total = decision.expected(lambda x: problem.loss(x, torch.zeros(1, 2, dtype=torch.float64)))
            assert torch.autograd.grad(total.sum(), theta)[0].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("samples", MODES)
def test_a_decision_that_runs_away(samples: int | str) -> None:
    y = dro.Uncertain(1)
    x, d = cp.Variable(name="x"), cp.Variable(6, boolean=True)
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(y[0] * (d[0] + d[1]) + x, [x <= 3], ambiguity)
    layer = dro.DROLayer(problem, samples=samples)
    for mode in (True, False):
        decision = layer.train(mode)(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
        assert decision.statuses == [dro.Status.UNBOUNDED]


@pytest.mark.parametrize("samples", MODES)
def test_failures_raise_on_request(samples: int | str) -> None:
    case = separated()
    layer = layer_of(case, samples=samples, engine=make_engine(), on_failure="raise")
    assert bool(layer(case.theta[[0, 2]]).ok.all())
    with pytest.raises(dro.SolveError, match="EMPTY_SET") as caught:
        layer(case.theta)
    assert caught.value.items == {1: dro.Status.EMPTY_SET}


@pytest.mark.parametrize("samples", [0, 4, "all"])
def test_decisions_of_several_batches_are_those_of_one(samples: int | str) -> None:
    case = separated()
    theta = case.theta.clone().requires_grad_()
    layer = layer_of(case, samples=samples, enumerate_up_to=0)
    parts = [layer(theta[:1]), layer(theta[1:])]
    whole = dro.Decision.cat(parts)
    assert whole.statuses == parts[0].statuses + parts[1].statuses
    assert (whole.oracle is None) == (samples == "all")
    for name in ("value", "objective", "probabilities", "effective_sample_size"):
        expected = torch.cat([getattr(part, name) for part in parts])
        torch.testing.assert_close(getattr(whole, name), expected, equal_nan=True)
    for name in ("best", "candidates"):
        for variable, value in getattr(whole, name).items():
            expected = torch.cat([getattr(part, name)[variable] for part in parts])
            torch.testing.assert_close(value, expected, equal_nan=True)
    whole.expected(case.loss).sum().backward()
    assert torch.equal(whole.derivative, torch.cat([part.derivative for part in parts]))
    if whole.oracle is not None:
        found = [part.oracle for part in parts]
        assert whole.oracle.statuses == found[0].statuses + found[1].statuses
        assert whole.oracle.rounds == found[0].rounds + found[1].rounds
        assert whole.oracle.oracle == found[0].oracle


# Settings that change between steps.


def test_temperature_can_be_scheduled() -> None:
    case = soc2()
    layer = layer_of(case, samples="all")
    assert layer.temperature == case.temperature
    warm = layer(case.theta).effective_sample_size
    layer.temperature = case.temperature / 3
    assert bool((layer(case.theta).effective_sample_size < warm).all())
    layer.temperature = dro.RelativeTemperature(0.5)
    assert layer.temperature == dro.RelativeTemperature(0.5)
    with pytest.raises(dro.ModelError, match="positive"):
        layer.temperature = -1.0
    assert dro.DROLayer(case.problem).temperature == dro.RelativeTemperature()


@pytest.mark.parametrize("scale", [1e-3, 1e2])
@pytest.mark.parametrize("samples", ["all", 8])
def test_the_default_temperature_knows_no_scale(scale: float, samples: int | str) -> None:
    def built(factor: float) -> tuple[dro.DecisionProblem, dro.Decision]:
        y = dro.Uncertain(6)
        lots, free = cp.Variable(6, boolean=True, name="lots"), cp.Variable(2, nonneg=True, name="free")
        risk = 0.5 * factor * cp.sum_squares(free)
        problem = dro.DecisionProblem(-y @ (lots + cp.sum(free) / 6) + risk, [], dro.MomentSet.grouped(y, 3))
        mean = np.random.default_rng(0).normal(0.1, 1.0, (3, 6))
        theta = torch.as_tensor(np.concatenate([factor * mean, factor**2 * np.full((3, 2), 0.3)], 1))
        return problem, dro.DROLayer(problem, samples=samples, seed=1)(theta)

    (_, unit), (_, scaled) = built(1.0), built(scale)
    torch.testing.assert_close(scaled.probabilities, unit.probabilities, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scaled.value / scale, unit.value, rtol=1e-5, atol=1e-6)


def test_gradient_rule_can_be_annealed() -> None:
    case = continuous()
    layer = layer_of(case, gradient=Smoothed(1e-1))
    smooth = case.gradient(layer)
    layer.gradient = Smoothed(1e-3)
    less = case.gradient(layer)
    layer.gradient = "exact"
    assert layer.gradient == Exact()
    exact = case.gradient(layer)
    assert float((less - exact).abs().max()) < float((smooth - exact).abs().max())
    with pytest.raises(dro.ModelError, match="gradient"):
        layer.gradient = "wrong"


# As a module among others.


@pytest.mark.parametrize("proposal", [Stratified(), Energy()], ids=repr)
def test_one_seed_one_result(proposal: Stratified | Energy) -> None:
    case = cardinality()

    def run(seed: int) -> Tensor:
        layer = layer_of(case, samples=6, proposal=proposal, seed=seed)
        return torch.stack([case.surrogate(layer, case.theta) for _ in range(2)])

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert not torch.equal(run(0)[0], run(0)[1])


def test_without_a_seed_draws_follow_torch() -> None:
    case = cardinality()
    layer = layer_of(case, samples=6, seed=None)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(case.surrogate(layer, case.theta))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert layer.state_dict()["_extra_state"]["rng"] is None


def test_copies_share_the_problem_and_draw_alike() -> None:
    case = cardinality()
    model = nn.Sequential(nn.Linear(3, 8).double(), layer_of(case, samples=6))
    twin = copy.deepcopy(model)
    assert twin[1].problem is case.problem
    z = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for module in (model, twin):
            module[0].bias[7] = 1.0
        first, second = model(z), twin(z)
    assert torch.equal(first.probabilities, second.probabilities)
    assert all(torch.equal(first.best[v], second.best[v]) for v in case.problem.variables)


@pytest.mark.parametrize("temperature", [0.25, dro.RelativeTemperature(np.float64(0.3))])
def test_state_is_saved_and_loaded_as_weights_only(temperature: float | dro.RelativeTemperature) -> None:
    case = cardinality()
    model = nn.ModuleDict({"net": nn.Linear(3, 8), "layer": layer_of(case, samples=6, temperature=temperature)})
    case.surrogate(model["layer"], case.theta)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = nn.ModuleDict({"net": nn.Linear(3, 8), "layer": layer_of(case, samples=6, seed=77)})
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other["layer"].temperature == temperature
    expected = case.surrogate(model["layer"], case.theta)
    assert torch.equal(case.surrogate(other["layer"], case.theta), expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("samples", ["all", 6])
def test_activation_checkpoints(samples: int | str, reentrant: bool) -> None:
    case = cardinality()
    layer = layer_of(case, samples=samples, seed=None)
    gradients = []
    for through in (lambda f, t: f(t), lambda f, t: checkpoint(f, t, use_reentrant=reentrant)):
        torch.manual_seed(3)
        theta = case.theta.clone().requires_grad_()
        through(lambda t: case.surrogate(layer, t), theta).sum().backward()
        gradients.append(theta.grad)
    assert gradients[0] is not None
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-9)


def test_nominal_distributions_travel_beside_theta() -> None:
    case = ball()
    layer = layer_of(case)
    assert case.nominal is not None
    with pytest.raises(dro.LayerError):
        layer(case.theta)
    narrow = layer(0.01 * case.theta, case.nominal)
    assert bool((narrow.value < layer(case.theta, case.nominal).value).all())


def averaged(rank: int, store: str) -> None:
    """One of two processes, each with one outcome: their gradient is that of both outcomes."""
    case = soc2()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta, self.layer = nn.Parameter(case.theta[:1].clone()), layer_of(case, samples="all")

        def forward(self, y: Tensor) -> Tensor:
            return self.layer(self.theta.expand(len(y), -1)).expected(lambda x: case.problem.loss(x, y)).mean()

    limit = timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", f"file://{store}", timeout=limit, rank=rank, world_size=2)
    try:
        model, reference = Model(), Model()
        parallel = nn.parallel.DistributedDataParallel(model)
        parallel(case.y[rank : rank + 1]).backward()
        reference(case.y).backward()
        torch.testing.assert_close(model.theta.grad, reference.theta.grad, rtol=1e-5, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    command = f"from tests.drolayers.test_layer import averaged; averaged(1, {store!r})"
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.PIPE, text=True, cwd=root) as other:
        averaged(0, store)
        assert other.wait(timeout=60) == 0, other.stderr.read()


@pytest.mark.parametrize("engine", [pytest.param("moreau", marks=needs_moreau), "batched"])
def test_gradients_where_a_binary_closes_other_columns(engine: str) -> None:
    """With ``held <= 0.6 * chosen`` and a binary of zero there is no interior, and so no central path."""
    case = cardinality()
    layer = layer_of(case, samples="all", engine=engine)
    differences, step = torch.zeros_like(case.theta), 3e-3
    for k, move in enumerate(step * torch.eye(case.theta.shape[1], dtype=torch.float64)):
        with torch.no_grad():
            ahead, behind = (case.surrogate(layer, case.theta + way * move) for way in (1, -1))
        differences[:, k] = (ahead - behind) / (2 * step)
    torch.testing.assert_close(case.gradient(layer), differences, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["SOC-II", "cardinality"])
@pytest.mark.parametrize("samples", ["all", 8])
def test_cuda_tensors(name: str, samples: int | str) -> None:
    case = CASES[name]()
    theta = case.theta.cuda().requires_grad_()
    decision = layer_of(case, samples=samples)(theta)
    total = decision.expected(lambda x: case.problem.loss(x, case.y.cuda()))
    total.sum().backward()
    assert total.device.type == "cuda"
    assert theta.grad is not None
    host = layer_of(case, samples=samples)
    torch.testing.assert_close(theta.grad.cpu(), case.gradient(host), rtol=1e-4, atol=1e-5)


def test_both_moments_refine_one() -> None:
    """SOC-III is the intersection of SOC-I and SOC-II, so its worst case cannot be worse than that of SOC-II."""
    both, second = soc3(), soc2()
    theta = both.theta[:, 5:]
    assert bool((layer_of(both)(both.theta).value <= layer_of(second)(theta).value + 1e-6).all())


@pytest.mark.parametrize("oracle", ["nonsense", 3])
def test_an_oracle_that_is_none_is_refused_without_integers_too(oracle: Any) -> None:
    y, x = dro.Uncertain(1), cp.Variable(1, nonneg=True)
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)), [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    with pytest.raises(dro.ModelError, match="oracle"):
        dro.DROLayer(problem, oracle=oracle)

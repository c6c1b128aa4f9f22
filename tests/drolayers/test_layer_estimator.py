"""The surrogate and its gradient: enumerated against formulas, sampled against the enumerated."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Smoothed, make_engine
from conelayers.engine.solvers.interior import Interior
from conelayers.surrogate.energy import compute_temperature, effective_sample_size, energy_probabilities
from conelayers.surrogate.proposal import Energy, Proposal, ProposalInput, Stratified
from tests.drolayers.surrogate.problems import CASES, Case, Table, closed_form, portfolio, soc2, table

# Slot by slot, some continuous decisions do not move with θ.
pytestmark = pytest.mark.filterwarnings("ignore::conelayers.engine.engine.FlatGradientWarning")

PROPOSALS: list[Proposal] = [Stratified(), Energy()]


def enumerating(case: Case, temperature: float | None = None) -> dro.DROLayer:
    return dro.DROLayer(case.problem, samples="all", temperature=temperature or case.temperature)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


# With all points enumerated.


@pytest.mark.parametrize("name", CASES)
def test_gradient_has_the_three_terms_of_the_theorem(name: str) -> None:
    case = CASES[name]()
    layer = enumerating(case)
    theta = case.theta.clone().requires_grad_()
    decision = case.decide(layer, theta)
    f, l = decision.objective, case.loss(decision.candidates)

    def slopes(values: Tensor) -> Tensor:
        """Derivatives by θ, slot by slot."""
        if not values.requires_grad:
            return theta.new_zeros(*values.shape, theta.shape[1])
        columns = [torch.autograd.grad(c.sum(), theta, retain_graph=True)[0] for c in values.unbind(1)]
        return torch.stack(columns, 1)

    f_slope, l_slope = slopes(f), slopes(l)
    total = decision.expected(case.loss)
    (gradient,) = torch.autograd.grad(total.sum(), theta)
    for item in range(theta.shape[0]):
        points = Table(f, f[item].detach(), l[item].detach(), f_slope[item], l_slope[item])
        assert float(total[item].detach()) == pytest.approx(float(points.value(case.temperature)), rel=1e-12)
        assert relative_error(gradient[item], points.gradient(case.temperature)) < 1e-8


@pytest.mark.parametrize("name", CASES)
def test_points_are_those_of_separate_solves(name: str) -> None:
    case = CASES[name]()
    layer = enumerating(case)
    gradient, value = case.gradient(layer), case.surrogate(layer, case.theta)
    for item in range(case.theta.shape[0]):
        points = table(case, item)
        assert float(value[item]) == pytest.approx(float(points.value(case.temperature)), rel=1e-6)
        assert relative_error(gradient[item], points.gradient(case.temperature)) < 1e-4


@pytest.mark.parametrize("temperature", [0.3, 1.5, 10.0])
def test_closed_form(temperature: float) -> None:
    formula = closed_form()
    case = formula.case()
    theta = case.theta[0].clone().requires_grad_()
    value = formula.value(theta, case.y[0], temperature)
    (exact,) = torch.autograd.grad(value, theta)
    layer = enumerating(case, temperature)
    assert float(case.surrogate(layer, case.theta)[0]) == pytest.approx(float(value.detach()), rel=2e-6)
    assert relative_error(case.gradient(layer)[0], exact) < 1e-5
    step = 1e-5
    for k in range(theta.numel()):
        shift = step * torch.eye(theta.numel(), dtype=torch.float64)[k]
        with torch.no_grad():
            ahead, behind = (formula.value(theta + s, case.y[0], temperature) for s in (shift, -shift))
        assert float((ahead - behind) / (2 * step)) == pytest.approx(float(exact[k]), rel=1e-7, abs=1e-8)


KINKED = {"SOC-III": 1e-3, "cardinality": 1e-4, "integers": 1e-4}
"""Where the second derivative of f jumps nearby."""


@pytest.mark.parametrize("name", CASES)
def test_central_differences_of_the_energies(name: str) -> None:
    """With a loss of the integers alone the gradient is that of f, which solvers know to many digits if asked for."""
    case = CASES[name]()
    careful = Interior(tolerance=1e-11)
    layer = dro.DROLayer(case.problem, samples="all", temperature=case.temperature, engine=careful)
    integers = case.problem.integer_variables

    def loss(x: dict) -> Tensor:
        flat = torch.cat([x[v].flatten(2) for v in integers], 2)
        return torch.cos(flat @ torch.arange(1.0, flat.shape[2] + 1, dtype=flat.dtype).sqrt())

    theta = case.theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(case.decide(layer, theta).expected(loss).sum(), theta)
    step, numeric = 1e-3, torch.zeros_like(gradient)
    for k in range(theta.shape[1]):
        shift = torch.zeros_like(case.theta)
        shift[:, k] = step
        with torch.no_grad():
            near, far = (
                case.decide(layer, case.theta + m * shift).expected(loss)
                - case.decide(layer, case.theta - m * shift).expected(loss)
                for m in (1, 2)
            )
        numeric[:, k] = (8 * near - far) / (12 * step)
    assert relative_error(gradient, numeric) < KINKED.get(name, 1e-5)


@pytest.mark.parametrize("name", ["SOC-II", "knapsack", "assignment", "integers"])
def test_central_differences_of_the_whole_loss(name: str) -> None:
    """Along a random direction; solvers know continuous decisions to about 1e-7, hence the tolerance."""
    case = CASES[name]()
    layer, generator = enumerating(case), torch.Generator().manual_seed(0)
    direction = torch.randn(case.theta.shape, generator=generator, dtype=torch.float64)
    slope = (case.gradient(layer) * direction).sum(1)
    step = 2e-3
    with torch.no_grad():
        near, far = (
            case.surrogate(layer, case.theta + m * step * direction)
            - case.surrogate(layer, case.theta - m * step * direction)
            for m in (1, 2)
        )
    assert relative_error(slope, (8 * near - far) / (12 * step)) < (
        1e-5 if name in ("knapsack", "assignment") else 1e-3
    )


# Theorem 4.13: as λ falls, the surrogate and its minimiser approach the true decision loss and its own.


@pytest.mark.parametrize("name", ["SOC-II", "two-stage", "Wasserstein"])
def test_surrogate_approaches_the_decision_loss(name: str) -> None:
    case = CASES[name]()
    optimum = enumerating(case).eval()
    true = case.surrogate(optimum, case.theta)
    spread = float(case.decide(enumerating(case), case.theta).objective.std(1).min())
    errors = [
        float((case.surrogate(enumerating(case, spread * heat), case.theta) - true).abs().max())
        for heat in (10.0, 1.0, 0.1, 0.001)
    ]
    assert errors[-1] < 1e-6
    assert errors[-1] < errors[2] < errors[0]
    assert errors[0] > 0.1


def test_minimisers_approach_that_of_the_decision_loss() -> None:
    case, rng = soc2(), np.random.default_rng(0)
    outcomes = torch.as_tensor(np.array([8.6, 11.9, 15.2, 17.8]) + 0.8 * rng.standard_normal((12, 4)))
    # φ moves the mean of every demand; the model sees no context.
    grid = torch.linspace(-2.0, 2.0, 41, dtype=torch.float64)
    theta = case.theta[:1] + grid[:, None] * torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)

    def risk(layer: dro.DROLayer) -> Tensor:
        """The mean loss over the outcomes for every φ."""
        with torch.no_grad():
            decision = layer(theta)
            return torch.stack(
                [decision.expected(lambda x, y=y: case.problem.loss(x, y.expand(41, -1))) for y in outcomes]
            ).mean(0)

    true = risk(enumerating(case).eval())
    gaps, excess = [], []
    for heat in (100.0, 3.0, 0.3, 0.01):
        surrogate = risk(enumerating(case, heat))
        gaps.append(abs(float(surrogate.min() - true.min())))
        excess.append(float(true[surrogate.argmin()] - true.min()))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3 * gaps[0]
    assert excess[-1] == pytest.approx(0.0, abs=1e-6)


# With sampling: the estimator on a table, so that replicates need no solves.


@cache
def cached_table(name: str) -> tuple[Case, Table]:
    case = portfolio() if name == "portfolio" else CASES[name]()
    return case, table(case, 0)


def proposal_input(
    case: Case, points: Table, replicates: int, temperature: float | dro.RelativeTemperature, best: int = 3
) -> ProposalInput:
    """The best points of the table, once for every replicate."""
    order = points.f.argsort()[:best]
    objective = points.f[order].expand(replicates, -1)
    lower, upper = case.problem.program.integer_bounds
    valid = torch.ones(replicates, best, dtype=torch.bool)
    heat = compute_temperature(temperature, objective, objective[:, 0], torch.zeros_like(objective), valid)
    return ProposalInput(points.points[order].expand(replicates, -1, -1), objective, valid, lower, upper, heat)


def line(case: Case, points: Table, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """For every draw its line in the table, and whether it has one, that is, is feasible."""
    lower, upper = case.problem.program.integer_bounds
    base = torch.cumprod(torch.cat([torch.ones(1, dtype=torch.float64), upper - lower + 1]), 0)
    where = torch.full((int(base[-1]),), -1)
    where[((points.points - lower) @ base[:-1]).long()] = torch.arange(len(points.f))
    at = where[((drawn - lower) @ base[:-1]).long()]
    return at.clamp(min=0), at >= 0


def estimates(
    case: Case,
    points: Table,
    replicates: int,
    temperature: float | dro.RelativeTemperature,
    proposal: Proposal,
    count: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer's estimator, with f and l linear in θ around the item.

    Returns:
        The gradient, the effective sample size and λ of each replicate.
    """
    here = proposal_input(case, points, replicates, temperature)
    draws = proposal.sample(here, count, np.random.default_rng(seed))
    at, feasible = line(case, points, draws.points)
    theta = torch.zeros(draws.points.shape[0], points.f_slope.shape[1], dtype=torch.float64, requires_grad=True)
    f = points.f[at] + torch.einsum("rsp,rp->rs", points.f_slope[at], theta)
    l = points.l[at] + torch.einsum("rsp,rp->rs", points.l_slope[at], theta)
    valid, lowest = draws.valid & feasible, points.f.min().expand(replicates)
    heat = compute_temperature(temperature, f, lowest, draws.log_intensity, valid)
    p = energy_probabilities(f, draws.log_intensity, valid, heat)
    assert bool((p[~feasible] == 0).all())
    (gradient,) = torch.autograd.grad((p * l).sum(), theta)
    return gradient, effective_sample_size(p), heat


def absolute(points: Table, temperature: float | dro.RelativeTemperature) -> float:
    """λ with all points enumerated, as the documentation defines it."""
    if isinstance(temperature, dro.RelativeTemperature):
        return temperature.factor * float((points.f - points.f.min()).mean())
    return temperature


def error(
    name: str,
    proposal: Proposal,
    count: int,
    temperature: float | dro.RelativeTemperature,
    replicates: int = 200,
) -> float:
    """Root mean square error of the gradient, relative to its length."""
    case, points = cached_table(name)
    gradient, _, _ = estimates(case, points, replicates, temperature, proposal, count, seed=count)
    exact = points.gradient(absolute(points, temperature))
    return float((gradient - exact).square().sum(1).mean().sqrt() / exact.norm())


def temperature_error(name: str, proposal: Proposal, count: int, factor: float, replicates: int = 200) -> float:
    """Root mean square error of a relative λ, relative to that with all points enumerated."""
    case, points = cached_table(name)
    relative = dro.RelativeTemperature(factor)
    _, _, heat = estimates(case, points, replicates, relative, proposal, count, seed=count)
    return float((heat / absolute(points, relative) - 1).square().mean().sqrt())


SIZES = (16, 64, 256, 1024)


@cache
def errors(name: str, proposal: Proposal, temperature: float) -> list[float]:
    return [error(name, proposal, size, temperature) for size in SIZES]


@pytest.mark.parametrize("temperature", [10.0, 0.01])
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_error_falls_with_the_root_of_the_sample_size(proposal: Proposal, temperature: float) -> None:
    slope = np.polyfit(np.log(SIZES), np.log(errors("portfolio", proposal, temperature)), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


@pytest.mark.parametrize("temperature", [10.0, 0.01])
def test_stratified_is_the_better_on_twelve_binaries(temperature: float) -> None:
    _, points = cached_table("portfolio")
    assert 5e-3 < float(points.f.abs().mean()) < 5e-2
    ours, theirs = (errors("portfolio", p, temperature) for p in PROPOSALS)
    assert all(a < b for a, b in zip(ours[1:], theirs[1:], strict=True))


@pytest.mark.parametrize("name", ["two-stage", "Wasserstein", "SOC-II", "knapsack", "cardinality", "integers"])
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_sampled_gradient_converges(name: str, proposal: Proposal) -> None:
    case, _ = cached_table(name)
    few, many = (error(name, proposal, size, case.temperature) for size in (256, 1024))
    assert many / few == pytest.approx(0.5, abs=0.13)


RELATIVE = ["two-stage", "SOC-II", "cardinality", "integers", "portfolio"]
"""Problems for the estimates at a relative temperature."""


@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_sampled_temperature_converges_to_the_enumerated_one(name: str, proposal: Proposal, factor: float) -> None:
    few, many = (temperature_error(name, proposal, size, factor) for size in (256, 4096))
    assert many / few == pytest.approx(0.25, abs=0.065)


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_sampled_gradient_converges_at_a_relative_temperature(name: str, proposal: Proposal) -> None:
    relative = dro.RelativeTemperature(0.5)
    few, many = (error(name, proposal, size, relative) for size in (256, 4096))
    assert many / few == pytest.approx(0.25, abs=0.065)


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_sampled_gradient_converges_where_few_points_are_feasible(proposal: Proposal) -> None:
    case, _ = cached_table("assignment")
    few, many = (error("assignment", proposal, size, case.temperature, replicates=40) for size in (512, 8192))
    assert many < 0.4
    assert many < 0.45 * few


def test_effective_sample_size_tells_the_better_proposal() -> None:
    case, points = cached_table("portfolio")
    ours, theirs = (estimates(case, points, 50, 10.0, p, 64, 0)[1].mean() for p in PROPOSALS)
    assert 60 < float(ours) < 67.5
    assert float(theirs) < 0.5 * float(ours)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("count", [3, 16])
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
@pytest.mark.parametrize("name", ["cardinality", "portfolio"])
def test_the_layer_is_that_estimator(name: str, proposal: Proposal, count: int, relative: bool) -> None:
    case, points = cached_table(name)
    temperature = dro.RelativeTemperature(0.7) if relative else case.temperature
    layer = dro.DROLayer(case.problem, samples=count, temperature=temperature, proposal=proposal, seed=9)
    theta = case.theta[:1].clone().requires_grad_()
    decision = layer(theta)
    assert decision.oracle is not None
    (gradient,) = torch.autograd.grad(decision.expected(lambda x: case.problem.loss(x, case.y[:1])).sum(), theta)
    expected, size, heat = estimates(case, points, 1, temperature, proposal, count, seed=9)
    assert relative_error(gradient, expected) < 1e-4
    assert float(decision.effective_sample_size[0]) == pytest.approx(float(size[0]), rel=1e-5 if relative else 1e-6)
    assert float(decision.temperature[0]) == pytest.approx(float(heat[0]), rel=1e-5)


@pytest.mark.parametrize("name", ["cardinality", "assignment", "knapsack"])
@pytest.mark.parametrize("samples", [6, 200, "all"])
def test_infeasible_points_are_neither_returned_nor_weighted(name: str, samples: int | Literal["all"]) -> None:
    case = CASES[name]()
    (x,) = case.problem.integer_variables
    layer = dro.DROLayer(case.problem, samples=samples, temperature=case.temperature)
    known = {tuple(p) for p in case.problem.integer_points(None).tolist()}
    for _ in range(5):
        decision = case.decide(layer, case.theta)
        assert bool(decision.ok.all())
        assert {tuple(p) for p in decision.best[x].flatten(1).tolist()} <= known
        used = decision.candidates[x].flatten(2)[decision.probabilities > 0]
        assert {tuple(p) for p in used.tolist()} <= known


# Solutions that the oracle had already.


@pytest.mark.parametrize("rule", ["exact", Smoothed(1e-2)])
@pytest.mark.parametrize("name", ["SOC-II", "cardinality", "two-stage"])
def test_adopted_solutions_have_the_gradient_of_a_solve(name: str, rule: Literal["exact"] | Smoothed) -> None:
    case, engine = CASES[name](), make_engine(gradient=rule)
    program = case.problem.program
    points = case.problem.integer_points(None)[[1, 3]]
    theta = case.theta.clone().requires_grad_()
    values = program.within(program.values(case.problem.features(theta, case.nominal)), points, points)
    solved = engine.solve_values(program, values)
    adopted = engine.adopt(program, values, solved.primal.detach(), solved.dual.detach())
    assert bool(adopted.ok.all())
    torch.testing.assert_close(adopted.objective, solved.objective, rtol=1e-12, atol=0)
    for pick in (lambda s: case.loss(case.problem.decision(s.primal)), lambda s: s.objective):
        expected, found = (torch.autograd.grad(pick(s).sum(), theta, retain_graph=True)[0] for s in (solved, adopted))
        assert relative_error(found, expected) < 1e-6

"""The function whose derivative the surrogate's gradient is: temperature, points and intensities are held fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import drolayers as dro
from conelayers.engine.solvers.interior import Interior
from conelayers.surrogate.proposal import Draws, Energy, Proposal, ProposalInput, Stratified
from tests.drolayers.surrogate.problems import CASES, Case, soc2

pytestmark = pytest.mark.filterwarnings("ignore::conelayers.engine.engine.FlatGradientWarning")

PROPOSALS: list[Proposal] = [Stratified(), Energy()]
NAMES = ["SOC-II", "Wasserstein", "knapsack", "cardinality", "integers"]
KINKED = {"cardinality": 1e-4, "integers": 1e-4}
"""Relative errors of differences near jumps of the second derivative of f."""


@dataclass
class Replay:
    """Draw once, then return the same points with the same intensities."""

    proposal: Proposal
    draws: list[Draws] = field(default_factory=list)

    def sample(self, inputs: ProposalInput, count: int, rng: np.random.Generator) -> Draws:
        """Return the first draws."""
        if not self.draws:
            self.draws.append(self.proposal.sample(inputs, count, rng))
        return self.draws[0]

    def log_intensity(self, inputs: ProposalInput, points: Tensor, count: int) -> Float[Tensor, "batch draw"]:
        """Return those of the proposal."""
        return self.proposal.log_intensity(inputs, points, count)


@dataclass(frozen=True)
class TwoBinaries:
    """The smallest problem with a relative temperature: two binaries and four points.

    The worst case of y is μ + √σ on each coordinate, since x >= 0 and the cost is linear.
    """

    theta: Tensor = field(default_factory=lambda: torch.tensor([[1.5, 1.1, 0.2, 0.4]], dtype=torch.float64))

    def case(self) -> Case:
        """Return it as a problem of the library."""
        y, x = dro.Uncertain(2), cp.Variable(2, boolean=True, name="x")
        problem = dro.DecisionProblem((y - 1.0) @ x, [], dro.MomentSet.grouped(y, 1))
        return Case(problem, self.theta, torch.tensor([[0.3, 1.7]], dtype=torch.float64), 1.0)

    def surrogate(self, theta: Tensor, temperature: Tensor) -> Tensor:
        """Compute Σ p(θ; λ) l in closed form."""
        points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        f = (theta[:, :2] - 1.0 + theta[:, 2:].sqrt()) @ points.T
        loss = points @ torch.tensor([-0.7, 0.7], dtype=torch.float64)
        return torch.softmax(-f / temperature[:, None], 1) @ loss


def integer_loss(case: Case) -> Callable[[dict], Tensor]:
    """Return a loss of the integers alone, so that differences need the digits of f only."""
    integers = case.problem.integer_variables

    def loss(x: dict) -> Tensor:
        flat = torch.cat([x[v].flatten(2) for v in integers], 2)
        return torch.cos(flat @ torch.arange(1.0, flat.shape[2] + 1, dtype=flat.dtype).sqrt())

    return loss


def gradient(case: Case, layer: dro.DROLayer, loss: Callable[[dict], Tensor]) -> tuple[dro.Decision, Tensor]:
    """Return a decision and the derivative of the sum of its surrogates by θ."""
    theta = case.theta.clone().requires_grad_()
    decision = case.decide(layer, theta)
    return decision, torch.autograd.grad(decision.expected(loss).sum(), theta)[0]


def differences(function: Callable[[Tensor], Tensor], theta: Tensor, step: float = 1e-3) -> Tensor:
    """Central differences of fourth order of a function of each item's own parameters."""
    numeric = torch.zeros_like(theta)
    for k in range(theta.shape[1]):
        shift = torch.zeros_like(theta)
        shift[:, k] = step
        with torch.no_grad():
            near, far = (function(theta + m * shift) - function(theta - m * shift) for m in (1, 2))
        numeric[:, k] = (8 * near - far) / (12 * step)
    return numeric


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def layer_of(case: Case, **settings: Any) -> dro.DROLayer:
    return dro.DROLayer(case.problem, engine=Interior(tolerance=1e-11), **settings)


# The gradient is the derivative of θ -> Σ p(θ; λ) l at the λ of the call.


def test_the_gradient_of_two_binaries_is_that_of_the_closed_form() -> None:
    example = TwoBinaries()
    case = example.case()
    decision, found = gradient(case, layer_of(case), case.loss)
    theta = case.theta.clone().requires_grad_()
    value = example.surrogate(theta, decision.temperature)
    (expected,) = torch.autograd.grad(value.sum(), theta)
    torch.testing.assert_close(decision.expected(case.loss), value, rtol=1e-9, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    numeric = differences(lambda t: example.surrogate(t, decision.temperature), case.theta)
    torch.testing.assert_close(found, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_enumerated_gradient_is_the_derivative_at_the_temperature_of_the_call(name: str) -> None:
    case = CASES[name]()
    loss = integer_loss(case)
    decision, found = gradient(case, layer_of(case, samples="all"), loss)
    fixed = layer_of(case, samples="all", temperature=decision.temperature)
    numeric = differences(lambda theta: case.decide(fixed, theta).expected(loss), case.theta)
    assert relative_error(found, numeric) < KINKED.get(name, 1e-5)


@pytest.mark.parametrize("name", ["SOC-II", "cardinality", "integers"])
@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_sampled_gradient_is_the_derivative_at_the_temperature_of_the_call(name: str, proposal: Proposal) -> None:
    case = CASES[name]()
    loss, replay = integer_loss(case), Replay(proposal)
    settings: dict[str, Any] = {"samples": 12, "enumerate_up_to": 0, "proposal": replay}
    decision, found = gradient(case, layer_of(case, **settings), loss)
    fixed = layer_of(case, temperature=decision.temperature, **settings)
    numeric = differences(lambda theta: case.decide(fixed, theta).expected(loss), case.theta)
    assert relative_error(found, numeric) < KINKED.get(name, 1e-5)


@pytest.mark.parametrize("name", ["SOC-II", "knapsack"])
@pytest.mark.parametrize("samples", ["all", 6])
def test_the_whole_loss_is_differentiated_at_the_temperature_of_the_call(name: str, samples: int | str) -> None:
    """Decisions are known to fewer digits than f, hence the tolerance of the existing test of the whole loss."""
    case = CASES[name]()
    settings: dict[str, Any] = {"samples": samples, "enumerate_up_to": 0, "proposal": Replay(Stratified())}
    decision, found = gradient(case, layer_of(case, **settings), case.loss)
    fixed = layer_of(case, temperature=decision.temperature, **settings)
    numeric = differences(lambda theta: case.decide(fixed, theta).expected(case.loss), case.theta, step=2e-3)
    assert relative_error(found, numeric) < 1e-3


# The temperature of a call, and a call at that temperature.


@pytest.mark.parametrize("name", ["SOC-II", "two-stage", "cardinality"])
def test_enumerated_temperature_is_the_mean_gap(name: str) -> None:
    case = CASES[name]()
    decision = case.decide(
        dro.DROLayer(case.problem, samples="all", temperature=dro.RelativeTemperature(0.4)), case.theta
    )
    gaps = decision.objective - decision.value[:, None]
    solved = decision.probabilities > 0
    torch.testing.assert_close(decision.temperature, 0.4 * torch.where(solved, gaps, 0.0).sum(1) / solved.sum(1))


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
@pytest.mark.parametrize("samples", ["all", 0, 7])
def test_a_layer_at_the_temperature_of_a_call_repeats_it(proposal: Proposal, samples: int | str) -> None:
    case = soc2()
    settings: dict[str, Any] = {"samples": samples, "enumerate_up_to": 0, "proposal": Replay(proposal)}
    decision, first = gradient(case, layer_of(case, **settings), case.loss)
    again, second = gradient(case, layer_of(case, temperature=decision.temperature, **settings), case.loss)
    assert torch.equal(again.temperature, decision.temperature)
    assert torch.equal(again.probabilities, decision.probabilities)
    assert torch.equal(again.expected(case.loss), decision.expected(case.loss))
    assert torch.equal(second, first)


def test_the_default_proposal_repeats_a_call_from_its_seed() -> None:
    case = CASES["cardinality"]()
    settings: dict[str, Any] = {"samples": 5, "enumerate_up_to": 0, "seed": 4}
    decision, first = gradient(case, layer_of(case, **settings), case.loss)
    again, second = gradient(case, layer_of(case, temperature=decision.temperature, **settings), case.loss)
    assert torch.equal(again.probabilities, decision.probabilities)
    assert torch.equal(second, first)


@pytest.mark.parametrize("proposal", PROPOSALS, ids=repr)
def test_intensities_are_constants(proposal: Proposal) -> None:
    """A proposal whose intensities carry a graph gives the same gradient."""

    class Graphed(Replay):
        def sample(self, inputs: ProposalInput, count: int, rng: np.random.Generator) -> Draws:
            draws = super().sample(inputs, count, rng)
            with torch.enable_grad():
                return Draws(draws.points, draws.log_intensity * scale, draws.valid)

    case, scale = soc2(), torch.ones((), dtype=torch.float64, requires_grad=True)
    settings: dict[str, Any] = {"samples": 6, "enumerate_up_to": 0}
    plain, graphed = Replay(proposal), Graphed(proposal)
    _, expected = gradient(case, layer_of(case, proposal=plain, **settings), case.loss)
    decision, found = gradient(case, layer_of(case, proposal=graphed, **settings), case.loss)
    assert torch.equal(found, expected)
    total = case.decide(layer_of(case, proposal=graphed, **settings), case.theta).expected(case.loss).sum()
    assert not total.requires_grad
    assert not decision.temperature.requires_grad


@pytest.mark.parametrize(
    "settings", [{"samples": "all"}, {"samples": 3, "enumerate_up_to": 0}, {"samples": 0}], ids=repr
)
def test_temperatures_of_a_batch_are_those_of_its_items(settings: dict) -> None:
    case = soc2()
    replay = Replay(Stratified())
    whole = case.decide(layer_of(case, proposal=replay, **settings), case.theta)
    assert whole.temperature.shape == (2,)
    assert whole.temperature.dtype == torch.float64
    assert dro.Decision.cat([whole, whole]).temperature.tolist() == whole.temperature.tolist() * 2
    for item in range(2):
        part = slice(item, item + 1)
        drawn = [Draws(d.points[part], d.log_intensity[part], d.valid[part]) for d in replay.draws]
        single = layer_of(case, proposal=Replay(Stratified(), drawn), **settings)(case.theta[part])
        torch.testing.assert_close(single.temperature, whole.temperature[part], rtol=1e-8, atol=0)


def test_evaluation_and_unsolved_items_have_positive_temperatures() -> None:
    case = soc2()
    theta = torch.cat([case.theta, case.theta[:1]])
    theta[2, -1] = -1.0
    for layer in (dro.DROLayer(case.problem), dro.DROLayer(case.problem).eval()):
        decision = layer(theta)
        assert decision.ok.tolist() == [True, True, False]
        assert bool((decision.temperature > 0).all())
        layer.temperature = decision.temperature
        again = layer(theta)
        assert torch.equal(again.probabilities, decision.probabilities)


def test_temperatures_of_items_fit_the_batch() -> None:
    case = soc2()
    layer = dro.DROLayer(case.problem, temperature=torch.ones(3))
    with pytest.raises(dro.ModelError, match="has 3 temperatures, but the batch has 2 items"):
        layer(case.theta)
    with pytest.raises(dro.ModelError, match="positive"):
        layer.temperature = torch.tensor([1.0, -1.0])


def test_temperatures_of_items_are_saved() -> None:
    case = soc2()
    heat = torch.tensor([2.0, 3.0])
    layer = dro.DROLayer(case.problem)
    layer.load_state_dict(dro.DROLayer(case.problem, temperature=heat).state_dict())
    assert torch.equal(layer.temperature, heat)


def test_without_integers_the_temperature_is_one() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(cp.sum_squares(x) - y @ x, [], dro.MomentSet.grouped(y, 1))
    theta = torch.tensor([[1.0, 2.0, 0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    for temperature in (3.0, dro.RelativeTemperature()):
        decision = dro.DROLayer(problem, temperature=temperature)(theta)
        assert decision.temperature.tolist() == [1.0]
        assert not decision.temperature.requires_grad

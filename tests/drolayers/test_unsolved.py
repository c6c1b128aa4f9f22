"""Unsolved items return NaN everywhere, with a zero gradient and one warning per layer; no mean is over nothing."""

from __future__ import annotations

import copy
import pickle
import warnings

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers.status import no_unsolved_warnings

y = dro.Uncertain(2, support=dro.support.Nonnegative(), name="y")
x = cp.Variable(2, nonneg=True, name="x")
take = cp.Variable(2, boolean=True, name="take")
COST = cp.sum(x) + 4 * cp.sum(cp.pos(y - x - 3 * take)) + 2 * cp.sum(take)
SET = dro.MomentSet(y, [dro.moments.SquaredNorm()])
MIXED = dro.DecisionProblem(COST, [x <= 9], SET)
CONTINUOUS = dro.DecisionProblem(cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [x <= 9], SET)
PROBLEMS = pytest.mark.parametrize("problem", [CONTINUOUS, MIXED], ids=["continuous", "mixed"])
OUTCOMES = torch.tensor([[4.0, 5.0], [6.0, 3.0], [5.0, 5.0]], dtype=torch.float64)
EMPTY = torch.tensor([False, True, False])
"""Of the items of ``theta``, the one whose set is empty."""


def theta(empty: Tensor = EMPTY) -> Tensor:
    """Centres and radii; the radius of an empty set is negative."""
    radius = torch.where(empty, -1.0, 2.0).double()
    return torch.cat([OUTCOMES[: len(empty)] + 0.5, radius[:, None]], 1)


def unsolved(layer: dro.DROLayer, parameters: Tensor) -> dro.Decision:
    """Decide without the warning."""
    with no_unsolved_warnings():
        decision: dro.Decision = layer(parameters)
    return decision


class Predicted(torch.nn.Module):
    """A linear model whose radius is that of ``theta``, whatever its weights."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.linear = torch.nn.Linear(1, 3).double()
        with torch.no_grad():
            self.linear.weight.copy_(0.1 * torch.randn(3, 1, generator=generator))
            self.linear.bias.copy_(torch.tensor([5.0, 5.0, 0.0]))

    def forward(self, z: Tensor, empty: Tensor) -> Tensor:
        shift = torch.where(empty, -3.0, 2.0).double()[:, None] * torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
        predicted: Tensor = self.linear(z) + shift
        return predicted


@PROBLEMS
def test_training_on_empty_sets_raises(problem: dro.DecisionProblem) -> None:
    layer, model = dro.DROLayer(problem), Predicted()
    z, empty = torch.linspace(0.0, 1.0, 3, dtype=torch.float64)[:, None], torch.ones(3, dtype=torch.bool)
    with pytest.warns(dro.UnsolvedItemsWarning, match=r"3 of 3 items were not solved: 3 EMPTY_SET \(items 0, 1, 2\)"):
        decision = layer(model(z, empty))
    with pytest.raises(dro.SolveError, match=r"3 EMPTY_SET .*dro\.Projection") as caught:
        decision.mean(lambda chosen: problem.loss(chosen, OUTCOMES))
    assert caught.value.items == dict.fromkeys(range(3), dro.Status.EMPTY_SET)


@PROBLEMS
@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_unsolved_items_are_nan_everywhere(problem: dro.DecisionProblem, mode: bool) -> None:
    layer, ok = dro.DROLayer(problem).train(mode), ~EMPTY
    decision = unsolved(layer, theta())

    def loss(chosen: dict[cp.Variable, Tensor]) -> Tensor:
        return problem.loss(chosen, OUTCOMES)

    expected = decision.expected(loss)
    returned = [decision.value, expected, decision.objective, decision.effective_sample_size, *decision.best.values()]
    for values in returned:
        assert (values.reshape(3, -1).isfinite().all(1) == ok).all()
        assert (values.reshape(3, -1).isnan().all(1) == ~ok).all()
    assert expected.mean().isnan()
    assert (decision.probabilities[~ok] == 0).all()
    assert all(values.isfinite().all() for values in decision.candidates.values())
    mean, count = decision.mean(loss)
    assert count == 2
    torch.testing.assert_close(mean, expected[ok].mean())
    alone = unsolved(dro.DROLayer(problem).train(mode), theta()[ok])
    torch.testing.assert_close(mean, alone.mean(lambda chosen: problem.loss(chosen, OUTCOMES[ok]))[0])


@PROBLEMS
def test_unsolved_items_have_a_zero_gradient(problem: dro.DecisionProblem) -> None:
    parameters = theta().requires_grad_()
    layer = dro.DROLayer(problem, gradient="smoothed")
    decision = unsolved(layer, parameters)
    total = decision.expected(lambda chosen: problem.loss(chosen, OUTCOMES)).nansum() + decision.value.nansum()
    total = total + sum(values.nansum() for values in decision.best.values()) + decision.objective.nansum()
    (gradient,) = torch.autograd.grad(total, parameters)
    assert (gradient[EMPTY] == 0).all()
    assert (gradient[~EMPTY] != 0).any(1).all()
    assert gradient.isfinite().all()


@PROBLEMS
@pytest.mark.parametrize("reduce", ["mean", "nansum"])
def test_no_nan_reaches_shared_weights(problem: dro.DecisionProblem, reduce: str) -> None:
    """A model in front of the layer and a weight within the loss are shared by solved and unsolved items."""
    model, weight = Predicted(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    z, layer = torch.linspace(0.0, 1.0, 3, dtype=torch.float64)[:, None], dro.DROLayer(problem, gradient="smoothed")

    def gradients(rows: Tensor) -> list[Tensor]:
        def loss(chosen: dict[cp.Variable, Tensor]) -> Tensor:
            # The square root has no derivative at zero, where a placeholder must not stand.
            return (weight * sum(values.sum(-1) for values in chosen.values())).sqrt()

        decision = unsolved(layer, model(z[rows], EMPTY[rows]))
        if reduce == "mean":
            mean, count = decision.mean(loss)
            total = mean * count
        else:
            total = decision.expected(loss).nansum()
        return list(torch.autograd.grad(total, [*model.parameters(), weight]))

    layer.eval()
    with torch.autograd.detect_anomaly(check_nan=True):
        together = gradients(torch.arange(3))
    for mixed, alone in zip(together, gradients(torch.tensor([0, 2])), strict=True):
        torch.testing.assert_close(mixed, alone, rtol=1e-6, atol=1e-9)


def test_known_data_and_atoms_of_unsolved_items_have_a_zero_gradient() -> None:
    price = cp.Parameter(nonneg=True, name="price")
    problem = dro.DecisionProblem(
        price * cp.sum(x) + 4 * cp.sum(cp.pos(y - x)), [x <= 9], dro.Wasserstein(y, 2, norm=1)
    )
    atoms = torch.stack([OUTCOMES[:2], OUTCOMES[1:], OUTCOMES[:2]]).requires_grad_()
    weights = torch.full((3, 2), 0.5, dtype=torch.float64, requires_grad=True)
    radius = torch.tensor([[0.1], [-1.0], [0.2]], dtype=torch.float64, requires_grad=True)
    prices = torch.tensor([1.0, 1.5, 1.2], dtype=torch.float64, requires_grad=True)
    with no_unsolved_warnings():
        decision = dro.DROLayer(problem, gradient="smoothed")(radius, (atoms, weights), {"price": prices})
    assert decision.ok.tolist() == [True, False, True]
    total = (
        decision.value.nansum()
        + decision.expected(lambda chosen: problem.loss(chosen, OUTCOMES, known={"price": prices})).nansum()
    )
    for gradient in torch.autograd.grad(total, [radius, atoms, weights, prices]):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()
        assert (gradient[[0, 2]] != 0).any()


def test_mean_of_an_empty_batch_raises() -> None:
    decision = dro.DROLayer(CONTINUOUS)(theta()[:0])
    with pytest.raises(dro.SolveError, match="0 of 0 items"):
        decision.mean(lambda chosen: CONTINUOUS.loss(chosen, OUTCOMES[:0]))


def warned(layer: dro.DROLayer, parameters: Tensor | None = None) -> list[str]:
    """The sentences of one call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(theta() if parameters is None else parameters)
    return [str(one.message) for one in caught if issubclass(one.category, dro.UnsolvedItemsWarning)]


@PROBLEMS
def test_a_layer_warns_once(problem: dro.DecisionProblem) -> None:
    layer = dro.DROLayer(problem)
    assert not warned(layer, theta()[~EMPTY])
    (message,) = warned(layer)
    assert "1 of 3 items were not solved: 1 EMPTY_SET (item 1)" in message
    assert dro.Status.EMPTY_SET.advice in message
    assert not warned(layer)
    # Other layers warn for themselves, whether made, copied or sent to another process.
    copies = [dro.DROLayer(problem), layer.twin(), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert all(len(warned(one)) == 1 for one in copies)
    assert not warned(layer)


def test_the_warning_points_to_the_caller() -> None:
    with pytest.warns(dro.UnsolvedItemsWarning) as caught:
        dro.DROLayer(CONTINUOUS)(theta())
    assert caught[0].filename == __file__


def test_a_layer_that_raises_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(dro.SolveError, match=r"1 of 3 items were not solved: 1 EMPTY_SET \(item 1\)"):
            dro.DROLayer(CONTINUOUS, on_failure="raise")(theta())


def test_a_call_that_reports_in_another_way_does_not_use_the_warning_up() -> None:
    layer = dro.DROLayer(CONTINUOUS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unsolved(layer, theta())
    assert len(warned(layer)) == 1


def test_solve_errors_survive_pickling() -> None:
    with pytest.raises(dro.SolveError) as caught:
        CONTINUOUS.solve(theta(), on_failure="raise")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.items == caught.value.items == {1: dro.Status.EMPTY_SET}

"""Mean and covariance: against the closed form, a semidefinite program written out, and a program over grids."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers.oracles import BranchAndBound, Enumeration
from drolayers import Status
from drolayers import support as s
from drolayers.learning.pretraining import GaussianLoss
from tests.drolayers.reformulation.differences import analytic, central, gap

DIM = 3
A = np.array([[1.0, 0.5, -0.2], [-0.6, 1.0, 0.3], [0.2, -1.2, 0.7]])
B = np.array([[-1.0, 0.0, 0.4], [0.4, -1.0, 0.1], [0.5, 0.8, -0.6]])


def draw(batch: int, size: float = 1.0, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    factor = 0.5 * np.eye(DIM) + 0.2 * rng.normal(size=(batch, DIM, DIM))
    parts = {
        "mu": size * rng.uniform(1.0, 2.0, (batch, DIM)),
        "factor": size * factor,
        "gamma1": rng.uniform(0.1, 0.3, batch),
    }
    return {name: torch.as_tensor(value) for name, value in parts.items()}


def problem(pieces: int, support: s.Support | None = None, **given: object) -> tuple[dro.DecisionProblem, cp.Variable]:
    y, x = dro.Uncertain(DIM, support=support), cp.Variable(DIM)
    cost = cp.max(A[:pieces] @ y + B[:pieces] @ x) + cp.sum_squares(x)
    return dro.DecisionProblem(cost, [], dro.MeanCovariance(y, **given)), x


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_two_pieces_in_closed_form(size: float) -> None:
    """The mean given, on all of space: ½(sum) + ½√(difference² + variance of the difference)."""
    here, x = problem(2, gamma1=0.0)
    parts = draw(4, size)
    del parts["gamma1"]
    decision = torch.as_tensor(size * np.random.default_rng(1).normal(size=(4, DIM)))
    found = here.worst_case_cost({x: decision}, parts)
    mean = parts["mu"] @ torch.as_tensor(A[:2]).T + decision @ torch.as_tensor(B[:2]).T
    across = parts["factor"].mT @ torch.as_tensor(A[0] - A[1])
    root = ((mean[:, 0] - mean[:, 1]) ** 2 + across.square().sum(1)).sqrt()
    torch.testing.assert_close(found, 0.5 * (mean.sum(1) + root) + decision.square().sum(1), rtol=1e-6, atol=0.0)


def test_one_piece_in_closed_form() -> None:
    """A single piece sees the smaller of both bounds."""
    parts = draw(2)
    for gamma2 in (0.05, 2.0):
        here, x = problem(1, gamma2=gamma2)
        assert not here.program.cones.psd
        found = here.worst_case_cost({x: torch.zeros(2, DIM)}, parts)
        reach = parts["gamma1"].clamp(max=gamma2).sqrt()
        length = (parts["factor"].mT @ torch.as_tensor(A[0])).norm(dim=1)
        torch.testing.assert_close(found, parts["mu"] @ torch.as_tensor(A[0]) + reach * length)


def by_hand(parts: dict[str, Tensor], x: np.ndarray, ends: tuple[float, float], item: int, gamma2: float) -> float:
    """Delage and Ye's dual on a box, with multipliers of its ends written out."""
    mu, L = parts["mu"][item].numpy(), parts["factor"][item].numpy()
    Q, q, r = cp.Variable((DIM, DIM), PSD=True), cp.Variable(DIM), cp.Variable()
    rows = []
    for a, b in zip(A, B @ x, strict=True):
        low, high = cp.Variable(DIM, nonneg=True), cp.Variable(DIM, nonneg=True)
        w = high - low
        half = cp.reshape(L.T @ (a - w) - q, (DIM, 1), order="F") / 2
        corner = r - b - (a - w) @ mu - ends[1] * cp.sum(high) + ends[0] * cp.sum(low)
        rows.append(cp.bmat([[Q, half], [half.T, cp.reshape(corner, (1, 1), order="F")]]) >> 0)
    price = r + gamma2 * cp.trace(Q) + float(parts["gamma1"][item]) ** 0.5 * cp.norm(q, 2)
    return float(cp.Problem(cp.Minimize(price), rows).solve(solver=cp.CLARABEL) + x @ x)


def test_a_semidefinite_program_by_hand() -> None:
    ends, gamma2 = (0.6, 2.6), 1.3
    here, x = problem(3, s.Box(*ends), gamma2=gamma2)
    parts = draw(2)
    solution = here.solve(parts)
    assert solution.statuses == [Status.OPTIMAL] * 2
    decision = solution.variable(x).detach()
    found = here.worst_case_cost({x: decision}, parts)
    torch.testing.assert_close(found, solution.objective, rtol=1e-6, atol=1e-6)
    worst = here.worst_case_distribution({x: decision}, parts)
    used, bounds = here.ambiguity.usage(here.ambiguity.pack(parts), None, worst.mass)
    assert bool((used <= bounds + 1e-6).all())
    for item in range(2):
        assert float(found[item]) == pytest.approx(by_hand(parts, decision[item].numpy(), ends, item, gamma2), rel=1e-6)


def test_gradients_in_all_parameters() -> None:
    here, x = problem(3, s.Box(0.6, 2.6), gamma2=None)
    parts = {**draw(1), "gamma2": torch.tensor([1.3], dtype=torch.float64)}
    theta = here.ambiguity.pack(parts)[0]

    def optimum(at: Tensor) -> Tensor:
        solution = here.solve(at)
        return torch.cat([solution.variable(x), solution.objective[:, None]], 1)

    found, expected = analytic(optimum, theta), central(optimum, theta, 1e-3)
    assert float(expected.abs().amax(0).min()) > 1e-4
    assert gap(found, expected) < 5e-4


def test_constraints() -> None:
    """Closed forms on all of space: the expectation, and Chebyshev's CVaR and chance with the mean given."""
    y, x = dro.Uncertain(DIM), cp.Variable()
    a, level = A[0], 0.9
    parts = draw(1)
    mean = float(parts["mu"][0].numpy() @ a)
    length = float(np.linalg.norm(parts["factor"][0].numpy().T @ a))
    del parts["gamma1"]
    tail = mean + length * (level / (1 - level)) ** 0.5
    for rule, expected in (
        (dro.expected(a @ y) <= x, mean),
        (dro.cvar(a @ y, level) <= x, tail),
        (dro.chance(a @ y <= x, level), tail),
    ):
        here = dro.DecisionProblem(x, [rule], dro.MeanCovariance(y, gamma1=0.0))
        assert here.exact[rule]
        assert float(here.solve(parts).objective) == pytest.approx(expected, rel=1e-5)
    boxed = dro.Uncertain(DIM, support=s.Box(0.0, 3.0))
    always = dro.DecisionProblem(x, [dro.always(boxed[0] <= x)], dro.MeanCovariance(boxed, gamma1=0.0))
    assert float(always.solve(parts).objective) == pytest.approx(3.0, rel=1e-6)


def test_integers() -> None:
    y, x = dro.Uncertain(2, support=s.Nonnegative()), cp.Variable(2, boolean=True)
    here = dro.DecisionProblem(
        cp.sum(x) + cp.sum(cp.maximum(3 * (y - 2 * x), 2 * x - y)), [], dro.MeanCovariance(y, gamma1=0.1)
    )
    parts = {"mu": torch.tensor([[1.2, 0.8]]).double(), "factor": 0.5 * torch.eye(2).double()[None]}
    found = [dro.DROLayer(here, oracle=oracle).eval()(parts).value for oracle in (Enumeration(), BranchAndBound())]
    every = torch.as_tensor(list(product((0.0, 1.0), repeat=2))).double()
    values = here.worst_case_cost(
        {x: every}, {name: value.expand(4, *value.shape[1:]) for name, value in parts.items()}
    )
    for best in found:
        torch.testing.assert_close(best[0], values.min(), rtol=1e-6, atol=1e-6)


def test_statuses() -> None:
    here, _ = problem(3, s.Nonnegative())
    parts = draw(3)
    parts["mu"][1] = -5.0
    parts["gamma1"][2] = -0.1
    assert here.solve(parts).statuses == [Status.OPTIMAL, Status.EMPTY_SET, Status.EMPTY_SET]
    # As far outside as the ellipsoid of means reaches, and a little more.
    ambiguity = dro.MeanCovariance(dro.Uncertain(1, support=s.Nonnegative()), factor=2.0, gamma1=0.25)
    away = ambiguity.emptiness(torch.tensor([[-0.9], [-1.1], [0.1]]).double(), None)
    np.testing.assert_allclose(away.numpy(), [-0.1, 0.1, -1.0], atol=1e-6)


def test_scales() -> None:
    here, x = problem(3)
    ambiguity, theta = here.ambiguity, here.ambiguity.pack(draw(2))
    twice = ambiguity.unpack(ambiguity.scaled(theta, torch.tensor([1.0, 2.0])))
    torch.testing.assert_close(twice["factor"][1], 2 * draw(2)["factor"][1])
    torch.testing.assert_close(twice["mu"], draw(2)["mu"])
    decision = {x: torch.zeros(2, DIM)}
    small, large = (here.worst_case_cost(decision, ambiguity.scaled(theta, t)) for t in (1.0, 1.5))
    assert bool((small < large).all())


# --- Projection and learning ------------------------------------------------------------------------------------------


def around(batch: int) -> dro.Nominal:
    rng = np.random.default_rng(4)
    atoms, weights = rng.uniform(0.5, 2.5, (batch, 6, DIM)), rng.uniform(0.1, 1.0, (batch, 6))
    return dro.Nominal(torch.as_tensor(atoms), torch.as_tensor(weights / weights.sum(1, keepdims=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "given", [{}, {"gamma1": 0.0}, {"gamma1": 0.01}, {"gamma2": None}, {"gamma1": 0.01, "mu": np.ones(DIM)}], ids=str
)
def test_it_holds_the_nominal_distribution(given: dict[str, object], dtype: torch.dtype) -> None:
    ambiguity, nominal = dro.MeanCovariance(dro.Uncertain(DIM), **given), around(4)
    parts = {**draw(4), "gamma2": torch.full((4,), 0.7).double()}
    theta = ambiguity.pack({name: parts[name] for name in ambiguity.parameters}).to(dtype)
    # One that is fine already.
    theta[0] = ambiguity.pack(
        {n: v[:1] for n, v in {**parts, "factor": 9 * parts["factor"]}.items() if n in ambiguity.parameters}
    )[0]
    projection = dro.Projection(ambiguity, margin=1e-3)
    found = projection(theta, nominal)
    assert projection.last.statuses == [Status.OPTIMAL] * 4
    values = ambiguity.values(found)
    first, second = ambiguity.used(found, nominal.atoms, nominal.weights)
    room = 1e-9 if given.get("gamma1") != 0.0 else 1e-6
    assert bool((first <= values["gamma1"] + room).all())
    assert bool((second <= values["gamma2"]).all())
    torch.testing.assert_close(projection(found, nominal), found, rtol=1e-5, atol=1e-6)
    if not given:
        assert torch.equal(found[0], theta[0])
        at = (theta.double().requires_grad_(), nominal.atoms.clone().requires_grad_())
        assert torch.autograd.gradcheck(lambda t, a: projection(t, (a, nominal.weights)), at)


def test_what_cannot_hold_it_says_so() -> None:
    given = {name: value[0].numpy() for name, value in draw(1).items() if name != "gamma1"}
    ambiguity = dro.MeanCovariance(dro.Uncertain(DIM), **{**given, "factor": 0.01 * given["factor"]})
    with pytest.warns(UserWarning, match="was given mu, factor, gamma2, with which"):
        dro.Projection(ambiguity)(torch.ones(1, 1).double(), around(1))


def test_the_fit_is_mean_and_covariance() -> None:
    rng = np.random.default_rng(6)
    data = torch.as_tensor(2.0 + rng.normal(size=(400, DIM)) @ rng.normal(size=(DIM, DIM)))
    ambiguity = dro.MeanCovariance(dro.Uncertain(DIM))
    parts = {name: value.centre[None] for name, value in ambiguity.typical(data).items()}
    parts["factor"] = torch.linalg.cholesky(torch.cov(data.T, correction=0))[None]
    theta = ambiguity.pack(parts).requires_grad_()
    nominal = data[None], torch.full((1, 400), 1 / 400, dtype=torch.float64)
    GaussianLoss(ambiguity, data)(theta, nominal, "both").backward()
    assert float(theta.grad.abs().max()) < 1e-9


def test_it_is_learnt() -> None:
    from tests.drolayers.learning.small import learner, sales

    y, x = dro.Uncertain(2, support=s.Nonnegative()), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y))
    here = dro.DecisionProblem(cost, [], dro.MeanCovariance(y))
    fitted = learner(here).fit(*sales())
    assert np.isfinite(fitted.score(*sales(seed=1)))
    assert list(fitted.history_) == ["prediction", "decision"]


def test_bad_settings_are_one_sentence() -> None:
    y = dro.Uncertain(2)
    with pytest.raises(dro.ModelError, match="gamma1 must be no negative number, not -1"):
        dro.MeanCovariance(y, gamma1=-1.0)
    with pytest.raises(dro.ModelError, match="gamma2 must be a positive number, not 0"):
        dro.MeanCovariance(y, gamma2=0.0)
    with pytest.raises(dro.ModelError, match=r"mu must have shape \(2,\), not \(3,\)"):
        dro.MeanCovariance(y, mu=np.ones(3))
    with pytest.raises(dro.ModelError, match=r"needs a dro\.Uncertain, not int"):
        dro.MeanCovariance(3)

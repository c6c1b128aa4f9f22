"""Robust outcomes: against vertices and programs over y itself, and what becomes of shapes that miss the support."""

from __future__ import annotations

from itertools import product
from typing import Any

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

SHAPES = ["box", "ellipsoid", "budget"]
BUDGET = 1.7
DIM = 3


def shape(y: dro.Uncertain, kind: str, **given: Any) -> dro.Outcomes:
    return dro.Outcomes(y, kind, BUDGET if kind == "budget" else None, **given)


def draw(kind: str, batch: int, size: float = 1.0, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    centre = size * rng.uniform(1.0, 2.0, (batch, DIM))
    width = size * rng.uniform(0.2, 0.8, (batch, DIM))
    factor = np.stack([np.diag(w) + 0.2 * size * rng.normal(size=(DIM, DIM)) for w in width])
    parts = {"centre": centre, **({"factor": factor} if kind == "ellipsoid" else {"radius": width})}
    return {name: torch.as_tensor(value) for name, value in parts.items()}


def members(kind: str, parts: dict[str, Tensor], y: cp.Variable) -> list[cp.Constraint]:
    """That y lies in the shape, as one writes it down."""
    centre, u = parts["centre"][0].numpy(), cp.Variable(DIM)
    if kind == "ellipsoid":
        return [y == centre + parts["factor"][0].numpy() @ u, cp.norm(u, 2) <= 1]
    rows = [y == centre + cp.multiply(parts["radius"][0].numpy(), u), cp.norm(u, "inf") <= 1]
    return rows + ([cp.norm(u, 1) <= BUDGET] if kind == "budget" else [])


def extreme(kind: str, parts: dict[str, Tensor]) -> np.ndarray:
    """All vertices of a box or a budget."""
    if kind == "box":
        corners = np.array(list(product((-1.0, 1.0), repeat=DIM)))
    else:
        # One coordinate at an end, another at what the budget leaves.
        pairs = [(i, j) for i in range(DIM) for j in range(DIM) if i != j]
        corners = np.zeros((4 * len(pairs), DIM))
        for k, ((i, j), a, b) in enumerate(product(pairs, (-1, 1), (-1, 1))):
            corners[k, i], corners[k, j] = a, b * (BUDGET - 1)
    return parts["centre"][0].numpy() + parts["radius"][0].numpy() * corners


def newsvendor(kind: str, support: s.Support | None = None, **given: Any) -> tuple[dro.DecisionProblem, cp.Variable]:
    y, x = dro.Uncertain(DIM, support=support), cp.Variable(DIM, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), x - y)) + 0.1 * cp.sum_squares(x)
    return dro.DecisionProblem(cost, [], shape(y, kind, **given)), x


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("kind", ["box", "budget"])
def test_the_worst_is_a_vertex(kind: str, size: float) -> None:
    parts = draw(kind, 1, size)
    y, x = dro.Uncertain(DIM), cp.Variable(DIM, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(3 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], shape(y, kind))
    solution = problem.solve(parts)
    corners = extreme(kind, parts) / size
    losses = [cp.sum(cp.maximum(3 * (corner - x), x - corner)) for corner in corners]
    direct = cp.Problem(cp.Minimize(cp.sum(x) + cp.max(cp.hstack(losses)))).solve(solver=cp.CLARABEL)
    assert solution.statuses == [Status.OPTIMAL]
    assert float(solution.objective) == pytest.approx(size * direct, rel=1e-6)
    found = problem.worst_case_distribution({x: solution.variable(x).detach()}, parts)
    used, bounds = problem.ambiguity.usage(problem.ambiguity.pack(parts), None, found.mass)
    assert float(used) <= float(bounds) + 1e-6


@pytest.mark.parametrize("support", [s.Box(0.9, 2.0), s.Polyhedron(np.ones((1, DIM)), [4.2])], ids=["box", "plane"])
@pytest.mark.parametrize("kind", SHAPES)
def test_within_the_support(kind: str, support: s.Support) -> None:
    """One program over y for every piece of the cost."""
    parts = draw(kind, 1)
    problem, x = newsvendor(kind, support)
    solution = problem.solve(parts)
    at = {x: solution.variable(x).detach()}
    given, y, values = at[x][0].numpy(), cp.Variable(DIM), []
    for side in product((0, 1), repeat=DIM):
        pieces = [3 * (y[i] - given[i]) if up else given[i] - y[i] for i, up in enumerate(side)]
        inside = [*members(kind, parts, y), *support.members(cp.reshape(y, (1, DIM), order="C"))]
        values.append(cp.Problem(cp.Maximize(sum(pieces)), inside).solve(solver=cp.CLARABEL))
    direct = given.sum() + max(values) + 0.1 * given @ given
    assert float(problem.worst_case_cost(at, parts)) == pytest.approx(direct, rel=1e-6)
    assert float(solution.objective) == pytest.approx(direct, rel=1e-6)


@pytest.mark.parametrize("kind", SHAPES)
def test_every_constraint_is_for_every_outcome(kind: str) -> None:
    """Outcomes that are certain leave no room between always, expected, cvar and chance."""
    y, x = dro.Uncertain(DIM, support=s.Box(0.0, 1.9)), cp.Variable(DIM)
    parts, price = draw(kind, 1), np.array([1.0, 2.0, 0.5])
    loss = price @ (y - x)
    rules = [dro.always(loss <= 1), dro.expected(loss) <= 1, dro.cvar(loss, 0.7) <= 1, dro.chance(loss <= 1, 0.9)]
    own, found = cp.Variable(DIM), []
    inside = [*members(kind, parts, own), own >= 0, own <= 1.9]
    worst = cp.Problem(cp.Maximize(price @ own), inside).solve(solver=cp.CLARABEL)
    direct = cp.Problem(cp.Minimize(cp.sum_squares(x)), [worst - price @ x <= 1]).solve(solver=cp.CLARABEL)
    for rule in rules:
        problem = dro.DecisionProblem(cp.sum_squares(x) + 0.0 * y[0], [rule], shape(y, kind))
        assert problem.exact[rule]
        found.append(float(problem.solve(parts).objective))
    np.testing.assert_allclose(found, direct, rtol=1e-6)


def test_a_joint_constraint_sees_the_whole_shape() -> None:
    """Two maxima on two coordinates: an ellipsoid cannot be at its end in both."""
    y, x = dro.Uncertain(2), cp.Variable()
    problem = dro.DecisionProblem(
        x, [dro.always(cp.abs(y[0]) + cp.abs(y[1]) <= x)], dro.Outcomes(y, "ellipsoid", centre=np.zeros(2))
    )
    found = problem.solve({"factor": torch.eye(2).double()[None]})
    assert float(found.objective) == pytest.approx(2**0.5, rel=1e-6)


@pytest.mark.parametrize("kind", SHAPES)
def test_scores_and_scales(kind: str) -> None:
    ambiguity = shape(dro.Uncertain(DIM), kind)
    theta = ambiguity.pack(draw(kind, 4))
    outcomes = torch.as_tensor(np.random.default_rng(2).normal(1.5, 1.0, (4, DIM)))
    found = ambiguity.scores(theta, outcomes)
    # Scaled by its score, a shape has the outcome on its edge; scaled by two, the score is half.
    torch.testing.assert_close(ambiguity.scores(ambiguity.scaled(theta, found), outcomes), torch.ones(4).double())
    torch.testing.assert_close(ambiguity.scores(ambiguity.scaled(theta, 2.0), outcomes), found / 2)
    y = cp.Variable(DIM)
    for t, inside in ((1.001, True), (0.999, False)):
        parts = ambiguity.unpack(ambiguity.scaled(theta[:1], t * found[:1]))
        near = cp.Problem(cp.Minimize(cp.norm(y - outcomes[0].numpy(), 2)), members(kind, parts, y))
        assert (near.solve(solver=cp.CLARABEL) < 1e-6) == inside
    assert torch.autograd.gradcheck(ambiguity.scores, (theta.requires_grad_(), outcomes.requires_grad_()))
    assert torch.autograd.gradcheck(ambiguity.scaled, (theta, torch.rand(4).double().requires_grad_()))
    fixed = shape(dro.Uncertain(DIM), kind, **{ambiguity.extent: draw(kind, 1)[ambiguity.extent][0].numpy()})
    with pytest.raises(dro.ModelError, match="cannot be scaled"):
        fixed.scaled(theta.detach()[:, :DIM], 2.0)


@pytest.mark.parametrize(
    "support", [s.Nonnegative(), s.Conic([np.eye(DIM), np.eye(DIM)[:1]], [np.zeros(DIM), [0.0]])], ids=["box", "cone"]
)
@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_beside_the_support_is_empty(kind: str, support: s.Support) -> None:
    y, x = dro.Uncertain(DIM, support=support), cp.Variable(DIM)
    always = dro.DecisionProblem(cp.sum_squares(x), [dro.always(x >= y)], shape(y, kind))
    cost = dro.DecisionProblem(cp.sum(cp.pos(y - x)) + cp.sum_squares(x), [], shape(y, kind))
    parts = draw(kind, 3)
    size = {name: value.clone() for name, value in parts.items()}
    # Inside the cone, on the other side, and at its tip.
    size["centre"][:, 2] *= 3.0
    size["centre"][1] *= -1.0
    size["centre"][2] = 0.0
    for problem in (always, cost):
        statuses = problem.solve(size).statuses
        assert [status.ok for status in statuses] == [True, False, True]
        assert statuses[1] == Status.EMPTY_SET
    if kind != "ellipsoid":
        size["radius"][0, 1] = -0.1
        assert cost.solve(size).statuses[0] == Status.EMPTY_SET


@pytest.mark.parametrize("kind", SHAPES)
def test_the_support_of_the_day(kind: str) -> None:
    """Ends that are known data: as with constants, empty where the shape is elsewhere, and met again once projected."""
    low, high = cp.Parameter(DIM, name="low"), cp.Parameter(DIM, name="high")
    problem, _ = newsvendor(kind, s.Box(low, high))
    parts, ends = draw(kind, 2), ((1.1, 2.2), (5.0, 6.0))
    known = {name: torch.tensor([[end[k]] * DIM for end in ends]) for k, name in enumerate(("low", "high"))}
    solution = problem.solve(parts, known=known)
    assert solution.statuses == [Status.OPTIMAL, Status.EMPTY_SET]
    alone, _ = newsvendor(kind, s.Box(*ends[0]))
    torch.testing.assert_close(solution.objective[0], alone.solve(parts).objective[0], rtol=1e-6, atol=1e-6)
    projected = dro.Projection(problem.ambiguity, margin=1e-3)(parts, around(2), known)
    assert problem.solve(projected, known=known).statuses == [Status.OPTIMAL] * 2


@pytest.mark.parametrize("kind", SHAPES)
def test_the_worst_outcome_of_a_constraint(kind: str) -> None:
    y, x = dro.Uncertain(DIM, support=s.Nonnegative()), cp.Variable(DIM)
    rule, parts = dro.always(cp.sum(y) <= cp.sum(x)), draw(kind, 1)
    problem = dro.DecisionProblem(cp.sum_squares(x), [rule], shape(y, kind))
    at = {x: problem.solve(parts).variable(x).detach()}
    worst = problem.worst_case_distribution(at, parts, of=rule)
    assert float(problem.worst_case(at, parts, of=rule)) == pytest.approx(0.0, abs=1e-6)
    assert float(worst.atoms[0, 0].sum() - at[x].sum()) == pytest.approx(0.0, abs=1e-6)
    assert float(problem.ambiguity.scores(problem.ambiguity.pack(parts), worst.atoms[:, 0])) <= 1.0 + 1e-6


def test_a_matrix_of_outcomes() -> None:
    y, x, centre = dro.Uncertain((2, 2)), cp.Variable(2), np.arange(4.0).reshape(2, 2)
    problem = dro.DecisionProblem(
        cp.sum(cp.maximum(y @ np.ones(2) - x, 0)) + cp.sum(x), [], dro.Outcomes(y, centre=centre)
    )
    radius = torch.full((1, 2, 2), 0.5).double()
    assert float(problem.solve({"radius": radius}).objective) == pytest.approx(centre.sum() + 2.0, rel=1e-6)
    assert float(problem.ambiguity.scores(problem.ambiguity.pack({"radius": radius}), radius)) == 5.0


def test_a_point_is_a_shape() -> None:
    problem, x = newsvendor("box", s.Nonnegative())
    parts = draw("box", 1)
    parts["radius"] = torch.zeros_like(parts["radius"])
    solution = problem.solve(parts)
    assert solution.statuses == [Status.OPTIMAL]
    best = problem.loss({x: solution.variable(x)}, parts["centre"])
    torch.testing.assert_close(best, solution.objective)


def test_what_is_given_is_not_learnt() -> None:
    given = {name: value[0].numpy() for name, value in draw("ellipsoid", 1).items()}
    learnt, _ = newsvendor("ellipsoid")
    centred, _ = newsvendor("ellipsoid", centre=given["centre"])
    sized, _ = newsvendor("ellipsoid", factor=given["factor"])
    assert list(centred.ambiguity.parameters) == ["factor"]
    assert list(sized.ambiguity.parameters) == ["centre"]
    parts = {name: torch.as_tensor(value)[None] for name, value in given.items()}
    value = learnt.solve(parts).objective
    torch.testing.assert_close(centred.solve({"factor": parts["factor"]}).objective, value)
    torch.testing.assert_close(sized.solve({"centre": parts["centre"]}).objective, value)


def test_integers() -> None:
    """Lots: the best of all eight, each in its worst case."""
    for kind in SHAPES:
        y, x = dro.Uncertain(DIM, support=s.Nonnegative()), cp.Variable(DIM, boolean=True)
        problem = dro.DecisionProblem(cp.sum(x) + cp.sum(cp.maximum(3 * (y - 2 * x), 2 * x - y)), [], shape(y, kind))
        parts = draw(kind, 2)
        found = [
            dro.DROLayer(problem, oracle=oracle).eval()(parts).value for oracle in (Enumeration(), BranchAndBound())
        ]
        every = torch.as_tensor(list(product((0.0, 1.0), repeat=DIM)))
        for item in range(2):
            mine = {name: value[item : item + 1].expand(8, *value.shape[1:]) for name, value in parts.items()}
            best = problem.worst_case_cost({x: every.double()}, mine).min()
            for value in found:
                torch.testing.assert_close(value[item], best, rtol=1e-6, atol=1e-6)


def test_a_rule_for_every_outcome() -> None:
    """A decision rule bounds the worst second stage over the shape; over all of space there would be none."""
    for kind in SHAPES:
        y, x = dro.Uncertain(DIM), cp.Variable(DIM)
        short = cp.Variable(DIM)
        rows = [short >= y - x, short >= 0]
        bounds = []
        for method in ("vertices", "decision_rule"):
            stage = dro.recourse(cp.Minimize(3 * cp.sum(short)), rows, method=method)
            problem = dro.DecisionProblem(cp.sum(x) + stage + 0.1 * cp.sum_squares(x), [], shape(y, kind))
            bounds.append(float(problem.solve(draw(kind, 1)).objective))
        assert bounds[0] - 1e-6 <= bounds[1] < np.inf


# --- Projection and learning ------------------------------------------------------------------------------------------


def around(batch: int) -> dro.Nominal:
    """The first atom is padding, and far away."""
    rng = np.random.default_rng(4)
    atoms, weights = rng.uniform(0.5, 2.5, (batch, 5, DIM)), rng.uniform(0.1, 1.0, (batch, 5))
    atoms[:, 0], weights[:, 0] = 100.0, 0.0
    return dro.Nominal(torch.as_tensor(atoms), torch.as_tensor(weights / weights.sum(1, keepdims=True)))


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_the_closest_box(margin: float) -> None:
    ambiguity, nominal = shape(dro.Uncertain(DIM), "box"), around(6)
    theta = ambiguity.pack(draw("box", 6, seed=5))
    # Some boxes hold all atoms as they are, or on one side.
    theta[0, DIM:] = 4.0
    theta[1, :DIM] -= 2.0
    weights = {"centre": 3.0, "radius": [1.0, 2.0, 0.5]}
    found = dro.Projection(ambiguity, weights, margin, absolute=margin)(theta, nominal)
    assert torch.equal(found[0], theta[0])
    for item in range(6):
        c, d, atoms = cp.Variable(DIM), cp.Variable(DIM), nominal.atoms[item, 1:].numpy()
        away = 3.0 * cp.sum_squares(c - theta[item, :DIM].numpy())
        away += cp.sum(cp.multiply([1.0, 2.0, 0.5], cp.square(d - theta[item, DIM:].numpy())))
        rows = [(1 + margin) * cp.abs(atom - c) + margin <= d for atom in atoms]
        cp.Problem(cp.Minimize(away), rows).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(found[item].numpy(), np.concatenate([c.value, d.value]), atol=1e-5)

    def moved(theta: Tensor, atoms: Tensor) -> Tensor:
        return dro.Projection(ambiguity, weights, margin, absolute=margin)(theta, (atoms, nominal.weights))

    assert torch.autograd.gradcheck(moved, (theta.requires_grad_(), nominal.atoms.clone().requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", SHAPES)
def test_all_atoms_are_held(kind: str, dtype: torch.dtype) -> None:
    ambiguity, nominal = shape(dro.Uncertain(DIM), kind), around(4)
    theta = ambiguity.pack(draw(kind, 4)).to(dtype)
    for method in ("auto", "clip"):
        projection = dro.Projection(ambiguity, method=method)
        found = projection(theta, nominal)
        scores = ambiguity.gauge(ambiguity.preimage(found, nominal.atoms))[:, 1:]
        assert found.dtype == dtype
        assert float(scores.max()) <= 1.0
        torch.testing.assert_close(scores.amax(1), torch.ones(4).double(), rtol=1e-5, atol=0.0)
        assert projection.last.statuses == [Status.OPTIMAL] * 4
        torch.testing.assert_close(projection(found, nominal), found)
    size = draw(kind, 1)[ambiguity.extent][0].numpy()
    fixed = shape(dro.Uncertain(DIM), kind, **{ambiguity.extent: 0.1 * size})
    with pytest.warns(UserWarning, match="could not be projected"):
        left = dro.Projection(fixed)(theta[:, :DIM], nominal)
    torch.testing.assert_close(left, theta[:, :DIM])


def test_a_given_box_moves() -> None:
    ambiguity, nominal = dro.Outcomes(dro.Uncertain(DIM), "box", radius=1.5), around(3)
    found = dro.Projection(ambiguity)(torch.zeros(3, DIM).double(), nominal)
    # As little as need be: the largest atom is at the upper end.
    torch.testing.assert_close(found + 1.5, nominal.atoms[:, 1:].amax(1))


@pytest.mark.parametrize("kind", SHAPES)
def test_the_fit_is_normal(kind: str) -> None:
    """The likelihood is least where the shape is a multiple of the standard deviations of the data."""
    rng = np.random.default_rng(6)
    root = rng.normal(size=(DIM, DIM))
    data = torch.as_tensor(2.0 + rng.normal(size=(400, DIM)) @ root.T)
    ambiguity = shape(dro.Uncertain(DIM), kind)
    inside = {name: value.centre[None] for name, value in ambiguity.typical(data).items()}
    covariance = torch.cov(data.T, correction=0)
    size = ambiguity._multiple
    inside[ambiguity.extent] = (
        size * (torch.linalg.cholesky(covariance) if kind == "ellipsoid" else covariance.diagonal().sqrt())[None]
    )
    theta = ambiguity.pack(inside).requires_grad_()
    nominal = (data[None], torch.full((1, 400), 1 / 400, dtype=torch.float64))
    GaussianLoss(ambiguity, data)(theta, nominal, "both").backward()
    assert float(theta.grad.abs().max()) < 1e-9
    share = (ambiguity.scores(theta, data) <= 1).double().mean()
    assert float(share) > (0.6 if kind == "budget" else 0.85)


@pytest.mark.parametrize("kind", SHAPES)
def test_it_is_learnt(kind: str) -> None:
    from tests.drolayers.learning.small import learner, sales

    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.Outcomes(y, kind))
    fitted = learner(problem, training__anchor=0.1).fit(*sales())
    assert np.isfinite(fitted.score(*sales(seed=1)))
    assert list(fitted.history_) == ["prediction", "decision"]
    Z, _ = sales()
    theta = problem.ambiguity.pack({n: torch.as_tensor(v) for n, v in fitted.predict_set(Z).items()})
    nominal = fitted.pipeline_.nominal(torch.as_tensor(Z))
    assert float(problem.ambiguity.gauge(problem.ambiguity.preimage(theta, nominal.atoms)).max()) <= 1.0


def test_bad_settings_are_one_sentence() -> None:
    y = dro.Uncertain(2)
    with pytest.raises(dro.ModelError, match=r"one of the shapes \['box', 'ellipsoid', 'budget'\], not 'ball'"):
        dro.Outcomes(y, "ball")
    with pytest.raises(dro.ModelError, match="'box' of Outcomes has no budget"):
        dro.Outcomes(y, "box", 2.0)
    with pytest.raises(dro.ModelError, match="'ellipsoid' of Outcomes has no radius"):
        dro.Outcomes(y, "ellipsoid", radius=1.0)
    with pytest.raises(dro.ModelError, match="budget must be a positive number"):
        dro.Outcomes(y, "budget", 0.0)
    with pytest.raises(dro.ModelError, match=r"factor must have shape \(2, 2\), not \(3,\)"):
        dro.Outcomes(y, "ellipsoid", factor=np.ones(3))
    with pytest.raises(dro.ModelError, match="radius cannot be negative"):
        dro.Outcomes(y, radius=-1.0)
    with pytest.raises(dro.ModelError, match=r"needs a dro\.Uncertain, not Variable"):
        dro.Outcomes(cp.Variable(2))
    with pytest.raises(dro.ModelError, match="closed form and no other"):
        dro.Projection(dro.Outcomes(y), method="conic")
    with pytest.raises(dro.ShapeError, match="one outcome an item"):
        dro.Outcomes(y).scores(torch.ones(3, 4), torch.ones(2, 2))


@pytest.mark.parametrize(
    "make", [*(lambda y, k=k: shape(y, k) for k in SHAPES), dro.MeanCovariance], ids=[*SHAPES, "DY"]
)
def test_coordinates_in_units_of_their_own(make: Any) -> None:
    """Values and derivatives follow where one coordinate is counted in millionths and another in thousands."""
    rng = np.random.default_rng(7)
    slopes, decisions = rng.normal(size=(4, DIM)), rng.normal(size=(4, DIM))
    centre, width, factor = rng.uniform(1, 2, DIM), rng.uniform(0.3, 0.6, DIM), 0.4 * np.eye(DIM)
    answers = []
    for units in (np.ones(DIM), np.array([1e6, 1e-3, 1.0])):
        y, x = dro.Uncertain(DIM, support=s.Box(0.5 * units, 2.2 * units)), cp.Variable(DIM)
        ambiguity = make(y)
        cost = cp.max((slopes / units) @ y + decisions @ x) + cp.sum_squares(x)
        grown = {"centre": units, "mu": units, "radius": units, "factor": units[:, None], "gamma1": 1.0}
        inside = {"centre": centre, "mu": centre, "radius": width, "factor": factor, "gamma1": np.array(0.15)}
        leaves = {n: torch.as_tensor(inside[n])[None].requires_grad_() for n in ambiguity.parameters}
        solution = dro.DecisionProblem(cost, [], ambiguity).solve(
            {n: v * torch.as_tensor(grown[n]) for n, v in leaves.items()}
        )
        assert solution.statuses == [Status.OPTIMAL]
        (solution.variable(x).sum() + solution.objective.sum()).backward()
        answers.append([solution.objective.detach(), *(v.grad for v in leaves.values())])
    for found, expected in zip(*answers, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)

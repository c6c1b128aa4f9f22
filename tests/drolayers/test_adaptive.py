"""Adaptive decisions: bounds, what they may see, what they do at outcomes, derivatives and units."""

import pickle
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers.cost.adaptive import Adaptive
from research.problems.rsome import EXAMPLES, lots_data, newsvendor_ours

HI = 4.0
ATOMS = torch.tensor([[[1.0, 2.0], [3.0, 1.0], [0.5, 0.6]]], dtype=torch.float64)
NOMINAL = ATOMS, torch.tensor([[0.3, 0.45, 0.25]], dtype=torch.float64)
MOMENTS = torch.tensor([[1.3, 1.8, 1.1]], dtype=torch.float64)
RADIUS = torch.tensor([[0.4]], dtype=torch.float64)

Made = tuple[dro.Uncertain, object, Tensor, tuple[Tensor, Tensor] | None]

SETS: dict[str, tuple[Callable[[dro.Uncertain], object], Tensor, tuple[Tensor, Tensor] | None]] = {
    "norm 1": (lambda y: dro.MomentSet(y, [m.Norm(1)]), MOMENTS, None),
    "squared": (lambda y: dro.MomentSet(y, [m.SquaredNorm()]), MOMENTS, None),
    "norm 2": (lambda y: dro.MomentSet(y, [m.Norm(2)]), MOMENTS, None),
    "mixed": (
        lambda y: dro.MomentSet(y, [2.0 * m.SquaredNorm(mu=[1.3, 1.8]) + m.Norm(1, mu=[1.0, 2.0])]),
        torch.tensor([[3.0]], dtype=torch.float64),
        None,
    ),
    "given": (
        lambda y: dro.MomentSet(
            y, [m.Variance([1.3, 1.8], [0.8, 1.1]), m.Absolute([1.0, 1.0], 3.0, 0.7), m.Absolute([1.0, -1.0], 0.0, 0.9)]
        ),
        torch.zeros(1, 0, dtype=torch.float64),
        None,
    ),
    "order 1": (lambda y: dro.Wasserstein(y, 3), RADIUS, NOMINAL),
    "order 1, norm 2": (lambda y: dro.Wasserstein(y, 3, norm=2), RADIUS, NOMINAL),
    "order 2": (lambda y: dro.Wasserstein(y, 3, norm=2, order=2), RADIUS, NOMINAL),
    "chi2": (lambda y: dro.Divergence(y, 3), RADIUS, NOMINAL),
}


def uncertain(name: str, scale: float = 1.0) -> Made:
    """An uncertain vector in a box, and a set of its distributions."""
    made, theta, nominal = SETS[name]
    y = dro.Uncertain(2, support=dro.support.Box(0.0, HI * scale))
    return y, made(y), theta, nominal


def newsvendor(name: str, to: Callable[[dro.Uncertain], object] | None = None) -> tuple[dro.DecisionProblem, Adaptive]:
    """Shortages as an adaptive decision."""
    y, ambiguity, _, _ = uncertain(name)
    x = cp.Variable(2, nonneg=True, name="x")
    short = dro.Adaptive(2, to=y if to is None else to(y), name="short", nonneg=True)
    rules = [dro.always(short >= y - x), x <= 5]
    return dro.DecisionProblem(cp.sum(x) + np.array([3.2, 2.1]) @ short, rules, ambiguity), short


def solved(name: str, problem: dro.DecisionProblem, **settings: object) -> dro.Decision:
    """The decision against a set."""
    _, theta, nominal = SETS[name]
    return dro.DROLayer(problem, on_failure="raise", **settings)(theta, nominal)


def outcomes(count: int) -> Tensor:
    """Points of the box."""
    return HI * torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def repeated(decision: dro.Decision, count: int) -> dict[cp.Variable, Tensor]:
    """The same decision for so many outcomes."""
    return {v: value.expand(count, *value.shape[1:]) for v, value in decision.best.items()}


@pytest.mark.parametrize("name", SETS)
def test_bounds_hold_and_are_those_of_second_stages(name: str) -> None:
    """Never below the exact value, equal to the rule of a second stage, and what is promised holds at outcomes."""
    problem, short = newsvendor(name)
    y, ambiguity, theta, nominal = uncertain(name)
    x, z = cp.Variable(2, nonneg=True), cp.Variable(2, nonneg=True)
    costs = {
        method: dro.recourse(cp.Minimize(np.array([3.2, 2.1]) @ z), [z >= y - x], method=method)
        for method in ("vertices", "decision_rule")
    }
    exact, ruled = (dro.DecisionProblem(cp.sum(x) + cost, [x <= 5], ambiguity) for cost in costs.values())
    decision = solved(name, problem)
    value = float(decision.value)
    assert value >= float(exact.solve(theta, nominal).objective) - 1e-6
    assert value == pytest.approx(float(ruled.solve(theta, nominal).objective), rel=1e-6)
    (first,) = problem.variables
    assert value == pytest.approx(
        float(problem.worst_case_cost({first: decision.best[first]}, theta, nominal)), rel=1e-6
    )
    assert not problem.exact["cost"]
    assert problem.conservative
    # At outcomes that the set allows the rule obeys its constraints, and costs what it does there.
    points = ATOMS[0] if ambiguity.pinned else outcomes(60)
    chosen = repeated(decision, len(points))
    assert max(float(rows.max()) for rows in problem.violations(chosen, points).values()) <= 1e-6
    actions = decision.rule[short](points)
    assert actions.shape == (len(points), 2)
    cost = chosen[first].sum(1) + actions @ torch.tensor([3.2, 2.1], dtype=torch.float64)
    torch.testing.assert_close(problem.loss(chosen, points), cost)
    assert bool((cost >= exact.loss({x: chosen[first]}, points) - 1e-6).all())


def test_values_of_rsome_s_pages() -> None:
    """Seeded: RSOME 1.3.1 finds -184.637334 (one rule: -164.601199), 58.2649 and, with Clarabel at 1e-11, 148.7207495.

    By coordinate the distances make the rule of the lots exact.
    """
    found = {}
    for name in ("newsvendor", "appointments", "lot sizing"):
        problem, theta, nominal = EXAMPLES[name].ours()
        found[name] = float(problem.solve(theta, nominal, on_failure="raise").objective)
    assert found["newsvendor"] == pytest.approx(-184.637334, rel=1e-7)
    # In a second worst case, which binds nothing, there is one rule for all atoms: RSOME's without scenarios.
    problem, theta, nominal = newsvendor_ours(bound=1e4)
    value = float(problem.solve(theta, nominal, on_failure="raise").objective)
    assert value == pytest.approx(-164.601199, rel=1e-7)
    assert found["appointments"] == pytest.approx(148.7207495, rel=1e-8)
    b, c, ds = lots_data()
    d, x = dro.Uncertain(3, support=dro.support.Box(0.0, 20.0)), cp.Variable(3, nonneg=True)
    moved, urgent = cp.Variable((3, 3), nonneg=True), cp.Variable(3, nonneg=True)
    rows = [d <= cp.sum(moved, axis=0) - cp.sum(moved, axis=1) + x + urgent, moved <= b]
    goal = cp.Minimize(cp.sum(cp.multiply(c, moved)) + 5 * cp.sum(urgent))
    ball = dro.Wasserstein(d, len(ds))
    exact = dro.DecisionProblem(cp.sum(x) + dro.recourse(goal, rows, method="vertices"), [x <= 20], ball)
    _, theta, nominal = EXAMPLES["lot sizing"].ours()
    assert found["lot sizing"] == pytest.approx(float(exact.solve(theta, nominal).objective), rel=1e-7)
    assert found["lot sizing"] < 58.2649


@pytest.mark.parametrize("name", ["norm 1", "squared", "order 1", "order 2"])
def test_rules_are_exact_where_moments_and_shortages_are_separable(name: str) -> None:
    problem, _ = newsvendor(name)
    y, ambiguity, theta, nominal = uncertain(name)
    x = cp.Variable(2, nonneg=True)
    exact = dro.DecisionProblem(cp.sum(x) + np.array([3.2, 2.1]) @ cp.pos(y - x), [x <= 5], ambiguity)
    assert float(solved(name, problem).value) == pytest.approx(float(exact.solve(theta, nominal).objective), rel=1e-6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["norm 1", "norm 2", "order 1, norm 2"])
def test_random_second_stages_are_bounded(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, ambiguity, theta, nominal = uncertain(name)
    x = cp.Variable(2, nonneg=True)
    A, B, q = rng.uniform(-1, 1, (3, 2)), rng.uniform(-1, 1, (3, 2)), rng.uniform(1, 3, 3)
    C = np.hstack([np.eye(3) + rng.uniform(0, 0.3, (3, 3))])
    z, actions = cp.Variable(3, nonneg=True), dro.Adaptive(3, to=y, nonneg=True)
    second = dro.recourse(cp.Minimize(q @ z), [C @ z >= A @ y - B @ x], method="vertices")
    exact = dro.DecisionProblem(cp.sum(x) + second, [x <= 3], ambiguity)
    rule = dro.DecisionProblem(cp.sum(x) + q @ actions, [x <= 3, dro.always(C @ actions >= A @ y - B @ x)], ambiguity)
    least = float(exact.solve(theta, nominal).objective)
    found = solved(name, rule)
    assert float(found.value) >= least - 1e-6
    # The worst distribution of the exact problem at the rule's decision costs no more under the rule than promised.
    (first,) = rule.variables
    worst = exact.worst_case_distribution({x: found.best[first]}, theta, nominal)
    points, mass = worst.atoms[0], worst.probabilities[0]
    there = mass > 1e-9
    cost = rule.loss(repeated(found, int(there.sum())), points[there])
    assert float(cost @ mass[there]) <= float(found.value) + 1e-5


def test_only_what_may_be_seen_is_seen() -> None:
    """Other entries of the outcome change nothing, also where moments of them are lifted; less is never better."""
    values = []
    for name in ("squared", "norm 2", "order 1"):
        full, _ = newsvendor(name)
        problem, short = newsvendor(name, lambda y: [y[:1], y[1:]])
        decision = solved(name, problem)
        values.append((float(solved(name, full).value), float(decision.value)))
        points = outcomes(20)
        moved = points.clone()
        moved[:, 1] = HI - points[:, 1]
        rule = decision.rule[short]
        torch.testing.assert_close(rule(points)[:, 0], rule(moved)[:, 0], rtol=0.0, atol=0.0)
        assert not torch.equal(rule(points)[:, 1], rule(moved)[:, 1])
    assert all(full <= part + 1e-6 for full, part in values)
    # Of squares, which are additive, each entry needs its own alone; atoms that are not seen cost something.
    assert values[0][0] == pytest.approx(values[0][1], rel=1e-6)
    assert values[2][0] < values[2][1] - 1e-3


def test_several_stages() -> None:
    """Orders of a matrix of demands see earlier rows; a program in CVXPY over all rules gives the same value."""
    T = 3
    y = dro.Uncertain((T, 1), support=dro.support.Box(0.0, 2.0))
    first, later = cp.Variable(nonneg=True), dro.Adaptive(T - 1, to=[y[: t + 1] for t in range(T - 1)], nonneg=True)
    stock, cost = dro.Adaptive(T, to=[y[: t + 1] for t in range(T)]), dro.Adaptive(T, to=[y[: t + 1] for t in range(T)])
    order = cp.hstack([first, later])
    rules = [
        dro.always(stock == cp.cumsum(order - y[:, 0])),
        dro.always(cost >= 0.3 * stock),
        dro.always(cost >= -2.0 * stock),
        dro.always(order <= 1.5),
    ]
    ambiguity = dro.MomentSet(y, [m.Mean(np.array([1.0, 0.8, 1.2]))])
    problem = dro.DecisionProblem(cp.sum(order) + cp.sum(cost), rules, ambiguity)
    found = dro.DROLayer(problem, on_failure="raise")(torch.zeros(1, 0, dtype=torch.float64))
    # Rules as matrices over (1, y), against the eight corners of the box.
    gamma, costs = cp.Variable((T, T + 1)), cp.Variable((T, T + 1))
    corners = np.array([[1.0, *np.array(c)] for c in np.ndindex(2, 2, 2)]) * np.array([1.0, 2.0, 2.0, 2.0])
    path = cp.cumsum((gamma @ corners.T) - corners[:, 1:].T, axis=0)
    masked = [gamma[t, s + 1] == 0 for t in range(T) for s in range(T) if s >= t]
    masked += [costs[t, s + 1] == 0 for t in range(T) for s in range(T) if s > t]
    bounds = [gamma @ corners.T >= 0, gamma @ corners.T <= 1.5]
    bounds += [costs @ corners.T >= 0.3 * path, costs @ corners.T >= -2.0 * path]
    mean = np.array([1.0, 1.0, 0.8, 1.2])
    program = cp.Problem(cp.Minimize(cp.sum(gamma @ mean) + cp.sum(costs @ mean)), [*masked, *bounds])
    assert float(found.value) == pytest.approx(program.solve(solver=cp.CLARABEL), rel=1e-6)
    points = 2.0 * torch.rand(10, T, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ordered, levels = found.rule[later](points), found.rule[stock](points)
    total = torch.cat([found.best[first].expand(10)[:, None], ordered], 1) - points[:, :, 0]
    torch.testing.assert_close(levels, total.cumsum(1), atol=1e-7, rtol=1e-6)


def test_equations_bounds_on_means_and_chances() -> None:
    """Rules in every kind of constraint; under a ball they are then one for all, since every worst case is its own."""
    for name in ("squared", "order 1"):
        y, ambiguity, theta, nominal = uncertain(name)
        x = cp.Variable(2, nonneg=True)
        ship = dro.Adaptive(2, to=y, nonneg=True)
        limit = dro.expected(cp.sum(ship)) <= 1.0
        rules = [dro.always(ship + x >= y), limit, dro.cvar(cp.sum(ship), 0.5) <= 2.5, x <= 5]
        problem = dro.DecisionProblem(cp.sum(x) + 0.1 * cp.sum(ship), rules, ambiguity)
        decision = solved(name, problem)
        assert not problem.exact[limit]
        points = ATOMS[0] if nominal is not None else outcomes(30)
        chosen = repeated(decision, len(points))
        found = problem.violations(chosen, points)
        if nominal is not None:
            # The nominal distribution is in the ball.
            assert float(nominal[1][0] @ found[limit][:, 0]) <= 1e-6
        shipped = decision.rule[ship](points)
        assert bool((shipped + chosen[problem.variables[0]] >= points - 1e-6).all())
        with pytest.raises(dro.ModelError, match="on an adaptive decision"):
            problem.worst_case({x: decision.best[x]}, theta, nominal, of=limit)


@pytest.mark.parametrize("name", ["squared", "norm 2", "order 1, norm 2", "order 2"])
def test_gradients(name: str) -> None:
    """Of the value in θ; central differences."""
    problem, _ = newsvendor(name)
    _, theta, nominal = SETS[name]
    leaf, step = theta.clone().requires_grad_(), 1e-5
    (found,) = torch.autograd.grad(problem.solve(leaf, nominal).objective.sum(), leaf)
    for k in range(theta.shape[1]):
        shift = step * torch.eye(theta.shape[1], dtype=torch.float64)[k]
        up, down = (problem.solve(theta + s * shift, nominal).objective for s in (1, -1))
        assert float(found[0, k]) == pytest.approx(float(up - down) / (2 * step), abs=2e-5, rel=2e-4)


def test_the_rule_is_differentiable() -> None:
    """In θ and in the outcome, where it is unique: x = μ, and the worst mean of |y - x| is its rule |y - μ|'s."""
    y = dro.Uncertain(1)
    x, served, off = cp.Variable(nonneg=True, name="x"), dro.Adaptive(1, to=y), dro.Adaptive(1, to=y)
    rules = [dro.always(served == 2.0 * y + x), dro.always(off >= y - x), dro.always(off >= x - y)]
    cost = cp.square(x) + 0.1 * cp.sum(served) + cp.sum(off)
    layer = dro.DROLayer(dro.DecisionProblem(cost, rules, dro.MomentSet(y, [m.Norm(2)])), on_failure="raise")
    theta = torch.tensor([[0.3, 0.5]], dtype=torch.float64, requires_grad=True)
    point = torch.tensor([[3.0]], dtype=torch.float64, requires_grad=True)
    for v, value, slopes in ((served, 6.3, (1.0, 0.0, 2.0)), (off, 2.7, (-1.0, 0.0, 1.0))):
        total = layer(theta).rule[v](point).sum()
        by_theta, by_point = torch.autograd.grad(total, (theta, point))
        assert float(total.detach()) == pytest.approx(value, abs=1e-5)
        assert [*by_theta[0].tolist(), float(by_point)] == pytest.approx(slopes, abs=1e-5)


@pytest.mark.parametrize("name", ["squared", "order 2"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units(name: str, scale: float) -> None:
    """Demand and orders in other units: values and rules follow."""
    _, theta, nominal = SETS[name]
    degrees = torch.tensor([1.0, 1.0, 2.0] if name == "squared" else [1.0], dtype=torch.float64)
    values = []
    for by in (1.0, scale):
        y, ambiguity, _, _ = uncertain(name, by)
        x, short = cp.Variable(2, nonneg=True), dro.Adaptive(2, to=y, nonneg=True)
        cost = cp.sum(x) + np.array([3.2, 2.1]) @ short
        problem = dro.DecisionProblem(cost, [dro.always(short >= y - x), x <= 5 * by], ambiguity)
        around = None if nominal is None else (by * nominal[0], nominal[1])
        decision = dro.DROLayer(problem, on_failure="raise")(theta * by**degrees, around)
        points = by * outcomes(20)
        values.append(float(decision.value) / by)
        worst = max(float(rows.max()) for rows in problem.violations(repeated(decision, 20), points).values())
        assert worst <= 1e-6 * by
    assert values[1] == pytest.approx(values[0], rel=1e-6)


def test_atoms_of_weight_zero_have_no_say() -> None:
    """Neither in the value nor, being far away, in what the rule does."""
    y = dro.Uncertain(2, support=dro.support.Box(0.0, HI))
    padded = torch.cat([ATOMS, torch.full((1, 1, 2), 3.9, dtype=torch.float64)], 1)
    values = []
    for atoms, nominal in ((3, NOMINAL), (4, (padded, torch.nn.functional.pad(NOMINAL[1], (0, 1))))):
        x, short = cp.Variable(2, nonneg=True), dro.Adaptive(2, to=y, nonneg=True)
        cost = cp.sum(x) + np.array([3.2, 2.1]) @ short
        problem = dro.DecisionProblem(cost, [dro.always(short >= y - x)], dro.Wasserstein(y, atoms))
        decision = dro.DROLayer(problem, on_failure="raise")(RADIUS, nominal)
        values.append(float(decision.value))
        points = outcomes(20)
        found = problem.violations(repeated(decision, 20), points)
        assert max(float(rows.max()) for rows in found.values()) <= 1e-6
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_integers_are_decided_first() -> None:
    """As by trying all of them; losses of candidates and their derivatives exist."""
    y, ambiguity, theta, nominal = uncertain("order 1")
    x, short = cp.Variable(2, integer=True, bounds=[0, 3]), dro.Adaptive(2, to=y, nonneg=True)
    cost = cp.sum(x) + np.array([3.2, 2.1]) @ short
    problem = dro.DecisionProblem(cost, [dro.always(short >= y - x)], ambiguity)
    leaf = theta.clone().requires_grad_()
    decision = dro.DROLayer(problem, on_failure="raise", gradient="smoothed")(leaf, nominal)
    points = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).double()
    many = tuple(part.expand(16, *part.shape[1:]) for part in NOMINAL)
    each = problem.worst_case_cost({x: points}, theta.expand(16, -1), many)
    assert float(decision.value.detach()) == pytest.approx(float(each.min()), rel=1e-6)
    outcome = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    decision.expected(lambda chosen: problem.loss(chosen, outcome)).sum().backward()
    assert bool(leaf.grad.isfinite().all())
    assert float(leaf.grad.abs().sum()) > 0


def test_a_rule_remembers_known_data() -> None:
    """Where atoms have rules of their own, known data choose among them: those that the decision was taken with."""
    atoms = torch.tensor([[[1.0], [4.0]]], dtype=torch.float64).expand(3, -1, -1)
    nominal = atoms, torch.full((3, 2), 0.5, dtype=torch.float64)
    y = dro.Uncertain(1, support=dro.support.Box(0.0, 5.0))
    price, stock = cp.Parameter(nonneg=True, name="price"), cp.Parameter(1, nonneg=True, name="stock")
    x, short = cp.Variable(1, nonneg=True), dro.Adaptive(1, to=y, nonneg=True)
    rules = [dro.always(short >= y - x - stock), x <= 5]
    ambiguity = dro.Wasserstein(y, atoms=2, norm=1)
    problem = dro.DecisionProblem(price * cp.sum(x) + 2 * cp.sum(short), rules, ambiguity)
    theta = torch.full((3, 1), 0.5, dtype=torch.float64)
    given = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    known = {"stock": given, price: 1.5}
    layer = dro.DROLayer(problem, on_failure="raise")
    decision, points = layer(theta, nominal, known), torch.tensor([[4.5], [2.0], [3.0]], dtype=torch.float64)
    bought = decision.rule[short](points)
    torch.testing.assert_close(bought, decision.rule[short](points, known))
    assert bool((bought >= points - decision.best[x] - given - 1e-6).all())
    # Parts of a batch, one answer from elsewhere, and other known data than those of the decision.
    parts = [layer(theta[s], tuple(t[s] for t in nominal), {stock: given[s], price: 1.5}) for s in (slice(2), [2])]
    torch.testing.assert_close(dro.Decision.cat(parts).rule[short](points), bought, atol=1e-6, rtol=0.0)
    with torch.no_grad():
        plain = layer(theta, nominal, known)
        again = pickle.loads(pickle.dumps(plain))
        (mine,) = again.rule
        torch.testing.assert_close(again.rule[mine](points), plain.rule[short](points))
        one = layer(theta[:1], tuple(t[:1] for t in nominal), {stock: [1.0], price: 1.5})
        assert one.rule[short](points).shape == (3, 1)
    with pytest.raises(dro.ShapeError, match="known data for"):
        problem.adapted(decision.best, points)


def test_a_learner_trains() -> None:
    problem, short = newsvendor("squared")
    rng = np.random.default_rng(0)
    Z = rng.uniform(size=(40, 2))
    Y = np.clip(1.0 + 2.0 * Z + 0.2 * rng.normal(size=Z.shape), 0.0, HI)
    learner = dro.DecisionFocusedLearner(
        problem, pretraining=dro.Stage(epochs=5), training=dro.Stage(epochs=2), trainer=dro.Trainer(progress=False)
    )
    learner.fit(Z, Y)
    assert np.isfinite(learner.score(Z, Y))
    assert all(np.isfinite(rate) for rate in learner.violations(Z, Y).values())
    decided = learner.decide(Z[:3])
    np.testing.assert_allclose(learner.predict(Z[:3]), decided[problem.variables[0]])
    loss = problem.loss({v: torch.as_tensor(value) for v, value in decided.items()}, torch.as_tensor(Y[:3]))
    assert bool(loss.isfinite().all())
    bought = learner.decision(Z[:3]).rule[short](torch.as_tensor(Y[:3]))
    assert bool((bought >= torch.as_tensor(Y[:3]) - decided[problem.variables[0]] - 1e-5).all())


def test_what_is_refused() -> None:
    y, ambiguity, theta, _ = uncertain("squared")
    x, v = cp.Variable(2, nonneg=True), dro.Adaptive(2, to=y, name="v")
    for said, make in {
        "cannot be integer": lambda: dro.Adaptive(2, to=y, integer=True),
        "cannot be integer:": lambda: dro.Adaptive(2, to=y, boolean=True),
        "takes shape, to, name and nonneg": lambda: dro.Adaptive(2, to=y, bounds=[0, 1]),
        r"to=\.\.\.\) needs entries": lambda: dro.Adaptive(2, to=x),
        "not combinations": lambda: dro.Adaptive(2, to=y[0] + y[1]),
        "for each of the 2 entries": lambda: dro.Adaptive(2, to=[y]),
        "needs entries of a dro.Uncertain": lambda: dro.Adaptive(2),
        "v is multiplied by y": lambda: dro.DecisionProblem(y @ v, [x <= 1], ambiguity),
        "on the adaptive decision v: say for which": lambda: dro.DecisionProblem(cp.sum(v), [v >= x], ambiguity),
        "responds to moments": lambda: dro.DecisionProblem(cp.sum_squares(v) + cp.sum(x), [], ambiguity),
        "sees z, not the y": lambda: dro.DecisionProblem(
            cp.sum(x) + cp.sum(dro.Adaptive(2, to=dro.Uncertain(2, name="z"), name="w")), [], ambiguity
        ),
        "not convex <= concave": lambda: dro.DecisionProblem(
            cp.sum(x), [dro.always(v[0] == cp.square(x[0]))], ambiguity
        ),
    }.items():
        with pytest.raises(dro.ModelError, match=said):
            make()
    problem, short = newsvendor("squared")
    with pytest.raises(dro.ShapeError, match="rule of short"):
        problem.loss({problem.variables[0]: torch.ones(1, 2)}, torch.ones(1, 2))
    with pytest.raises(dro.ModelError, match="without attaining"):
        problem.worst_case_distribution({problem.variables[0]: torch.ones(1, 2)}, theta)
    with pytest.raises(dro.ModelError, match="Baselines know no adaptive decisions such as short"):
        dro.baselines.SampleAverage(problem).fit(np.ones((4, 1)), np.ones((4, 2)))
    assert problem.adaptive == (short,)

"""Worst cases among the constraints: closed forms, certificates, grids, gradients, integers, failures."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from tests.drolayers.reformulation.differences import analytic, central, gap

A = np.array([1.0, 2.0, -0.5])
MU, SIGMA = np.array([0.3, -0.2, 0.7]), 1.7
BOX = dro.support.Box(-1.0, 2.0)


def row(*values: float | np.ndarray) -> Tensor:
    """One item of θ."""
    return torch.as_tensor(np.concatenate([np.ravel(v) for v in values])[None])


def at(**values: float | np.ndarray) -> dict[str, Tensor]:
    return {name: torch.as_tensor(np.asarray(value, dtype=float)[None]) for name, value in values.items()}


def close(found: Tensor, expected: float | np.ndarray) -> None:
    np.testing.assert_allclose(found.detach().numpy().ravel(), np.ravel(expected), rtol=1e-6, atol=1e-6)


def least(make: Callable[[dro.Uncertain, cp.Variable], cp.Constraint], theta: Tensor, **support: object) -> Tensor:
    """The smallest t that satisfies a constraint on (y, t) under E‖y-μ‖² ≤ σ."""
    y, t = dro.Uncertain(3, **support), cp.Variable()
    problem = dro.DecisionProblem(t, [make(y, t)], dro.MomentSet(y, [m.SquaredNorm()]))
    solution = problem.solve(theta, on_failure="raise")
    assert [v.id for v in problem.variables] == [t.id]
    return solution.objective


@pytest.mark.parametrize("b", [-6.0, -3.0, -0.4, 0.8])
def test_expected_excess_in_closed_form(b: float) -> None:
    """sup E(aᵀy+b)⁺ = m + s if m ≥ -s/2, else s²/(4|m|), where a mean may move too."""
    mean, s = A @ MU + b, np.linalg.norm(A) * np.sqrt(SIGMA)
    expected = mean + s if mean >= -s / 2 else s**2 / (4 * abs(mean))
    close(least(lambda y, t: dro.expected(cp.pos(A @ y + b)) <= t, row(MU, SIGMA)), expected)


@pytest.mark.parametrize("level", [0.3, 0.9, 0.99])
def test_cvar_and_chance_in_closed_form(level: float) -> None:
    """sup CVaR_{1-ε} = m + s/√ε, and the worst quantile is the same."""
    expected = A @ MU + 0.4 + np.linalg.norm(A) * np.sqrt(SIGMA / (1 - level))
    close(least(lambda y, t: dro.cvar(A @ y + 0.4, level) <= t, row(MU, SIGMA)), expected)
    close(least(lambda y, t: dro.chance(A @ y + 0.4 <= t, level), row(MU, SIGMA)), expected)
    close(least(lambda y, t: 2 * dro.cvar(A @ y + 0.4, level) + 1 <= t, row(MU, SIGMA)), 2 * expected + 1)


def test_expectations_are_bounded_from_below_by_the_least_one() -> None:
    s = np.linalg.norm(A) * np.sqrt(SIGMA)
    close(least(lambda y, t: dro.expected(A @ y) >= -t, row(MU, SIGMA)), s - A @ MU)
    close(least(lambda y, t: -3 * dro.expected(A @ y) + 1 <= t, row(MU, SIGMA)), 3 * (s - A @ MU) + 1)
    y, x = dro.Uncertain(3), cp.Variable(3)
    reward = cp.Maximize(dro.expected(y @ x) - cp.sum_squares(x))
    plain = cp.Maximize(y @ x - cp.sum_squares(x))
    ambiguity = dro.MomentSet(y, [m.SquaredNorm()])
    values = [dro.DecisionProblem(cost, [], ambiguity).solve(row(MU, 0.1)).objective for cost in (reward, plain)]
    close(values[0], values[1].numpy())


@pytest.mark.parametrize("order", [1, 2])
def test_always_is_about_the_support(order: int) -> None:
    """Also for balls of order 1 and 2, whose mass can be anywhere."""
    y, t = dro.Uncertain(3, support=BOX), cp.Variable()
    highest = 2.0 * A.clip(min=0).sum() - A.clip(max=0).sum()
    rules = dro.always(A @ y <= t)
    for ambiguity, nominal in (
        (dro.MomentSet(y, [m.SquaredNorm()]), None),
        (dro.Wasserstein(y, 2, order=order), (torch.zeros(1, 2, 3).double(), torch.full((1, 2), 0.5).double())),
    ):
        theta = row(MU, SIGMA) if nominal is None else row(0.1)
        problem = dro.DecisionProblem(t, [rules], ambiguity)
        close(problem.solve(theta, nominal).objective, highest)
        x = {t: torch.tensor([1.0]).double()}
        close(problem.worst_case(x, theta, nominal, of=rules), highest - 1.0)
        atoms, probabilities = problem.worst_case_distribution(x, theta, nominal, of=rules)
        close(probabilities, [1.0])
        close(atoms, np.where(A > 0, 2.0, -1.0))
        assert problem.exact == {"cost": True, rules: True}


def test_always_holds_row_by_row_and_for_maxima() -> None:
    y, t = dro.Uncertain(2, support=BOX), cp.Variable(3)
    B = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 2.0]])
    rules = dro.always(B @ y <= t)
    problem = dro.DecisionProblem(cp.sum(t), [rules], dro.MomentSet(y, [m.SquaredNorm()]))
    highest = np.array([4.0, 3.0, 4.0])
    solution = problem.solve(row(0.0, 0.0, 1.0))
    close(solution.variable(t), highest)
    close(problem.worst_case({t: torch.zeros(1, 3).double()}, row(0.0, 0.0, 1.0), of=rules), highest)
    atoms, _ = problem.worst_case_distribution({t: torch.zeros(1, 3).double()}, row(0.0, 0.0, 1.0), of=rules, row=1)
    close(atoms, [2.0, -1.0])
    with pytest.raises(dro.ModelError, match="give row="):
        problem.worst_case_distribution({t: torch.zeros(1, 3).double()}, row(0.0, 0.0, 1.0), of=rules)
    s = cp.Variable()
    spread = dro.always(cp.abs(y[0]) + cp.maximum(y[0] - y[1], 0) <= s)
    close(dro.DecisionProblem(s, [spread], problem.ambiguity).solve(row(0.0, 0.0, 1.0)).objective, 5.0)


def test_rows_have_their_own_distributions() -> None:
    """Whatever the order in which worst cases stand in a constraint."""
    y, t = dro.Uncertain(2), cp.Variable()
    first, second = dro.expected(y), dro.expected(-2 * y[0])
    rule = cp.hstack([3 * first[1], t + second, first[0]]) <= 4
    problem = dro.DecisionProblem(cp.square(t), [rule], dro.MomentSet(y, [m.SquaredNorm()]))
    theta, x = row(CENTRE, 0.25), {t: torch.tensor([1.0]).double()}
    means = CENTRE + np.array([[0.0, 0.5], [-0.5, 0.0], [0.5, 0.0]])
    for k, mean in enumerate(means):
        atoms, probabilities = problem.worst_case_distribution(x, theta, of=rule, row=k)
        close((probabilities[..., None] * atoms).sum(1), mean)
    close(problem.worst_case(x, theta, of=rule), [3 * 0.6 - 4, 1 + 0.2 - 4, 0.9 - 4])
    for wrong in (None, 3, -1):
        with pytest.raises(dro.ModelError, match="give row="):
            problem.worst_case_distribution(x, theta, of=rule, row=wrong)


def test_equations_for_every_outcome() -> None:
    """On a box, the slopes of an equation vanish."""
    y, x, z = dro.Uncertain(2, support=BOX), cp.Variable(2), cp.Variable()
    rules = dro.always(x @ y + z == y[0] + 3)
    solution = dro.DecisionProblem(cp.sum_squares(x), [rules], dro.MomentSet(y, [m.SquaredNorm()])).solve(
        row(0.0, 0.0, 1.0)
    )
    close(solution.variable(x), [1.0, 0.0])
    close(solution.variable(z), 3.0)


def moments(atoms: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Of the set below, by their definition."""
    deviation = atoms - centre
    return np.stack([np.abs(deviation).sum(-1), (deviation**2).sum(-1)])


CENTRE, BOUNDS = np.array([0.4, 0.1]), np.array([0.5, 0.4])
THETA = row(CENTRE, BOUNDS[0], CENTRE, BOUNDS[1])


def boxed() -> tuple[dro.Uncertain, dro.MomentSet]:
    y = dro.Uncertain(2, support=BOX)
    return y, dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()])


@pytest.mark.parametrize("kind", ["expected", "cvar", "chance"])
def test_worst_distributions_certify(kind: str) -> None:
    """They lie in the set, and attain the left-hand side."""
    y, ambiguity = boxed()
    x = cp.Variable(2)

    def left(x: cp.Expression | np.ndarray, y: cp.Expression | np.ndarray) -> list[cp.Expression]:
        return [x[0] * y[0] + y[1], y[0] - x[1] * y[1] - 0.2]

    level, point = 0.7, np.array([1.2, -0.4])
    rule = {
        "expected": lambda: dro.expected(cp.maximum(*left(x, y))) <= 1.5,
        "cvar": lambda: dro.cvar(cp.maximum(*left(x, y)), level) <= 1.5,
        "chance": lambda: dro.chance(cp.hstack(left(x, y)) <= 1.5, level),
    }[kind]()
    problem = dro.DecisionProblem(cp.sum_squares(x - point), [rule], ambiguity)
    chosen = {x: torch.as_tensor(point[None])}
    value = float(problem.worst_case(chosen, THETA, of=rule))
    atoms, p = (t[0].numpy() for t in problem.worst_case_distribution(chosen, THETA, of=rule))
    assert p.sum() == pytest.approx(1.0, abs=1e-7)
    assert (p * np.maximum(atoms - 2.0, -1.0 - atoms).max(1)).max() <= 1e-6
    assert (moments(atoms, CENTRE) @ p - BOUNDS).max() <= 1e-6
    rows = np.maximum(*left(point, atoms.T)) - 1.5
    tails = [tau + p @ (rows - tau).clip(min=0) / (1 - level) for tau in rows]
    attained = p @ rows if kind == "expected" else min(tails)
    assert attained == pytest.approx(value, abs=1e-6)
    found = problem.violations(chosen, torch.as_tensor(atoms[:1]))[rule].numpy()
    expected = [r[0] - 1.5 for r in left(point, atoms.T)] if kind == "chance" else [rows[0]]
    np.testing.assert_allclose(found[0], expected)


def worst_probability(x: np.ndarray, strict: float = 1e-6) -> float:
    """The largest probability on a fine grid that some row of xᵀy ≤ 2, y₁ ≤ 2 + x₂ does not hold, by its definition."""
    line = np.linspace(-1.0, 2.0, 121)
    grid = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    wrong = (np.maximum(grid @ x, grid[:, 0] - x[1]) > 2.0 + strict).astype(float)
    found = linprog(-wrong, A_ub=moments(grid, CENTRE), b_ub=BOUNDS, A_eq=np.ones((1, len(grid))), b_eq=[1.0])
    assert found.status == 0
    return -float(found.fun)


@pytest.mark.parametrize("probability", [0.5, 0.8, 0.95])
def test_chances_hold_on_a_grid(probability: float) -> None:
    """No distribution of the set on a grid breaks the promise, which is conservative here and says so."""
    y, ambiguity = boxed()
    x = cp.Variable(2)
    rule = dro.chance(cp.hstack([x @ y, y[0] - x[1]]) <= 2, probability)
    problem = dro.DecisionProblem(-cp.sum(x), [rule, x <= 3], ambiguity)
    assert not problem.exact[rule]
    assert problem.exact["cost"]
    assert problem.conservative
    found = problem.solve(THETA, on_failure="raise").variable(x)[0].numpy()
    assert worst_probability(found) <= 1 - probability + 1e-6
    # The helper sees decisions that break it.
    assert worst_probability(found + 0.7) > 1 - probability


@pytest.mark.parametrize("norm", [m.SquaredNorm(), m.Norm(2), m.Norm(1)])
def test_chances_are_exact_for_one_row_under_one_norm(norm: m.Moment) -> None:
    """A decision a little better has a distribution that breaks the promise: two points are enough."""
    probability = 0.8
    y, t = dro.Uncertain(2), cp.Variable()
    rule = dro.chance(y[0] + 2 * y[1] <= t, probability)
    problem = dro.DecisionProblem(t, [rule], dro.MomentSet(y, [norm]))
    assert problem.exact[rule]
    theta = row(CENTRE, 0.3)
    found = float(problem.solve(theta).objective)
    atoms, p = (v[0].numpy() for v in problem.worst_case_distribution({t: row(found)[0]}, theta, of=rule))
    beyond = atoms @ np.array([1.0, 2.0]) > found - 1e-4
    assert p[beyond].sum() == pytest.approx(1 - probability, abs=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        lambda y, t: dro.chance(cp.maximum(y[0], y[1]) <= t, 0.9),
        lambda y, t: dro.chance(y <= t, 0.9),
    ],
)
def test_other_chances_are_conservative(other: Callable[[dro.Uncertain, cp.Variable], cp.Constraint]) -> None:
    y, t = dro.Uncertain(2), cp.Variable()
    rule = other(y, t)
    assert not dro.DecisionProblem(t, [rule], dro.MomentSet(y, [m.SquaredNorm()])).exact[rule]
    bounded = dro.Uncertain(2, support=BOX)
    rule = dro.chance(bounded[0] <= t, 0.9)
    assert not dro.DecisionProblem(t, [rule], dro.MomentSet(bounded, [m.SquaredNorm()])).exact[rule]


def shop(
    known: bool = False, integer: bool = False
) -> tuple[dro.DecisionProblem, cp.Variable, list[cp.Constraint], cp.Parameter | None]:
    """A newsvendor whose shortage is limited in three ways."""
    y = dro.Uncertain(2, support=dro.support.Box(0.0, 6.0))
    x = cp.Variable(2, integer=True, bounds=[0, 8]) if integer else cp.Variable(2, nonneg=True)
    stock = cp.Parameter(2, nonneg=True, name="stock") if known else np.array([0.3, 0.5])
    rules = [
        dro.expected(cp.sum(cp.pos(y - x - stock))) <= 0.8,
        dro.cvar(cp.multiply(stock, y) @ x, 0.6) <= 14,
        dro.chance(y <= x + stock + 1.5, 0.6),
        dro.always(y - x <= 4.5),
    ]
    cost = x @ np.array([1.0, 1.3]) + cp.sum(cp.multiply(np.array([0.3, 0.2]), cp.pos(x - y)))
    ambiguity = dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()])
    return dro.DecisionProblem(cost, rules, ambiguity), x, rules, stock if known else None


SHOP = torch.tensor([2.0, 2.2, 0.9, 2.1, 2.4, 0.8], dtype=torch.float64)


def test_gradients_of_decisions_under_rules() -> None:
    problem, x, _, _ = shop()

    def decide(theta: Tensor) -> Tensor:
        solution = problem.solve(theta, on_failure="raise")
        return torch.cat([solution.variable(x), solution.objective[:, None]], 1)

    found, expected = analytic(decide, SHOP), central(decide, SHOP)
    assert expected[:2].abs().max() > 0.1
    assert gap(found, expected) < 1e-4


def test_gradients_of_worst_left_hand_sides() -> None:
    problem, x, rules, _ = shop()
    at = {x: torch.tensor([[2.1, 1.9]], dtype=torch.float64)}

    for rule in rules[:3]:

        def left(theta: Tensor, rule: cp.Constraint = rule) -> Tensor:
            return problem.worst_case({x: at[x].expand(len(theta), 2)}, theta, of=rule)

        assert gap(analytic(left, SHOP), central(left, SHOP)) < 1e-4


def test_known_data_in_rules() -> None:
    """As numbers written into the problem; differentiable in them."""
    plain, x, rules, _ = shop()
    given, z, same, _ = shop(known=True)
    assert given.known == {"stock": (2,)}
    stock = torch.tensor([0.3, 0.5], dtype=torch.float64)
    theta = SHOP[None]
    one, other = plain.solve(theta), given.solve(theta, known={"stock": stock})
    close(other.objective, one.objective.numpy())
    close(other.variable(z), one.variable(x).numpy())
    point = torch.tensor([[2.1, 1.9]], dtype=torch.float64)
    outcome = torch.tensor([[3.0, 2.0]], dtype=torch.float64)
    seen = plain.violations({x: point}, outcome)
    told = given.violations({z: point}, outcome, known={"stock": stock})
    for rule, twin in zip(rules, same, strict=True):
        close(told[twin], seen[rule].numpy())
        worst = given.worst_case({z: point}, theta, known={"stock": stock}, of=twin)
        close(worst, plain.worst_case({x: point}, theta, of=rule).numpy())

    def decide(stock: Tensor) -> Tensor:
        solution = given.solve(theta.expand(len(stock), -1), known={"stock": stock}, on_failure="raise")
        return torch.cat([solution.variable(z), solution.objective[:, None]], 1)

    assert gap(analytic(decide, stock), central(decide, stock)) < 1e-4


def test_known_data_that_multiplies_rows_under_a_ball() -> None:
    """The set multiplies rows by parameters of its own, in each worst case."""
    price = cp.Parameter(2, nonneg=True, name="price")
    values, nominal = [], (torch.rand(1, 4, 2, generator=torch.Generator().manual_seed(1)).double(), None)
    nominal = nominal[0], torch.full((1, 4), 0.25).double()
    for told in (price, np.array([1.5, 0.7])):
        y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
        rule = dro.cvar(-cp.multiply(told, x) @ y, 0.5) <= -0.2
        problem = dro.DecisionProblem(
            cp.sum_squares(x) + dro.expected(cp.pos(told @ y - cp.sum(x))), [rule], dro.Wasserstein(y, 4)
        )
        known = {"price": torch.tensor([1.5, 0.7]).double()} if told is price else None
        values.append(problem.solve(row(0.05), nominal, known=known, on_failure="raise").objective)
    close(values[0], values[1].numpy())


def test_integers_under_rules_are_those_of_enumeration() -> None:
    problem, x, rules, _ = shop(integer=True)
    layer = dro.DROLayer(problem, samples=0, enumerate_up_to=0).eval()
    decision = layer(SHOP[None])
    best, where = np.inf, None
    for point in np.ndindex(9, 9):
        at = {x: torch.tensor([point]).double()}
        if all(float(problem.worst_case(at, SHOP[None], of=rule).max()) <= 1e-7 for rule in rules):
            cost = float(problem.worst_case_cost(at, SHOP[None]))
            best, where = min((best, where), (cost, point), key=lambda pair: pair[0])
    close(decision.value, best)
    close(decision.best[x], where)
    trained = dro.DROLayer(problem, samples="all").train()(SHOP[None])
    close(trained.value, best)


def test_expectations_in_costs_are_bounded_separately() -> None:
    y, ambiguity = boxed()
    x = cp.Variable(2)
    first, second = cp.sum(cp.maximum(y - x, 2 * (x - y))), 3 * cp.pos(y[0] + y[1] - x[0])
    at = {x: torch.tensor([[0.5, 0.2]], dtype=torch.float64)}

    def value(cost: cp.Expression) -> Tensor:
        return dro.DecisionProblem(cost, [], ambiguity).worst_case_cost(at, THETA)

    apart = float(value(first)) + 0.5 * float(value(second))
    for cost in (
        dro.expected(first) + 0.5 * dro.expected(second),
        first + 0.5 * dro.expected(second),
        cp.sum(dro.expected(cp.hstack([first, 0.5 * second]))),
    ):
        close(value(cost), apart)
        problem = dro.DecisionProblem(cost, [], ambiguity)
        assert float(problem.solve(THETA).objective) <= apart + 1e-7
        close(problem.loss(at, torch.tensor([[1.0, -0.5]]).double()), 0.5 + 1.4 + 0.0)
        with pytest.raises(dro.ModelError, match="distribution of its own"):
            problem.worst_case_distribution(at, THETA)
    assert float(value(first + 0.5 * second)) < apart - 1e-3
    # A single one is the cost itself.
    alone = dro.DecisionProblem(cp.sum_squares(x) + 2 * dro.expected(first), [], ambiguity)
    close(alone.worst_case_cost(at, THETA), value(cp.sum_squares(x) + 2 * first).numpy())
    alone.worst_case_distribution(at, THETA)


def test_a_cvar_in_cost_and_constraint_has_two_thresholds() -> None:
    y, ambiguity = boxed()
    x = cp.Variable(2)
    tail = dro.cvar(cp.sum(cp.maximum(y - x, 2 * (x - y))), 0.8)
    free = dro.DecisionProblem(tail, [], ambiguity).solve(THETA).objective
    bound = dro.DecisionProblem(tail, [tail <= float(free) + 0.1], ambiguity)
    close(bound.solve(THETA, on_failure="raise").objective, free.numpy())
    assert len(bound.variables) == 2
    tight = dro.DecisionProblem(tail, [tail <= float(free) - 0.1], ambiguity)
    assert tight.solve(THETA).statuses == [dro.Status.INFEASIBLE]


def test_second_stages_in_rules() -> None:
    """In matrices or in CVXPY, as the maximum that they are."""
    y, ambiguity = boxed()
    x, z = cp.Variable(2, nonneg=True), cp.Variable(2)
    second = dro.recourse(cp.Minimize(cp.sum(z)), [z >= y - x, z >= 0])
    values = []
    for shortage in (second, cp.sum(cp.pos(y - x))):
        for rule in (dro.expected(shortage) <= 0.3, dro.always(shortage <= 2.0), dro.cvar(shortage, 0.5) <= 0.4):
            problem = dro.DecisionProblem(cp.sum(x), [rule], ambiguity)
            assert problem.variables == (x,)
            values.append(problem.solve(THETA, on_failure="raise").objective)
    close(torch.cat(values[:3]), torch.cat(values[3:]).numpy())
    ruled = dro.recourse(cp.Minimize(cp.sum(z)), [z >= y - x, z >= 0], method="decision_rule")
    rule = dro.expected(ruled) <= 0.3
    problem = dro.DecisionProblem(cp.sum(x), [rule], ambiguity)
    assert not problem.exact[rule]
    assert float(problem.solve(THETA).objective) >= float(values[0]) - 1e-6
    with pytest.raises(dro.ModelError, match="without attaining"):
        problem.worst_case_distribution({x: torch.ones(1, 2).double()}, THETA, of=rule)
    everywhere = dro.DecisionProblem(cp.sum(x), [dro.always(ruled <= 2.0)], ambiguity)
    assert float(everywhere.solve(THETA).objective) >= float(values[1]) - 1e-6


def test_failures_are_told_apart() -> None:
    y, ambiguity = boxed()
    x = cp.Variable(2, nonneg=True)
    loose, tight = dro.expected(y[0]) <= x[0], dro.cvar(y @ x, 0.9) <= -1.0
    problem = dro.DecisionProblem(cp.sum(x), [loose, tight, cp.sum(x) == 1], ambiguity)
    empty = THETA.clone()
    empty[0, 2] = -0.1
    solution = problem.solve(torch.cat([THETA, empty]))
    assert solution.statuses == [dro.Status.INFEASIBLE, dro.Status.EMPTY_SET]
    missed = problem.shortfalls(THETA)
    close(missed[loose], 0.0)
    # How far, by its definition: the least of the worst cases.
    t = cp.Variable()
    least = dro.DecisionProblem(t, [loose, dro.cvar(y @ x, 0.9) <= t, cp.sum(x) == 1], ambiguity)
    close(missed[tight], float(least.solve(THETA).objective) + 1.0)
    with pytest.raises(dro.SolveError, match=r"item 0, cvar\(.* is missed by"):
        problem.solve(THETA, on_failure="raise")
    with pytest.raises(dro.SolveError, match="is missed by"):
        dro.DROLayer(problem, on_failure="raise")(THETA)


def test_infinite_worst_cases_are_told_apart() -> None:
    """Of a constraint it leaves no decision; of the cost it is an infinite cost."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    ambiguity, theta = dro.MomentSet(y, [m.Norm(1)]), row(0.0, 0.0, 1.0)
    never = dro.always(y[0] + x[0] <= 3)
    problem = dro.DecisionProblem(cp.sum_squares(x), [never], ambiguity)
    assert problem.solve(theta).statuses == [dro.Status.INFEASIBLE]
    assert float(problem.shortfalls(theta)[never]) == np.inf
    assert float(problem.worst_case({x: torch.zeros(1, 2).double()}, theta, of=never)) == np.inf
    square = dro.MomentSet(y, [m.Linear(mu=[1.0, 0.0])])
    rule = dro.expected(y[0]) <= x[0]
    unbounded = dro.DecisionProblem(cp.sum_squares(x) + cp.abs(y[1]), [rule], square)
    assert unbounded.solve(row(1.0)).statuses == [dro.Status.INFINITE_WORST_CASE]


Y, X = dro.Uncertain(2), cp.Variable(2)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda: Y @ X <= 1, "say for which outcomes"),
        (lambda: dro.expected(Y[0]) <= Y[1], "outside of a worst case"),
        (lambda: dro.cvar(Y @ X, 0.9) >= 1, "from above"),
        (lambda: dro.expected(cp.pos(Y @ X)) >= 1, "from above"),
        (lambda: cp.square(dro.expected(cp.pos(Y @ X))) <= 1, "inside of"),
        (lambda: dro.expected(dro.cvar(Y @ X, 0.9)) <= 1, "of another one"),
        (lambda: cp.Parameter(name="p") * dro.expected(Y @ X) <= 1, "not convex"),
        (lambda: cp.Parameter(name="p") * dro.expected(Y[0]) <= X[0], "not convex"),
        (lambda: dro.always(cp.square(Y @ X) <= 1), r"in dro\.always"),
        (lambda: dro.always(Y @ X), "needs a <= b or a == b"),
        (lambda: dro.chance(Y @ X == 1, 0.9), "needs a <= b"),
        (lambda: dro.chance(Y @ X <= 1, 1.0), "probability between 0 and 1"),
        (lambda: dro.always(dro.expected(Y @ X) <= 1), "no worst case"),
    ],
)
def test_what_is_refused(rule: Callable[[], cp.Constraint], match: str) -> None:
    with pytest.raises(dro.ModelError, match=match):
        dro.DecisionProblem(cp.sum_squares(X), [rule()], dro.MomentSet(Y, [m.SquaredNorm()]))


def test_costs_that_are_refused() -> None:
    ambiguity = dro.MomentSet(Y, [m.SquaredNorm()])
    for cost, match in (
        (cp.Parameter(name="p") * dro.expected(Y[0]) + cp.abs(Y[1]), "not negative"),
        (cp.square(dro.expected(Y @ X)) + Y[0], "inside of"),
        (dro.expected(cp.square(Y @ X) + Y[1]) + Y[0], "curved in y"),
        (-dro.expected(cp.pos(Y @ X)) + Y[0], "not negative"),
    ):
        with pytest.raises(dro.ModelError, match=match):
            dro.DecisionProblem(cp.sum_squares(X) + cost, [], ambiguity)


def test_constraints_that_are_not_the_problems_own() -> None:
    problem, x, _, _ = shop()
    with pytest.raises(dro.ModelError, match="none of the problem's"):
        problem.worst_case({x: torch.ones(1, 2).double()}, SHOP[None], of=x <= 1)


def test_candidates_copies_and_pickles() -> None:
    problem, x, rules, _ = shop()
    candidates = torch.rand(3, 5, 2, dtype=torch.float64)
    outcomes = torch.rand(3, 2, dtype=torch.float64)
    found = problem.violations({x: candidates}, outcomes)
    assert [tuple(found[rule].shape) for rule in rules] == [(3, 5, 1), (3, 5, 1), (3, 5, 2), (3, 5, 2)]
    close(found[rules[3]][1, 2], (outcomes[1] - candidates[1, 2] - 4.5).numpy())
    assert copy.deepcopy(problem) is problem
    again = pickle.loads(pickle.dumps(problem))
    close(again.solve(SHOP[None]).objective, problem.solve(SHOP[None]).objective.numpy())

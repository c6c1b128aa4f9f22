"""Second stages written in CVXPY: the value that CVXPY finds, and what the matrix form says, by every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cvxpy as cp
import numpy as np
import pytest
import torch

import drolayers as dro
from drolayers.cost.recourse import Recourse
from drolayers.cost.second_stage import resolved

Written = tuple[cp.Minimize | cp.Maximize, list[cp.Constraint]]
Second = Callable[[cp.Variable, dro.Uncertain], Written]


def equalities(x: cp.Variable, y: dro.Uncertain) -> Written:
    z = cp.Variable((2, 2), nonneg=True)
    out = cp.Variable(2, nonneg=True)
    served = cp.sum(z, axis=0) + out == y
    return cp.Minimize(cp.sum(cp.multiply(np.array([[1.0, 3.0], [2.0, 1.5]]), z)) + 9 * cp.sum(out)), [
        served,
        z @ [1, 1] <= x,
    ]


def inequalities(x: cp.Variable, y: dro.Uncertain) -> Written:
    short = cp.Variable(2)
    return cp.Minimize([3.0, 4.0] @ short), [short >= y - x, short >= 0]


def free(x: cp.Variable, y: dro.Uncertain) -> Written:
    """Variables without a bound, tied by equations; and an epigraph."""
    level, top = cp.Variable(2), cp.Variable()
    return cp.Minimize(top + 0.3 * cp.sum(level)), [level == 2 * y - x, top >= level, top >= -3 * level[0] + x[1]]


def bounds(x: cp.Variable, y: dro.Uncertain) -> Written:
    """Every kind of bound, as attributes and as constraints."""
    a, b = cp.Variable(2, nonpos=True), cp.Variable(2, bounds=[-1.0, 2.5])
    c, d = cp.Variable(2), cp.Variable(bounds=[None, 4.0])
    goal = cp.sum(b) - 4 * cp.sum(a) + 2 * cp.sum(c) - d
    return cp.Minimize(goal), [a + b + c >= y - x, c >= -0.5, c <= 30, c >= -2, d <= cp.sum(x) + 1, 2 * b[0] <= 4]


def atoms(x: cp.Variable, y: dro.Uncertain) -> Written:
    """What linear programs can say."""
    z = cp.Variable(2)
    goal = cp.norm1(z - y) + 2 * cp.abs(z[0] - x[0]) + 2 * cp.pos(z[1])
    return cp.Minimize(goal), [cp.abs(z[1] - x[1]) <= 1, cp.cumsum(z)[1] >= cp.max(x) - 6]


def largest(x: cp.Variable, y: dro.Uncertain) -> Written:
    """Likewise."""
    z = cp.Variable(2)
    return cp.Minimize(cp.sum_largest(cp.hstack([z, y]), 2) + cp.norm_inf(z - x)), [cp.max(z) <= 3 + cp.sum(y)]


def data_of_its_own(x: cp.Variable, y: dro.Uncertain) -> Written:
    """Terms that the second stage cannot change, linear or not, and products of x and y."""
    z = cp.Variable(2, nonneg=True)
    goal = cp.sum_squares(x) + y @ x + cp.pos(y[0] - 1) + 3 + cp.sum(z)
    return cp.Minimize(goal), [z >= cp.multiply(y, x) - 1, z[0] + z[1] >= y[0]]


def profit(x: cp.Variable, y: dro.Uncertain) -> Written:
    sold = cp.Variable(2, nonneg=True)
    goal = [5.0, 4.0] @ sold - (cp.abs(sold[0] - sold[1]) + cp.sum_squares(x) - x[0])
    return cp.Maximize(goal), [sold <= x, sold <= y]


WRITTEN: dict[str, Second] = {
    f.__name__: f for f in (equalities, inequalities, free, bounds, atoms, largest, data_of_its_own, profit)
}


def build(second: Second, method: str) -> tuple[dro.DecisionProblem, cp.Variable, dro.Uncertain]:
    y, x = dro.Uncertain(2, dro.support.Box(0, 4)), cp.Variable(2, nonneg=True)
    goal, constraints = second(x, y)
    value = dro.recourse(goal, constraints=constraints, method=method)
    cost = 1.5 * cp.sum(x) + (value if isinstance(goal, cp.Minimize) else -value)
    return dro.DecisionProblem(cost, [x <= 5], dro.MomentSet(y, [dro.moments.SquaredNorm()])), x, y


def by_cvxpy(second: Second, at: np.ndarray, outcome: np.ndarray) -> float:
    """The cost as CVXPY computes it with everything else fixed."""
    y, x = dro.Uncertain(2, dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    goal, constraints = second(x, y)
    y.value = outcome
    problem = cp.Problem(goal, [*constraints, x == at])
    value = problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return 1.5 * at.sum() + (value if isinstance(goal, cp.Minimize) else -value)


@pytest.mark.parametrize("method", ["vertices", "decision_rule"])
@pytest.mark.parametrize("name", list(WRITTEN))
def test_the_loss_is_the_value_that_cvxpy_finds(name: str, method: str) -> None:
    problem, x, _ = build(WRITTEN[name], method)
    assert problem.conservative == (method == "decision_rule")
    assert [v.id for v in problem.variables] == [x.id]
    rng = np.random.default_rng(1)
    at, outcomes = rng.uniform(0, 4, (8, 2)), rng.uniform(0, 4, (8, 2))
    found = problem.loss({x: torch.as_tensor(at)}, torch.as_tensor(outcomes))
    expected = [by_cvxpy(WRITTEN[name], a, o) for a, o in zip(at, outcomes, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", list(WRITTEN))
def test_worst_cases(name: str) -> None:
    """Exact values are attained by a distribution in the set; rules are never below, and close."""
    theta = torch.tensor([[1.5, 2.0, 0.8]], dtype=torch.float64)
    at = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    exact, x, _ = build(WRITTEN[name], "vertices")
    rule, z, _ = build(WRITTEN[name], "decision_rule")
    value = float(exact.worst_case_cost({x: at}, theta))
    worst = exact.worst_case_distribution({x: at}, theta)
    outcomes = worst.atoms[0]
    losses = exact.loss({x: at.expand(len(outcomes), -1)}, outcomes)
    assert float(losses @ worst.probabilities[0]) == pytest.approx(value, rel=1e-6, abs=1e-6)
    spread = ((outcomes - theta[0, :2]) ** 2).sum(1) @ worst.probabilities[0]
    assert float(spread) <= 0.8 + 1e-5
    bound = float(rule.worst_case_cost({z: at}, theta))
    assert bound >= value - 1e-6
    assert bound <= value + 0.05 * (1 + abs(value))


def test_the_same_as_the_matrix_form() -> None:
    y, x = dro.Uncertain(2, dro.support.Box(0, 4)), cp.Variable(2, nonneg=True)
    W = np.array(
        [[1, 0, 1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0, 0, 1]]
    )
    matrix = dro.recourse([1.0, 3.0, 2.0, 1.5, 9.0, 9.0, 0.0, 0.0], W, cp.hstack([y, x]))
    typed = dro.DecisionProblem(1.5 * cp.sum(x) + matrix, [x <= 5], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    written, z, _ = build(equalities, "auto")
    theta = torch.tensor([[1.5, 2.0, 0.8], [3.0, 1.0, 0.1]], dtype=torch.float64)
    expected, found = typed.solve(theta), written.solve(theta)
    torch.testing.assert_close(found.objective, expected.objective, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(
        written.worst_case_cost({z: typed.decision(expected.primal)[x]}, theta),
        expected.objective,
        rtol=1e-6,
        atol=1e-7,
    )


def facility(method: str, demand: str) -> dro.DecisionProblem:
    """Three sites serve four customers within [0, 8]; what is not shipped is bought outside at 30."""
    rng = np.random.default_rng(1)
    distance = np.linalg.norm(rng.random((3, 1, 2)) - rng.random((1, 4, 2)), axis=2)
    y, capacity = dro.Uncertain(4, dro.support.Box(0, 8)), cp.Variable(3, nonneg=True)
    ship, outside = cp.Variable((3, 4), nonneg=True), cp.Variable(4, nonneg=True)
    served = cp.sum(ship, axis=0) + outside
    second = dro.recourse(
        cp.Minimize(10 * cp.sum(cp.multiply(distance, ship)) + 30 * cp.sum(outside)),
        [served == y if demand == "==" else served >= y, cp.sum(ship, axis=1) <= capacity],
        method=method,
    )
    return dro.DecisionProblem(
        4 * cp.sum(capacity) + second, [capacity <= 12], dro.MomentSet(y, [dro.moments.SquaredNorm()])
    )


def test_a_rule_has_room_where_demand_is_an_equation() -> None:
    """Without room it promises no delivery: 220 and 207 where 192 is right."""
    theta = torch.tensor([[4.0, 4.0, 4.0, 4.0, 6.0]], dtype=torch.float64)
    exact = float(facility("vertices", "==").solve(theta).objective)
    assert float(facility("vertices", ">=").solve(theta).objective) == pytest.approx(exact, rel=1e-7)
    for demand in ("==", ">="):
        value = float(facility("decision_rule", demand).solve(theta).objective)
        assert exact - 1e-6 <= value <= 1.02 * exact


def test_room_hides_no_infeasibility() -> None:
    """Demand of a town must be met exactly, so that y < 0 has no second stage, whatever a rule may throw away."""
    for support, usable in ((dro.support.Box(0, 3), True), (dro.support.Box(-1, 3), False)):
        y, x = dro.Uncertain(1, support), cp.Variable(nonneg=True)
        z = cp.Variable(2, nonneg=True)
        second = dro.recourse(cp.Minimize(z[0] + 5 * z[1]), [z[0] + z[1] == y[0], z[0] <= x], method="decision_rule")
        problem = dro.DecisionProblem(x + second, [x <= 3], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
        assert bool(problem.solve(torch.tensor([[1.0, 0.5]]).double()).ok[0]) == usable


def random_program(seed: int, method: str) -> tuple[dro.DecisionProblem, cp.Variable]:
    """Equations, an inequality and a free variable; bounded, and feasible everywhere for every second seed."""
    rng = np.random.default_rng(seed)
    T, W = rng.integers(-2, 3, (3, 2)), rng.integers(-1, 3, (3, 5)).astype(float)
    if seed % 2:
        W[:2, :4] = np.hstack([np.eye(2), -np.eye(2)])
    # A point of the dual: the multiplier of <= is negative, and what has no bound costs what its rows pay.
    price = W.T @ [*rng.normal(size=2), -rng.random()] + rng.random(5) * (np.arange(5) < 4)
    y, x = dro.Uncertain(2, dro.support.Box(0, 2)), cp.Variable(2)
    z, loose = cp.Variable(4, nonneg=True), cp.Variable()
    row = W[:, :4] @ z + W[:, 4] * loose
    rows = [row[:2] == y + (T @ x)[:2], row[2] <= x[0] + y[1]]
    second = dro.recourse(cp.Minimize(price[:4] @ z + price[4] * loose), rows, method=method)
    return dro.DecisionProblem(second, [x <= 9], dro.MomentSet(y, [dro.moments.SquaredNorm()])), x


def test_rules_with_room_are_sound_on_random_programs() -> None:
    """Never below the exact worst case, and infinite wherever that is."""
    finite = infinite = close = 0
    for seed in range(16):
        at = torch.as_tensor(np.random.default_rng(seed).uniform(0, 4, (6, 2)))
        theta = torch.tensor([[1.0, 1.0, 0.3]] * 6, dtype=torch.float64)
        values = []
        for method in ("vertices", "decision_rule"):
            problem, x = random_program(seed, method)
            values.append(problem.worst_case_cost({x: at}, theta).nan_to_num(nan=np.inf, posinf=np.inf))
        exact, rule = values
        known = exact.isfinite()
        assert not bool(rule[~known].isfinite().any())
        assert bool((rule[known] >= exact[known] - 1e-6 * (1 + exact[known].abs())).all())
        finite, infinite = finite + int(known.sum()), infinite + int((~known).sum())
        close += int((rule[known] <= exact[known] + 0.05 * (1 + exact[known].abs())).sum())
    assert min(finite, infinite) >= 15
    assert close >= 0.8 * finite


def test_variables_are_told_apart_by_where_they_stand() -> None:
    y, x, z = dro.Uncertain(2), cp.Variable(2, name="x"), cp.Variable(2, name="z")
    ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
    second = dro.recourse(cp.Minimize(cp.sum(z)), [z >= y - x, z >= x - y])
    assert {v.name() for v in dro.DecisionProblem(second, [x <= 5], ambiguity).variables} == {"x"}
    assert {v.name() for v in dro.DecisionProblem(cp.sum(x) + second, [], ambiguity).variables} == {"x"}
    # The same second stage may be used twice: it is one.
    twice = dro.DecisionProblem(second + cp.pos(second - 1), [x <= 5], ambiguity)
    assert {v.name() for v in twice.variables} == {"x"}
    with pytest.raises(dro.ModelError, match="nothing is decided before y"):
        dro.DecisionProblem(second, [], ambiguity)
    with pytest.raises(dro.ModelError, match="nothing is decided before y"):
        dro.DecisionProblem(dro.cvar(second, 0.9), [], ambiguity)
    with pytest.raises(dro.ModelError, match="z stands in two second stages"):
        dro.DecisionProblem(second + dro.recourse(cp.Minimize(cp.sum(z)), [z >= y]), [x <= 5], ambiguity)
    with pytest.raises(dro.ModelError, match="no variables of its own"):
        dro.DecisionProblem(second, [x <= 5, z >= 0], ambiguity)
    with pytest.raises(dro.ModelError, match="cannot stand in a constraint"):
        dro.DecisionProblem(second, [x <= 5, second <= 3], ambiguity)


def test_parameters_that_are_not_y_stay_in_the_right_hand_side() -> None:
    """As expressions, affine in the decision for every value."""
    y, x, z = dro.Uncertain(2), cp.Variable(2), cp.Variable(2, nonneg=True)
    stock = cp.Parameter(2, name="stock")
    (cost,) = resolved([dro.recourse(cp.Minimize(cp.sum(z)), [z >= y - x - 2 * stock])], [x >= 0])
    (atom,) = [part for part in cost.args if isinstance(part, Recourse)]
    x.value, y.value, stock.value = np.array([1.0, 2.0]), np.array([3.0, 5.0]), np.array([0.5, 4.0])
    assert atom.args[0].is_dpp()
    assert cost.value == pytest.approx(1.0)
    held = dro.recourse(cp.Minimize(cp.sum(z)), [cp.multiply(stock, z) >= y - x])
    with pytest.raises(dro.ModelError, match="multiplies its variables by stock in a constraint"):
        resolved([held], [x >= 0])


def refused(goal: cp.Minimize | cp.Maximize, constraints: Sequence[cp.Constraint], y: dro.Uncertain) -> str:
    x = [v for v in (goal.variables() + [v for c in constraints for v in c.variables()]) if v.name() == "x"]
    with pytest.raises(dro.ModelError) as caught:
        dro.DecisionProblem(dro.recourse(goal, constraints), [x[0] <= 1], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    assert str(caught.value).count(". ") == 0
    return str(caught.value)


def test_what_is_no_linear_program_is_refused() -> None:
    y, x, z = dro.Uncertain(2, name="y"), cp.Variable(2, name="x"), cp.Variable(2, nonneg=True, name="z")
    rows = [z >= y - x]
    assert "by y in" in refused(cp.Minimize(y @ z), rows, y)
    assert "by x in" in refused(cp.Minimize(x @ z), rows, y)
    assert "by y in" in refused(cp.Minimize(cp.sum(z)), [*rows, cp.multiply(y, z) <= 3], y)
    assert "by second-stage variables" in refused(cp.Minimize(cp.sum(z)), [*rows, z[0] * z[1] >= 1], y)
    assert "not linear" in refused(cp.Minimize(cp.sum_squares(z)), rows, y)
    assert "not linear" in refused(cp.Minimize(cp.sum(z)), [*rows, cp.norm(z - x) <= 3], y)
    assert "not convex" in refused(cp.Minimize(-cp.max(z)), rows, y)
    assert "not convex" in refused(cp.Minimize(cp.sum(z)), [*rows, cp.abs(z) == 1], y)
    assert "not convex" in refused(cp.Maximize(cp.abs(z[0])), rows, y)
    assert "unbounded below" in refused(cp.Minimize(-cp.sum(z)), rows, y)
    assert "unbounded below" in refused(cp.Minimize(cp.sum(cp.Variable(2))), rows, y)
    assert "z2 is integer" in refused(cp.Minimize(cp.sum(z)), [*rows, cp.Variable(name="z2", boolean=True) >= z], y)
    with pytest.raises(dro.ModelError, match="== and <="):
        dro.recourse(cp.Minimize(cp.sum(z)), [cp.SOC(z[0], x)])
    with pytest.raises(dro.ModelError, match="not 3"):
        dro.recourse(cp.Minimize(cp.sum(z)), 3)  # type: ignore[call-overload]
    with pytest.raises(dro.ModelError, match="wrap an objective"):
        dro.recourse(cp.sum(z), rows)
    with pytest.raises(dro.ModelError, match="no third argument"):
        dro.recourse(cp.Minimize(cp.sum(z)), rows, y)  # type: ignore[call-overload]
    with pytest.raises(dro.ModelError, match="must be one of"):
        dro.recourse(cp.Minimize(cp.sum(z)), rows, method="guess")


def test_a_maximum_of_y_on_the_right_is_never_mistaken() -> None:
    """CVXPY takes a maximum of parameters for a constant; as an upper bound it is not convex in y."""
    y, x, z = dro.Uncertain(2), cp.Variable(2, name="x"), cp.Variable(2, nonneg=True)
    assert "affine in y" in refused(cp.Minimize(-cp.sum(z)), [z <= cp.pos(y), z <= x], y)


def test_a_second_stage_without_rows_is_its_constant() -> None:
    y, x, z = dro.Uncertain(2), cp.Variable(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(
        dro.recourse(cp.Minimize(cp.sum(z) + cp.pos(y[0] - x[0]))),
        [x <= 1],
        dro.MomentSet(y, [dro.moments.SquaredNorm()]),
    )
    loss = problem.loss({x: torch.tensor([[1.0, 0.0]])}, torch.tensor([[3.0, 0.0]]))
    assert float(loss) == pytest.approx(2.0)


def test_cvar_of_a_second_stage() -> None:
    y, x = dro.Uncertain(2, dro.support.Box(0, 4)), cp.Variable(2, nonneg=True)
    goal, constraints = inequalities(x, y)
    short = cp.sum(cp.multiply([3.0, 4.0], cp.pos(y - x)))
    theta, values = torch.tensor([[1.5, 2.0, 0.8]], dtype=torch.float64), []
    for second in (dro.recourse(goal, constraints), short):
        cost = cp.sum(x) + dro.cvar(second, 0.8)
        values.append(
            float(dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()])).solve(theta).objective)
        )
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize("method", ["vertices", "decision_rule"])
def test_integers_before_a_second_stage(method: str) -> None:
    """Which sites to open under a Wasserstein ball: the best of all plans, each evaluated."""
    y, opened = dro.Uncertain(2, dro.support.Box(0, 3)), cp.Variable(2, boolean=True)
    ship, outside = cp.Variable((2, 2), nonneg=True), cp.Variable(2, nonneg=True)
    second = dro.recourse(
        cp.Minimize(cp.sum(cp.multiply(np.array([[1.0, 2.0], [2.5, 1.0]]), ship)) + 6 * cp.sum(outside)),
        [cp.sum(ship, axis=0) + outside == y, cp.sum(ship, axis=1) <= cp.multiply([2.0, 2.5], opened)],
        method=method,
    )
    problem = dro.DecisionProblem(np.array([2.0, 2.5]) @ opened + second, [], dro.Wasserstein(y, 2))
    nominal = torch.tensor([[[0.5, 1.0], [1.5, 2.0]]]).double(), torch.full((1, 2), 0.5).double()
    radius = torch.tensor([[0.3]]).double()
    plans = torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0)).double()
    several = tuple(part.expand(4, *part.shape[1:]) for part in nominal)
    values = problem.worst_case_cost({opened: plans}, radius.expand(4, 1), several)
    decision = dro.DROLayer(problem).eval()(radius, nominal)
    assert float(decision.value) == pytest.approx(float(values.min()), rel=1e-6)
    torch.testing.assert_close(decision.best[opened][0], plans[values.argmin()])

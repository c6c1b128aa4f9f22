"""Adaptive decisions under sets without moments to respond to, beside constraints' own sets, losses and targets."""

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet

ATOMS = np.array([[1.0, 2.0], [3.0, 1.0], [0.5, 0.6]])
WEIGHTS = np.array([0.3, 0.45, 0.25])
PRICE = np.array([3.2, 2.1])


def tensor(values: object) -> Tensor:
    """One item."""
    return torch.as_tensor(np.asarray(values, dtype=np.float64))[None]


NOMINAL = tensor(ATOMS), tensor(WEIGHTS)
NONE = torch.zeros(1, 0, dtype=torch.float64)
GRID = np.stack(np.meshgrid(np.linspace(0.0, 1.0, 9), np.linspace(0.0, 1.0, 9)), -1).reshape(-1, 2)
BOX = np.array([1.0, 1.0]) + GRID * np.array([1.0, 1.2])
"""Outcomes that the box of outcomes allows."""

Made = tuple[Callable[[dro.Uncertain], AmbiguitySet], Tensor, object, np.ndarray]

SETS: dict[str, Made] = {
    "box": (lambda y: dro.Outcomes(y), tensor([1.5, 1.6, 0.5, 0.6]), None, BOX),
    "mean and covariance": (
        lambda y: dro.MeanCovariance(y, [1.3, 1.8], [[0.8, 0.0], [0.3, 0.9]], 0.1),
        NONE,
        None,
        4.0 * GRID,
    ),
    "order inf": (lambda y: dro.Wasserstein(y, 3, order=np.inf), tensor([0.4]), NOMINAL, ATOMS),
    "metric": (lambda y: dro.Wasserstein(y, 3, metric=[[1.0, 0.5], [0.0, 2.0]]), tensor([0.4]), NOMINAL, 4.0 * GRID),
    "fixed": (lambda y: dro.Wasserstein(y, 3, fixed=[1]), tensor([0.4]), NOMINAL, ATOMS),
    "one atom": (lambda y: dro.Wasserstein(y, 1), tensor([0.4]), (tensor(ATOMS[:1]), tensor([1.0])), 4.0 * GRID),
    "mixture": (
        lambda y: dro.Mixture([dro.MomentSet(y, [m.SquaredNorm()]), dro.Wasserstein(y, 3)], [0.4, 0.6], "chi2"),
        tensor([0.1, 1.3, 1.8, 1.1, 0.4]),
        [None, NOMINAL],
        4.0 * GRID,
    ),
}


def newsvendor(ambiguity: AmbiguitySet) -> tuple[dro.DecisionProblem, dro.Adaptive]:
    """Shortages as an adaptive decision."""
    x, short = cp.Variable(2, nonneg=True, name="x"), dro.Adaptive(2, to=ambiguity.y, name="short", nonneg=True)
    rules = [dro.always(short >= ambiguity.y - x), x <= 5]
    return dro.DecisionProblem(cp.sum(x) + PRICE @ short, rules, ambiguity), short


@pytest.mark.parametrize("name", SETS)
def test_bounds_hold_under_every_set(name: str) -> None:
    """Never below the exact value, nor the rule of a second stage, and what is promised holds at outcomes."""
    made, theta, nominal, allowed = SETS[name]
    ambiguity = made(dro.Uncertain(2, support=dro.support.Box(0.0, 4.0)))
    problem, short = newsvendor(ambiguity)
    x, z = cp.Variable(2, nonneg=True), cp.Variable(2, nonneg=True)
    exact, ruled = (
        dro.DecisionProblem(
            cp.sum(x) + dro.recourse(cp.Minimize(PRICE @ z), [z >= ambiguity.y - x], method=method), [x <= 5], ambiguity
        )
        for method in ("vertices", "decision_rule")
    )
    decision = dro.DROLayer(problem, on_failure="raise")(theta, nominal)
    value, (first,) = float(decision.value), problem.variables
    least, bound = (float(other.solve(theta, nominal).objective) for other in (exact, ruled))
    assert least - 1e-6 <= bound
    # Second stages have a rule for every event of a mixture.
    assert bound <= value if ambiguity.events else value == pytest.approx(bound, rel=1e-6)
    chosen = {first: decision.best[first]}
    assert value == pytest.approx(float(problem.worst_case_cost(chosen, theta, nominal)), rel=1e-6)
    points = torch.as_tensor(allowed)
    everywhere = {v: part.expand(len(points), *part.shape[1:]) for v, part in decision.best.items()}
    assert max(float(rows.max()) for rows in problem.violations(everywhere, points).values()) <= 1e-6
    cost = everywhere[first].sum(1) + decision.rule[short](points) @ torch.as_tensor(PRICE)
    torch.testing.assert_close(problem.loss(everywhere, points), cost)


def test_events_share_their_rules() -> None:
    """A mixture of atoms is the distribution of all of them, under one rule."""
    y = dro.Uncertain(2)
    x, short = cp.Variable(2, nonneg=True), dro.Adaptive(2, to=y)
    cost = cp.sum(x) + PRICE @ short + 5 * cp.norm1(short - 1)
    rules = [dro.always(short >= y - x), dro.always(cp.sum(short) == cp.sum(y) - x[0])]
    events = dro.Mixture([dro.Empirical(y, 2), dro.Empirical(y, 1)], [0.75, 0.25])
    split = [(tensor(ATOMS[:2]), tensor([0.4, 0.6])), (tensor(ATOMS[2:]), tensor([1.0]))]
    mixed = dro.DecisionProblem(cost, rules, events).solve(NONE, split)
    whole = dro.DecisionProblem(cost, rules, dro.Empirical(y, 3)).solve(NONE, NOMINAL)
    assert float(mixed.objective) == pytest.approx(float(whole.objective), rel=1e-7)


def test_one_atom_is_one_that_stands_twice() -> None:
    """On all of space, where distances need be said once unless rules respond to them."""
    y = dro.Uncertain(1)
    x, over = cp.Variable(nonneg=True), dro.Adaptive(1, to=y, nonneg=True)
    values = []
    for count in (1, 2):
        problem = dro.DecisionProblem(x + 2.5 * cp.sum(over), [dro.always(over >= y - x)], dro.Wasserstein(y, count))
        nominal = tensor(np.full((count, 1), 3.0)), tensor(np.full(count, 1 / count))
        values.append(float(problem.solve(tensor([0.4]), nominal).objective))
    # Worst is to stock three: of all mass that moves up, by 0.4 on average, each unit is bought at 2.5.
    assert values == pytest.approx([4.0, 4.0], rel=1e-6)


def at_the_atoms(
    loss: Callable[[cp.Expression, np.ndarray], cp.Expression], weights: np.ndarray, bound: float
) -> float:
    """An affine rule at the atoms, written out: its mean loss, with a bound on the mean of its sum."""
    x, fixed, slope = cp.Variable(2, nonneg=True), cp.Variable(2), cp.Variable((2, 2))
    rows = [fixed + slope @ atom for atom in ATOMS]
    constraints = [row >= atom - x for row, atom in zip(rows, ATOMS, strict=True)]
    constraints.append(sum(w * cp.sum(row) for w, row in zip(weights, rows, strict=True)) <= bound)
    total = cp.sum(x) + sum(w * loss(row, atom) for w, row, atom in zip(weights, rows, ATOMS, strict=True))
    return float(cp.Problem(cp.Minimize(total), constraints).solve(solver=cp.CLARABEL))


def test_a_loss_of_a_rule_at_the_atoms() -> None:
    """Losses that are curved in y see affine rules as they see y."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    rule = dro.Adaptive(2, to=y)
    cost = cp.sum(x) + cp.sum_squares(rule - 0.5 * y[0]) + PRICE @ rule
    rules = [dro.always(rule >= y - x), dro.expected(cp.sum(rule)) <= 0.4]
    problem = dro.DecisionProblem(cost, rules, dro.Empirical(y, 3))
    written = at_the_atoms(lambda row, atom: cp.sum_squares(row - 0.5 * atom[0]) + PRICE @ row, WEIGHTS, 0.4)
    assert float(problem.solve(NONE, NOMINAL).objective) == pytest.approx(written, rel=1e-6)


def test_an_affine_rule_under_another_set() -> None:
    """It means the same under a constraint's own set: here a ball next to nothing."""
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    rule = dro.Adaptive(2, to=y)
    rules = [dro.always(rule >= y - x), dro.expected(cp.sum(rule), ambiguity=dro.Divergence(y, 3, "tv")) <= 0.4]
    problem = dro.DecisionProblem(cp.sum(x) + PRICE @ rule + 5 * cp.norm1(rule), rules, dro.Empirical(y, 3))
    written = at_the_atoms(lambda row, atom: PRICE @ row + 5 * cp.norm1(row), WEIGHTS, 0.4)
    assert float(problem.solve(tensor([1e-9]), NOMINAL).objective) == pytest.approx(written, rel=1e-6)


def test_second_stages_respond_to_the_moments_of_their_own_set() -> None:
    """The worst case of a constraint is the cost's under its set."""
    y = dro.Uncertain(2, support=dro.support.Box(0.0, 4.0))
    x, z = cp.Variable(2, nonneg=True), cp.Variable(2, nonneg=True)
    stage = dro.recourse(cp.Minimize(PRICE @ z), [z >= y - x], method="decision_rule")
    own = dro.MomentSet(y, [m.Norm(1)])
    bounded = dro.expected(stage, ambiguity=own) <= 2.5
    problem = dro.DecisionProblem(cp.sum(x), [bounded], dro.Empirical(y, 3))
    alone = dro.DecisionProblem(stage, [x <= 5], own)
    theta = tensor([1.3, 1.8, 1.1])
    decision = dro.DROLayer(problem, on_failure="raise")(theta, NOMINAL)
    (first,) = problem.variables
    at = float(alone.worst_case_cost({alone.variables[0]: decision.best[first]}, theta))
    assert at == pytest.approx(2.5, rel=1e-5)
    assert float(problem.worst_case(decision.best, theta, NOMINAL, of=bounded)) == pytest.approx(0.0, abs=1e-5)


def test_what_is_refused() -> None:
    y = dro.Uncertain(2, support=dro.support.Box(0.0, 4.0))
    x, v = cp.Variable(2, nonneg=True), dro.Adaptive(2, to=y, name="v", nonneg=True)
    squared, ball = dro.MomentSet(y, [m.SquaredNorm()]), dro.Wasserstein(y, 3)
    short, total, foreign = dro.always(v >= y - x), cp.sum(v), "set of its own, and the adaptive decision v"
    for said, cost, rules, ambiguity in (
        (foreign, total, [dro.expected(total, ambiguity=ball) <= 9], squared),
        (foreign, total, [dro.always(v <= 9, ambiguity=squared)], ball),
        (foreign, dro.expected(total, ambiguity=ball), [], squared),
        ("fragility cannot hold the adaptive decision v", dro.fragility(cp.sum(x) + total, 20.0), [], ball),
        ("beside the decision rule of v", cp.sum_squares(v) + cp.sum(x), [], squared),
    ):
        with pytest.raises(dro.ModelError, match=said):
            dro.DecisionProblem(cost, [short, *rules], ambiguity)

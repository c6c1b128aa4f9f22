"""Constraints and expectations with sets of their own: equal to everybody's set, gradients, certificates, failures."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet
from tests.drolayers.reformulation.differences import analytic, central, gap

ATOMS = torch.tensor([[0.5, 1.0], [2.0, 0.3], [1.2, 2.2]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
OWN = torch.tensor([[1.0, 1.3, 0.9, 1.1, 1.0, 1.6]], dtype=torch.float64)
COST = torch.tensor([[0.9, 1.4, 0.5]], dtype=torch.float64)


def around(batch: int) -> tuple[Tensor, Tensor]:
    return ATOMS.expand(batch, 3, 2), WEIGHTS.expand(batch, 3)


def two_moments(y: dro.Uncertain) -> dro.MomentSet:
    return dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()])


NEWER: dict[str, tuple[Callable[[dro.Uncertain], AmbiguitySet], list[float], bool]] = {
    "box": (dro.Outcomes, [0.9, 1.2, 0.3, 0.5], False),
    "mean and covariance": (dro.MeanCovariance, [0.9, 1.2, 0.5, 0.0, 0.2, 0.7, 0.1], False),
    "ball": (lambda y: dro.Wasserstein(y, 3, 2, np.inf), [0.2], False),
    "mixture": (lambda y: dro.Mixture({"a": two_moments(y), "b": dro.Empirical(y, 3)}), [0.4, 0.6, *OWN[0]], False),
    "square": (lambda y: dro.Wasserstein(y, 3, 2, 2), [0.2], True),
    "pinned square": (lambda y: dro.Divergence(y, 3, "chi2"), [0.2], True),
}
RULES: dict[str, Callable[..., cp.Constraint]] = {
    "expected": lambda y, x, **own: dro.expected(cp.sum(cp.pos(y - x)), **own) <= 0.7,
    "cvar": lambda y, x, **own: dro.cvar(cp.sum(cp.pos(y - x)), 0.7, **own) <= 1.2,
    "chance": lambda y, x, **own: dro.chance(y <= x + 0.5, 0.8, **own),
    "always": lambda y, x, **own: dro.always(y <= x + 1.0, **own),
}


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("ball", [False, True])
def test_a_set_of_its_own_is_everybodys_where_the_cost_is_certain(kind: str, ball: bool) -> None:
    y, x = dro.Uncertain(2, support=dro.support.Box(0.0, 4.0)), cp.Variable(2)
    price = np.array([1.0, 1.4])
    own: AmbiguitySet = dro.Divergence(y, 3, "chi2") if ball else two_moments(y)
    theta, nominal = (torch.tensor([[0.4]]).double(), around(1)) if ball else (OWN, None)
    other = RULES[kind](y, x, ambiguity=own)
    apart = dro.DecisionProblem(price @ x, [other], dro.MomentSet(y, [m.SquaredNorm()]))
    together = dro.DecisionProblem(price @ x, [RULES[kind](y, x)], own)
    assert list(apart.parameters) == ["0.mu", "0.sigma", *(f"set1.{name}" for name in own.parameters)]
    assert apart.size == 3 + own.size
    both = torch.cat([COST, theta], 1)
    one, two = apart.solve(both, nominal, on_failure="raise"), together.solve(theta, nominal, on_failure="raise")
    torch.testing.assert_close(one.variable(x), two.variable(x), rtol=1e-6, atol=1e-6)
    # The constraint is tight. At the very point its worst case is zero, which some processors tell from 1e-10;
    # on others it is NaN.
    less, chosen = ({x: one.variable(x) + move} for move in (-1e-3, 1e-3))
    below, above = (float(apart.worst_case(at, both, nominal, of=other).max()) for at in (chosen, less))
    assert -1e-2 < below < 0.0 < above < 1e-2
    row = None if kind != "always" else 0
    atoms, probabilities = apart.worst_case_distribution(chosen, both, nominal, of=other, row=row)
    again, same = together.worst_case_distribution(chosen, theta, nominal, of=together.rules[0].constraint, row=row)
    means = [(p[..., None] * a).sum(1) for a, p in ((atoms, probabilities), (again, same))]
    torch.testing.assert_close(means[0], means[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NEWER)
def test_every_kind_of_set_may_be_a_constraints_own(name: str) -> None:
    """The least t above a worst case is that of the cost under the same set, and moves alike."""
    y, x, t = dro.Uncertain(2), cp.Variable(2), cp.Variable()
    make, numbers, curved = NEWER[name]
    own, cost = make(y), cp.sum(cp.maximum(2 * (y - x), x - y))
    if curved:
        cost = cp.square(y[0] - x[0] - 2 * x[1]) + 0.1 * cp.sum_squares(x)
    theta = torch.tensor([numbers], dtype=torch.float64)
    rule = dro.expected(cost, ambiguity=own) <= t
    apart = dro.DecisionProblem(t, [rule], dro.MomentSet(y, [m.SquaredNorm()]))
    together = dro.DecisionProblem(cost, [], own)
    nominal = around(1) if own.needs_nominal else None
    theta, again = theta.requires_grad_(), theta.detach().clone().requires_grad_()
    both = torch.cat([COST, theta], 1)
    one, two = apart.solve(both, nominal, on_failure="raise"), together.solve(again, nominal, on_failure="raise")
    torch.testing.assert_close(one.objective, two.objective, rtol=1e-6, atol=1e-7)
    rates = [torch.autograd.grad(v.sum(), at)[0] for v, at in ((one.objective, theta), (two.objective, again))]
    torch.testing.assert_close(rates[0], rates[1], rtol=1e-4, atol=1e-5)
    chosen = {x: one.variable(x).detach(), t: one.variable(t).detach()}
    found = apart.worst_case(chosen, both, nominal, of=rule)[:, 0] + chosen[t]
    torch.testing.assert_close(found, together.worst_case_cost(chosen, theta, nominal), rtol=1e-6, atol=1e-7)


def test_events_have_nominal_distributions_and_names_of_their_own() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    square, events = dro.MomentSet(y, [m.SquaredNorm()]), {"a": two_moments(y), "b": dro.Empirical(y, 3)}
    cost = cp.sum(cp.abs(y - x))
    rule = dro.expected(cost, ambiguity=dro.Wasserstein(y, 3)) <= 9.0
    with pytest.raises(dro.ModelError, match="cannot stand beside other sets around one"):
        dro.DecisionProblem(cost, [rule], dro.Mixture(events))
    rule = dro.expected(cost, ambiguity=square.named("a")) <= 9.0
    with pytest.raises(dro.ModelError, match=r"Two parameters of the problem are called 'a\.0\.mu'"):
        dro.DecisionProblem(cost, [rule], dro.Mixture(events))


def test_projection_of_all_kinds_at_once() -> None:
    """Each by its own: the nominal distribution is in every set afterwards."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    cost, others = cp.sum(cp.abs(y - x)), [dro.Outcomes(y), dro.Mixture({"a": two_moments(y), "b": two_moments(y)})]
    rules = [dro.expected(cost, ambiguity=one) <= 90.0 for one in others]
    problem = dro.DecisionProblem(cost, rules, dro.MomentSet(y, [m.SquaredNorm()]))
    theta = torch.linspace(0.1, 0.9, problem.size, dtype=torch.float64)[None]
    found = problem.sets.parts(dro.Projection(problem.sets)(theta, around(1)))
    for member, before, after in zip(problem.sets.members, problem.sets.parts(theta), found, strict=True):
        torch.testing.assert_close(after, dro.Projection(member)(before, around(1)))
        assert float((after - before).abs().max()) > 0.1


def mixed() -> tuple[dro.DecisionProblem, cp.Variable, Tensor]:
    """Three sets: of the cost, of an expectation in it and a constraint, and of a chance."""
    y, x = dro.Uncertain(2, support=dro.support.Box(0.0, 4.0)), cp.Variable(2)
    shared, service = dro.Wasserstein(y, 3), two_moments(y).named("service")
    cost = cp.sum_squares(x) + 2 * dro.expected(cp.sum(cp.abs(y - x)), ambiguity=shared) + cp.sum(cp.pos(x - y))
    rules = [
        dro.expected(cp.pos(y[0] - x[0]), ambiguity=shared) <= 0.25,
        dro.chance(y[1] <= x[1] + 0.9, 0.7, ambiguity=service),
    ]
    theta = torch.cat([COST[0], torch.tensor([0.1]).double(), OWN[0]])
    return dro.DecisionProblem(cost, rules, dro.MomentSet(y, [m.SquaredNorm()])), x, theta


def test_gradients_with_respect_to_all_parts() -> None:
    problem, x, theta = mixed()
    names = ["0.mu", "0.sigma", "set1.radius", "service.0.mu", "service.0.sigma", "service.1.mu", "service.1.sigma"]
    assert list(problem.parameters) == names
    torch.testing.assert_close(problem.pack(problem.unpack(theta[None])), theta[None])

    def decide(theta: Tensor) -> Tensor:
        solution = problem.solve(theta, around(len(theta)), on_failure="raise")
        return torch.cat([solution.variable(x), solution.objective[:, None]], 1)

    found, expected = analytic(decide, theta), central(decide, theta)
    # Every set has a say.
    for part in (slice(0, 3), slice(3, 4), slice(4, 10)):
        assert expected[:, part].abs().max() > 0.05
    assert gap(found, expected) < 1e-4


def test_layer_takes_all_parts_by_name_and_in_other_units() -> None:
    problem, x, theta = mixed()
    layer = dro.DROLayer(problem)
    best = layer(problem.unpack(theta[None]), around(1)).best[x]
    torch.testing.assert_close(best, layer(theta[None], around(1)).best[x])
    with pytest.raises(dro.ShapeError, match=r"\(batch, 10\)"):
        layer(theta[None, :3], around(1))


def test_integers_are_those_of_enumeration() -> None:
    y, x = dro.Uncertain(2, support=dro.support.Box(0.0, 4.0)), cp.Variable(2, integer=True, bounds=[0, 4])
    rule = dro.expected(cp.sum(cp.pos(y - x)), ambiguity=two_moments(y)) <= 0.9
    cost = x @ np.array([1.0, 1.4]) + cp.sum(cp.pos(x - y))
    problem = dro.DecisionProblem(cost, [rule], dro.MomentSet(y, [m.SquaredNorm()]))
    theta = torch.cat([COST, OWN], 1)
    best = dro.DROLayer(problem).eval()(theta)
    points = problem.integer_points(None)
    assert points is not None
    every = problem.solve(theta.expand(len(points), -1), fixed=points)
    value = torch.where(every.ok, every.objective, torch.inf)
    assert 0 < int(every.ok.sum()) < 25
    assert float(best.value) == pytest.approx(float(value.min()), rel=1e-6)


def test_projection_is_set_by_set() -> None:
    problem, _, theta = mixed()
    projection = dro.Projection(problem.sets, margin=0.1)
    far = theta[None] + torch.tensor([3.0, 3, -5, -5, 3, 3, -5, 3, 3, -5]).double()
    found = projection(far, around(1))
    members = problem.sets.members
    parts = [
        dro.Projection(one, margin=0.1)(part, around(1))
        for one, part in zip(members, problem.sets.parts(far), strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(parts, 1))
    assert bool((problem.sets.emptiness(found, around(1)) <= 0).all())
    with pytest.raises(dro.ModelError, match="weights names"):
        dro.Projection(problem.sets, {"nothing": 1.0})


def test_an_empty_set_of_a_constraint_is_told_of() -> None:
    """Also where the cost does not see it, so that the program looks solvable: over no distribution all is well."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    rule = dro.expected(cp.sum(cp.pos(y - x)), ambiguity=two_moments(y).named("service")) <= 0.7
    problem = dro.DecisionProblem(cp.sum_squares(x), [rule], dro.MomentSet(y, [m.SquaredNorm()]))
    apart = OWN.clone()
    apart[0, 3:5] += 5.0
    theta = torch.cat([COST.expand(3, 3), torch.cat([OWN, apart, OWN])], 1)
    # An empty set of the cost, which nothing is asked of here but that it is one.
    theta[2, 2] = -1.0
    ok, empty = dro.Status.OPTIMAL, dro.Status.EMPTY_SET
    assert problem.solve(theta).statuses == [ok, empty, empty]
    with pytest.raises(dro.SolveError, match=r"item 1, service, the set of expected\(.* is empty: .* missed by"):
        problem.solve(theta[:2], on_failure="raise")
    with pytest.raises(dro.SolveError, match="item 0, the cost's set is empty"):
        problem.solve(theta[2:], on_failure="raise")
    assert problem.worst_case({x: torch.zeros(3, 2).double()}, theta, of=rule)[:2].isnan().ravel().tolist() == [
        False,
        True,
    ]


def test_equations_in_a_constraints_set_are_no_edge() -> None:
    """A mean that is known leaves a set without interior, which says nothing about the accuracy."""
    y, x = dro.Uncertain(2, support=dro.support.Box(0.0, 4.0)), cp.Variable(2)
    rule = dro.expected(cp.pos(y - x), ambiguity=dro.MomentSet(y, [m.Mean()])) <= 0.5
    problem = dro.DecisionProblem(cp.sum(x), [rule], dro.MomentSet(y, [m.SquaredNorm()]))
    solution = problem.solve(torch.cat([COST, torch.tensor([[1.0, 2.0]]).double()], 1))
    assert solution.statuses == [dro.Status.OPTIMAL]
    # sup E(y - x)⁺ = μ (4 - x) / 4 on [0, 4].
    torch.testing.assert_close(solution.variable(x), torch.tensor([[2.0, 3.0]]).double(), rtol=1e-6, atol=1e-6)


def test_sets_seen_not_to_be_empty_are_not() -> None:
    y = dro.Uncertain(2, support=dro.support.Box(0.0, 2.0))
    ambiguity = two_moments(y)
    generator = torch.Generator().manual_seed(0)
    theta = OWN + torch.randn(40, 6, dtype=torch.float64, generator=generator)
    settled, excess = ambiguity.settled(theta), ambiguity.emptiness(theta, None)
    assert 0 < int(settled.sum()) < 40
    assert bool((excess[settled] < 0).all())


def test_an_infeasible_constraint_is_not_an_empty_set() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    easy = dro.expected(y[0]) <= 9
    hard = dro.cvar(y[0] - x[0], 0.9, ambiguity=two_moments(y)) <= 0
    problem = dro.DecisionProblem(cp.sum(x), [easy, hard, x <= 1], dro.MomentSet(y, [m.SquaredNorm()]))
    theta = torch.cat([COST, OWN], 1)
    assert problem.solve(theta).statuses == [dro.Status.INFEASIBLE]
    missed = problem.shortfalls(theta)
    assert float(missed[easy]) == pytest.approx(0.0, abs=1e-6)
    expected = problem.worst_case({x: torch.ones(1, 2).double()}, theta, of=hard)
    assert float(missed[hard]) == pytest.approx(float(expected), rel=1e-6)
    with pytest.raises(dro.SolveError, match=r"item 0, cvar\(.* is missed by"):
        problem.solve(theta, on_failure="raise")


def test_what_is_refused() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    square, other = dro.MomentSet(y, [m.SquaredNorm()]), dro.MomentSet(dro.Uncertain(2), [m.SquaredNorm()])

    def made(first: object, second: object = None, cost: cp.Expression | None = None) -> dro.DecisionProblem:
        rules = [dro.expected(y @ x, ambiguity=first) <= 1, dro.expected(y[0], ambiguity=second) <= x[0]]
        return dro.DecisionProblem(cp.sum_squares(x) if cost is None else cost, rules, square)

    for build, match in (
        (lambda: made("ball"), "a set such as"),
        (lambda: made(other), "over another uncertain vector"),
        (lambda: made(dro.Wasserstein(y, 3), dro.Empirical(y, 4)), "3 and 4 atoms"),
        (lambda: made(two_moments(y).named("a"), two_moments(y).named("a")), "Two sets of the problem are named 'a'"),
        (lambda: made(square, cost=dro.cvar(y @ x, 0.9, ambiguity=two_moments(y))), r"dro\.expected\(dro\.cvar"),
        (lambda: two_moments(y).named("a b"), "one word"),
    ):
        with pytest.raises(dro.ModelError, match=match):
            build()
    # The set of the problem by name is no other set.
    assert made(square).size == square.size

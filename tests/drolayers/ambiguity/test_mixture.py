"""Mixtures: the same as what they stand for, written out; constraints, statuses, projection, learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Derivative, Solution, make_engine
from drolayers import Status, plot
from drolayers import moments as m
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.reweighted import divergence
from tests.drolayers.ambiguity.sets import PHI
from tests.drolayers.reformulation.differences import analytic, central, gap

RNG = np.random.default_rng(0)
ATOMS, WEIGHTS = RNG.normal(1.0, 0.6, (2, 4, 3)), RNG.dirichlet(np.ones(4), 2)
TIGHT = make_engine().with_tolerance(1e-12)
LOW, HIGH = dro.support.Box(hi=1.0), dro.support.Box(lo=2.0)


def row(*values: float | np.ndarray) -> Tensor:
    """One item of θ."""
    return torch.as_tensor(np.concatenate([np.ravel(v) for v in values])[None].astype(float))


def close(found: Tensor, expected: float | np.ndarray) -> None:
    np.testing.assert_allclose(found.detach().numpy().ravel(), np.ravel(expected), rtol=1e-6, atol=1e-6)


def pairs() -> list[dro.Nominal]:
    """One nominal distribution for each of two events."""
    return [
        dro.Nominal(torch.as_tensor(a)[None], torch.as_tensor(w)[None]) for a, w in zip(ATOMS, WEIGHTS, strict=True)
    ]


def newsvendor(y: dro.Uncertain, x: cp.Variable) -> cp.Expression:
    return cp.sum(cp.maximum(2 * (y - x), x - y))


def paid(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same for many outcomes."""
    return np.maximum(2 * (y - x), x - y).sum(-1)


def test_a_portfolio_written_out() -> None:
    """On all of space f_s = -μ_sᵀx + ‖x‖√σ_s; of the weights only the proportions matter."""
    y, x = dro.Uncertain(3), cp.Variable(3, nonneg=True)
    mixture = dro.Mixture({"rain": dro.MomentSet(y, [m.SquaredNorm()]), "dry": dro.MomentSet(y, [m.SquaredNorm()])})
    assert mixture.parameters == {
        "weights": (2,),
        **{f"{event}.0.{name}": shape for event in ("rain", "dry") for name, shape in (("mu", (3,)), ("sigma", ()))},
    }
    problem = dro.DecisionProblem(-y @ x + 0.3 * cp.sum_squares(x), [cp.sum(x) == 1], mixture)
    mu, sigma = np.array([[0.1, 0.3, 0.2], [0.4, 0.0, 0.1]]), np.array([0.04, 0.2])
    theta = row([3.0, 1.0], mu[0], sigma[0], mu[1], sigma[1])
    p = np.array([0.75, 0.25])
    expected = cp.Problem(
        cp.Minimize(-(p @ mu) @ x + (p @ np.sqrt(sigma)) * cp.norm(x) + 0.3 * cp.sum_squares(x)), [cp.sum(x) == 1]
    ).solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    close(problem.solve(theta).objective, expected)

    def optimum(at: Tensor) -> Tensor:
        solution = problem.solve(at, engine=TIGHT)
        return torch.cat([solution.variable(x), solution.objective[:, None]], 1)

    assert gap(analytic(optimum, theta[0]), central(optimum, theta[0])) < 1e-4


def test_empirical_events_are_an_empirical_distribution() -> None:
    y, x = dro.Uncertain(3), cp.Variable(3)
    mixture = dro.Mixture([dro.Empirical(y, 4), dro.Empirical(y, 4)], [0.3, 0.7])
    problem = dro.DecisionProblem(newsvendor(y, x), [], mixture)
    whole = dro.DecisionProblem(newsvendor(y, x), [], dro.Empirical(y, 8))
    weights = torch.as_tensor(np.concatenate([0.3 * WEIGHTS[0], 0.7 * WEIGHTS[1]])[None])
    joined = torch.as_tensor(np.concatenate(ATOMS)[None]), weights
    nothing = torch.zeros(1, 0, dtype=torch.float64)
    close(problem.solve(nothing, pairs()).objective, whole.solve(nothing, joined).objective.numpy())
    with pytest.raises(dro.ShapeError, match="2 events, but 3 nominal"):
        problem.solve(nothing, [*pairs(), None])
    with pytest.raises(dro.ShapeError, match="Event '1' needs a nominal distribution of 4 atoms, not none"):
        problem.solve(nothing, [pairs()[0], None])


@pytest.mark.parametrize("kind", ["chi2", "tv", "kl"])
def test_reweighted_events_as_one_program_of_probabilities(kind: str) -> None:
    """With q_sn = p_s·(mass of atom n in event s) all of it is one program, the members' balls as perspectives."""
    y, x = dro.Uncertain(3), cp.Variable(3)
    mixture = dro.Mixture([dro.Divergence(y, 4, "chi2"), dro.Divergence(y, 4, "tv")], [0.4, 0.6], kind)
    problem = dro.DecisionProblem(newsvendor(y, x), [], mixture)
    at = np.array([0.8, 1.1, 1.3])
    theta, (radius, *radii) = row([0.2, 0.3, 0.4]), (0.2, 0.3, 0.4)
    q, p, given = cp.Variable((2, 4), nonneg=True), cp.Variable(2, nonneg=True), np.array([0.4, 0.6])
    constraints = [cp.sum(q, axis=1) == p, cp.sum(p) == 1, given @ PHI[kind](cp.multiply(1 / given, p)) <= radius]
    off = [q[s] - p[s] * WEIGHTS[s] for s in range(2)]
    constraints += [
        cp.norm(cp.multiply(WEIGHTS[0] ** -0.5, off[0])) <= radii[0] ** 0.5 * p[0],
        cp.norm(off[1], 1) <= radii[1] * p[1],
    ]
    costs = np.stack([paid(at, atoms) for atoms in ATOMS])
    best = cp.Problem(cp.Maximize(cp.sum(cp.multiply(costs, q))), constraints).solve(solver=cp.CLARABEL)
    decision = {x: torch.as_tensor(at)[None]}
    close(problem.worst_case_cost(decision, theta, pairs()), best)
    found = problem.worst_case_distribution(decision, theta, pairs())
    np.testing.assert_allclose(found.probabilities.numpy().reshape(2, 4), q.value, atol=1e-4)
    used, bounds = mixture.usage(theta, mixture.around(pairs(), theta), found.mass)
    assert bool((used <= bounds + 1e-5).all()), (used, bounds)


def test_vehicles_before_demand_is_known() -> None:
    """Four kinds of weather with means, variances and bounds of their own: RSOME's event-wise example, -88.28187.

    The statistics are those of its decision tree on its data, https://xiongpengnus.github.io/rsome/example_dro_vehicle.
    """
    table = np.loadtxt(Path(__file__).with_name("vehicle.csv"), delimiter=",", skiprows=1).reshape(4, 10, 7)
    days, (mean, variance, least, most) = table[:, 0, 1], np.moveaxis(table[:, :, 3:], 2, 0)
    revenue = np.array([4.50, 4.41, 3.61, 4.49, 4.38, 4.58, 4.53, 4.64, 4.58, 4.32])
    y, x = dro.Uncertain(10), cp.Variable(10, nonneg=True)
    sets = [
        dro.MomentSet(y.within(dro.support.Box(least[s], most[s])), [m.Mean(), m.Variance(mu=mean[s])])
        for s in range(4)
    ]
    cost = (3.0 - revenue) @ x + revenue @ cp.pos(x - y)
    problem = dro.DecisionProblem(cost, [cp.sum(x) <= 400], dro.Mixture(sets))
    theta = row(days, *(part for s in range(4) for part in (mean[s], variance[s])))
    solution = problem.solve(theta)
    assert float(solution.objective) == pytest.approx(-88.28187, abs=5e-6)
    decision = {x: solution.variable(x).detach()}
    found = problem.worst_case_distribution(decision, theta)
    atoms, p, event = found.atoms[0], found.probabilities[0], problem.ambiguity.event_of(found.mass.origin)[0]
    attained = p @ problem.loss({x: decision[x].expand(len(p), -1)}, atoms)
    close(attained, solution.objective.numpy())
    for s in range(4):
        mine, share = atoms[event == s].numpy(), p[event == s].numpy()
        assert share.sum() == pytest.approx(days[s] / 77, abs=1e-6)
        np.testing.assert_allclose(share @ mine / share.sum(), mean[s], rtol=1e-5, atol=1e-4)
        assert (mine >= least[s] - 1e-5).all()
        assert (mine <= most[s] + 1e-5).all()


# --- Constraints ------------------------------------------------------------------------------------------------------


def split() -> tuple[dro.Uncertain, dro.Mixture]:
    """Below one in the first event, above two in the second, and all in [0, 3]."""
    y = dro.Uncertain(1, support=dro.support.Box(0.0, 3.0))
    sets = [dro.MomentSet(y.within(part), [m.Mean()]) for part in (LOW, HIGH)]
    return y, dro.Mixture(sets)


@pytest.mark.parametrize(("weights", "expected"), [([0.5, 0.5], 3.0), ([1.0, 0.0], 1.0), ([0.0, 2.0], 3.0)])
def test_always_is_about_events_that_can_happen(weights: list[float], expected: float) -> None:
    (y, mixture), t = split(), cp.Variable()
    constraint = dro.always(y[0] <= t)
    problem = dro.DecisionProblem(t, [constraint], mixture)
    theta = row(weights, 0.5, 2.5)
    solution = problem.solve(theta)
    close(solution.objective, expected)
    decision = {t: torch.tensor([expected], dtype=torch.float64)}
    close(problem.worst_case(decision, theta, of=constraint), 0.0)
    atoms, p = problem.worst_case_distribution(decision, theta, of=constraint)
    close((p * atoms[..., 0]).sum(1), expected)


@pytest.mark.parametrize(("weights", "expected"), [([0.5, 0.5], 3.0), ([1.0, 0.0], 1.0), ([0.0, 2.0], 3.0)])
@pytest.mark.parametrize("affine", [True, False])
def test_rules_obey_what_can_happen(affine: bool, weights: list[float], expected: float) -> None:
    """An affine row of a rule is said for all outcomes at once, another one through its largest value: alike."""
    (y, mixture), t = split(), cp.Variable()
    v = dro.Adaptive(1, to=y)
    top = dro.always((v[0] if affine else cp.maximum(v[0], y[0])) <= t)
    problem = dro.DecisionProblem(t, [top, dro.always(v >= y)], mixture)
    decision = dro.DROLayer(problem, on_failure="raise")(row(weights, 0.5, 2.5))
    close(decision.value, expected)
    seen = torch.tensor([[1.0 if weights[0] else 3.0]], dtype=torch.float64)
    assert float(decision.rule[v](seen)) >= float(seen) - 1e-6


@pytest.mark.parametrize("adaptive", [True, False])
def test_what_cannot_happen_must_still_be_bounded(adaptive: bool) -> None:
    """Without an upper end in the second event a row has no largest value there, even where that cannot happen."""
    y, t = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable()
    mixture = dro.Mixture([dro.MomentSet(y.within(part), [m.Mean()]) for part in (LOW, dro.support.Box(lo=2.0))])
    v = dro.Adaptive(1, to=y) if adaptive else y
    rules = [dro.always(v[0] <= t), *([dro.always(v >= y)] if adaptive else [])]
    solution = dro.DecisionProblem(t, rules, mixture).solve(row([1.0, 0.0], 0.5, 2.5))
    assert solution.statuses == [Status.INFEASIBLE]


def test_means_tails_and_chances() -> None:
    """With an affine mean in each event: expectations are sums, tails those of the worst two-point distributions."""
    (y, mixture), t = split(), cp.Variable()
    theta = row([0.7, 0.3], 0.5, 2.5)

    def least(constraint: Callable[[dro.Uncertain, cp.Variable], cp.Constraint]) -> Tensor:
        return dro.DecisionProblem(t, [constraint(y, t)], mixture).solve(theta, on_failure="raise").objective

    close(least(lambda y, t: dro.expected(y[0]) <= t), 0.7 * 0.5 + 0.3 * 2.5)
    close(least(lambda y, t: dro.expected(cp.pos(y[0] - 1.5)) <= t), 0.3)
    # The worst tail: half of the second event at 3, and then the other half at 2, half of the first at 1.
    close(least(lambda y, t: dro.cvar(y[0], 0.85) <= t), 3.0)
    close(least(lambda y, t: dro.cvar(y[0], 0.7) <= t), 2.5)
    close(least(lambda y, t: dro.cvar(y[0], 0.35) <= t), (0.3 * 2.5 + 0.35) / 0.65)
    close(least(lambda y, t: dro.chance(y[0] <= t, 0.7)), 2.5)


def test_second_stages() -> None:
    """A rule for every event bounds the cost that the vertices give exactly; nowhere must it be infeasible."""
    y = dro.Uncertain(2, support=dro.support.Box(0.0, 3.0))
    x, short = cp.Variable(2, nonneg=True), cp.Variable(2)
    values = []
    for method in ("vertices", "decision_rule"):
        sets = [dro.MomentSet(y.within(part), [m.SquaredNorm()]) for part in (LOW, HIGH)]
        stage = dro.recourse(cp.Minimize(np.array([3.0, 2.0]) @ short), [short >= y - x, short >= 0], method=method)
        problem = dro.DecisionProblem(cp.sum(x) + stage, [], dro.Mixture(sets))
        values.append(float(problem.solve(row([0.6, 0.4], [0.5, 0.6], 0.3, [2.4, 2.3], 0.2)).objective))
    assert values[0] - 1e-7 <= values[1] <= values[0] * 1.05


def test_integers() -> None:
    y = dro.Uncertain(3, support=dro.support.Nonnegative())
    x = cp.Variable(3, boolean=True)
    mixture = dro.Mixture([dro.MomentSet(y, [m.Norm(1)]), dro.Wasserstein(y, 4)], kind="tv")
    problem = dro.DecisionProblem(newsvendor(y, 2 * x) + cp.sum(x), [], mixture)
    theta = row([0.5, 0.5], 0.3, [1.0, 0.2, 2.0], 0.5, 0.1)
    nominal = [None, pairs()[1]]
    decision = dro.DROLayer(problem, candidates=3).eval()(theta, nominal)
    points = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    beside = [None, dro.Nominal(*(part.expand(8, *part.shape[1:]) for part in pairs()[1]))]
    values = problem.worst_case_cost({x: points}, theta.expand(8, -1), beside)
    close(decision.value, values.min().numpy())


# --- Known data -------------------------------------------------------------------------------------------------------


def test_known_data_in_the_support_of_an_event() -> None:
    y, t, top = dro.Uncertain(1, support=dro.support.Box(lo=0.0)), cp.Variable(), cp.Parameter(name="top")
    sets = [dro.MomentSet(y.within(part), [m.Mean()]) for part in (LOW, dro.support.Box(hi=top))]
    problem = dro.DecisionProblem(t, [dro.always(y[0] <= t)], dro.Mixture(sets, [0.5, 0.5]))
    assert problem.known == {"top": ()}
    theta = row(0.5, 0.2).expand(3, -1)
    solution = problem.solve(theta, known={"top": torch.tensor([2.0, 0.5, -1.0])})
    assert solution.statuses == [Status.OPTIMAL, Status.OPTIMAL, Status.EMPTY_SET]
    close(solution.objective[:2], [2.0, 1.0])
    projected = dro.Projection(problem.ambiguity)
    report = projected.status(
        theta, dro.Nominal(torch.full((3, 1, 1), 0.4), torch.ones(3, 1)), {"top": [2.0, 1.0, 1.0]}
    )
    assert bool(report.ok.all()), report.sentences


# --- Statuses, projection, learning ----------------------------------------------------------------------------------


def test_statuses() -> None:
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2)
    mixture = dro.Mixture([dro.MomentSet(y, [m.Norm(1)]), dro.MomentSet(y, [m.Norm(1)])], kind="chi2")
    problem = dro.DecisionProblem(newsvendor(y, x), [], mixture)
    good = {"weights": [0.5, 0.5], "radius": 0.1, "0": [1.0, 1.0, 0.3], "1": [2.0, 1.0, 0.4]}
    changes: list[dict] = [
        {},
        {"1": [-2.0, 1.0, 0.4]},
        {"weights": [-0.1, 1.0]},
        {"weights": [0.0, 0.0]},
        {"radius": -0.1},
    ]
    theta = torch.cat([row(*(good | change).values()) for change in changes])
    assert problem.solve(theta).statuses == [Status.OPTIMAL] + [Status.EMPTY_SET] * 4


KINDS = [None, "kl", "burg", "chi2", "tv", "hellinger"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_of_probability_zero_cannot_happen(kind: str | None) -> None:
    """It was given a probability of 1e-9, which is a third of 27 under Hellinger, and 1 where the event is far away."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    sets = [dro.MomentSet(y, [m.SquaredNorm()]), dro.MomentSet(y, [m.Norm(1)])]
    cost = cp.sum(x) + 4 * cp.sum(cp.pos(y - x)) + 0.1 * cp.sum_squares(x)
    problem = dro.DecisionProblem(cost, [x <= 9], dro.Mixture(sets, kind=kind))
    sure = dro.DecisionProblem(cost, [x <= 9], dro.MomentSet(y, [m.SquaredNorm()]))
    calm = ([3.0, 3.0], 1.0)
    expected = float(sure.solve(row(*calm), engine=TIGHT).objective)
    assert expected == pytest.approx(11.438165, abs=1e-6)
    for far in (3.0, 1e6):
        theta = row([1.0, 0.0], *([] if kind is None else [0.1]), *calm, [4.0, far], 1.0)
        solution = problem.solve(theta, on_failure="raise")
        assert float(solution.objective) == pytest.approx(expected, rel=1e-6)
        decision = {x: solution.variable(x).detach()}
        found = problem.worst_case_distribution(decision, theta)
        assert float(found.probabilities[problem.ambiguity.event_of(found.mass.origin) == 1].sum()) == 0.0
        assert float(found.probabilities.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["kl", "burg", "chi2", "tv", "hellinger"])
def test_probabilities_next_to_nothing_are_right_or_told(kind: str) -> None:
    """Two events next to points at 0 and 100: the largest probability of the second, as bisection finds it."""
    y, x = dro.Uncertain(1), cp.Variable(nonneg=True)
    sets = [dro.MomentSet(y, [m.SquaredNorm()]) for _ in range(2)]
    problem = dro.DecisionProblem(x + y[0], [x <= 1], dro.Mixture(sets, kind=kind))
    rare = [1e-3, 1e-6, 1e-9, 1e-12, 1e-14, 1e-15, 1e-17, 0.0]
    theta = torch.cat([row([1 - p, p], 0.1, 0.0, 1e-4, 100.0, 1e-4) for p in rare])
    solution = problem.solve(theta)
    for p, status, value in zip(rare, solution.statuses, solution.objective, strict=True):
        expected = 100 * most(kind, p, 0.1) + 0.01
        allowed = {Status.OPTIMAL: 1e-6, Status.INACCURATE: 1e-4}.get(status, np.inf)
        assert not abs(float(value) / expected - 1) > allowed, (p, status, value, expected)
        assert p >= 1e-9 or kind in ("kl", "hellinger", "chi2") or status.ok
    assert solution.statuses[-1] == Status.OPTIMAL


def most(kind: str, p: float, radius: float) -> float:
    """The largest probability in a ball around p, of one event of two."""
    if p == 0.0:
        return 0.0
    low, high = p, 1.0 - 1e-12
    for _ in range(200):
        q = 0.5 * (low + high)
        ratio = torch.tensor([[(1 - q) / (1 - p), q / p]], dtype=torch.float64)
        inside = divergence(kind, ratio, torch.tensor([[1 - p, p]], dtype=torch.float64)) <= radius
        low, high = (q, high) if inside else (low, q)
    return low


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("projected", [True, False])
def test_gradients_beside_an_event_that_cannot_happen(kind: str | None, projected: bool) -> None:
    """A projection returns zeros for weights below zero: all other derivatives stay, or are masked and told."""
    y, x = dro.Uncertain(2), cp.Variable(2)
    sets = [dro.MomentSet(y, [m.SquaredNorm()]) for _ in range(3)]
    cost = cp.sum(x) + 5 * cp.sum(cp.pos(y - x)) + 0.5 * cp.sum_squares(x)
    mixture = dro.Mixture(sets, kind=kind)
    problem, layer = dro.DecisionProblem(cost, [], mixture), dro.Projection(mixture)
    events = ([9.0, 9.0], 9.0, [1.0, 1.4], 1.0, [1.2, 1.1], 2.0)
    theta = row([-0.1 if projected else 0.0, 0.4, 0.6], *([] if kind is None else [0.1]), *events)
    around = [dro.Nominal(torch.tensor([[mu, mu]]).double(), torch.full((1, 2), 0.5).double()) for mu in events[::2]]

    first, told = theta[:, :1], list[Solution]()

    def optimum(rest: Tensor) -> Tensor:
        at = torch.cat([first.expand(len(rest), -1), rest], 1)
        several = [dro.Nominal(*(part.expand(len(rest), *part.shape[1:]) for part in one)) for one in around]
        told.append(problem.solve(layer(at, several) if projected else at, engine=TIGHT, on_failure="raise"))
        return torch.cat([told[-1].variable(x), told[-1].objective[:, None]], 1)

    found, expected = analytic(optimum, theta[0, 1:]), central(optimum, theta[0, 1:], 1e-5)
    assert float(expected[:2].abs().max()) > 0.01
    assert gap(found[2:], expected[2:]) < 1e-4
    if told[0].derivative.tolist() == [Derivative.KINK]:
        assert float(found[:2].abs().max()) == 0.0
    else:
        assert gap(found[:2], expected[:2]) < 1e-4
    # Next to it there is no set on one side, and nothing is said of the other.
    weight = first.clone().requires_grad_()
    at = torch.cat([weight, theta[:, 1:]], 1)
    problem.solve(layer(at, around) if projected else at).objective.sum().backward()
    assert weight.grad is not None
    assert float(weight.grad) == 0.0


def test_projection_goes_event_by_event() -> None:
    y = dro.Uncertain(3)
    mixture = dro.Mixture([dro.MomentSet(y, [m.SquaredNorm()]), dro.Wasserstein(y, 4), dro.Empirical(y, 4)], kind="tv")
    theta = row([-0.2, 0.5, 0.5], -1.0, [1.0, 1.0, 1.0], 0.01, -0.3)
    nominal = [*pairs(), pairs()[0]]
    found = mixture.unpack(dro.Projection(mixture)(theta, nominal))
    alone = dro.Projection(mixture.sets[0])(mixture.theta_of(theta, 0), nominal[0])
    close(torch.cat([found["0.0.mu"], found["0.0.sigma"][:, None]], 1), alone.numpy())
    close(found["weights"], [0.0, 0.5, 0.5])
    close(found["radius"], 0.0)
    close(found["1.radius"], 0.0)
    with pytest.raises(dro.ShapeError, match="also for '0'"):
        dro.Projection(mixture)(theta, [None, *nominal[1:]])
    close(dro.Projection(mixture)(-theta.abs(), nominal)[:, :3], np.ones(3))


def test_one_nominal_distribution_serves_all_events() -> None:
    """Each takes what lies in its own support."""
    y = dro.Uncertain(1)
    mixture = dro.Mixture([dro.Empirical(y.within(LOW), 3), dro.MomentSet(y.within(HIGH), [m.SquaredNorm()])])
    atoms, weights = torch.tensor([[[0.0], [0.5], [4.0]]]).double(), torch.tensor([[0.2, 0.2, 0.6]]).double()
    theta = row([0.5, 0.5], 3.0, 0.1)
    first, second = mixture.each((atoms, weights), theta)
    close(first.weights, [0.5, 0.5, 0.0])
    close(second.weights, [0.0, 0.0, 1.0])
    problem = dro.DecisionProblem(y[0] * cp.Variable(nonneg=True, name="x") + 1, [], mixture)
    (x,) = problem.variables
    value = problem.worst_case_cost({x: torch.ones(1)}, theta, (atoms, weights))
    close(value, 1 + 0.5 * 0.25 + 0.5 * (3.0 + 0.1**0.5))
    typical = mixture.typical(torch.tensor([[0.2], [0.4], [2.5], [2.7]]))
    close(typical["weights"].centre, [0.5, 0.5])
    close(typical["1.0.mu"].centre, [2.6])


@pytest.mark.parametrize("padding", [False, True])
def test_atoms_of_an_event_do_not_depend_on_other_items(padding: bool) -> None:
    """Beside an atom of 1e9 in another item, one of 4.5 was within an event that ends at 4; likewise beside padding."""
    y, x = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(nonneg=True)
    parts = [y.within(part) for part in (dro.support.Box(hi=4.0), dro.support.Box(lo=4.0))]
    mixture = dro.Mixture([dro.Wasserstein(part, 5) for part in parts], [0.5, 0.5])
    problem = dro.DecisionProblem(x + 3 * cp.pos(y[0] - x), [], mixture)
    atoms = torch.tensor([[1.0, 3.0, 4.5, 8.0, 1e9 if padding else 8.0], [1.0, 3.0, 5.0, 7.0, 1e9]]).double()[..., None]
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [0.25, 0.25, 0.2, 0.2, 0.1]]).double()
    theta = torch.full((2, 2), 0.5).double()
    together = problem.solve(theta, (atoms, weights)).objective[0]
    assert float(together) == pytest.approx(7.875, abs=1e-6)
    close(mixture.allowed(dro.Nominal(atoms, weights))[0], [0.5, 0.5])


def test_learning() -> None:
    """The learner trains mixtures; that the radius of a ball among them is not fitted to data is said."""
    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    sets = {"calm": dro.MomentSet(y, [m.SquaredNorm()]), "wild": dro.Wasserstein(y.within(dro.support.Box(lo=0.5)), 5)}
    problem = dro.DecisionProblem(newsvendor(y, x), [], dro.Mixture(sets))
    Z = RNG.normal(size=(40, 1))
    Y = np.abs(2 + Z + RNG.normal(size=(40, 2)))
    quiet = dro.Trainer(progress=False)
    learner = dro.DecisionFocusedLearner(problem, training=dro.Stage(epochs=2), trainer=quiet).fit(Z, Y)
    assert np.isfinite(learner.score(Z, Y))
    assert list(learner.predict_set(Z)) == ["weights", "calm.0.mu", "calm.0.sigma", "wild.radius"]
    with pytest.warns(UserWarning, match="does not determine"):
        dro.DecisionFocusedLearner(problem, training=None, trainer=quiet).fit(Z, Y)
    with pytest.raises(dro.ModelError, match="anchor"):
        dro.DecisionFocusedLearner(problem, training=dro.Stage(anchor=1.0), trainer=quiet).fit(Z, Y)


@pytest.mark.parametrize("needy", [False, True])
def test_pictures(needy: bool) -> None:
    y, x = dro.Uncertain(1), cp.Variable(1)
    second = dro.Wasserstein(y, 3) if needy else dro.MomentSet(y, [m.SquaredNorm()])
    problem = dro.DecisionProblem(newsvendor(y, x), [], dro.Mixture([dro.MomentSet(y, [m.SquaredNorm()]), second]))
    theta = row([0.5, 0.5], 1.0, 0.3, *([0.2] if needy else [2.0, 0.3]))
    nominal = torch.rand(1, 3, 1).double(), torch.full((1, 3), 1 / 3).double()
    decision = dro.DROLayer(problem)(theta, nominal if needy else None)
    assert plot.worst_case(problem, decision.best, theta, nominal).collections
    assert plot.price_of_robustness(problem, theta, "0.0.sigma", [0.1, 0.4], nominal=nominal).lines


def test_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dro.Divergence, "scaled", lambda self, theta, factor: factor * theta, raising=False)
    y = dro.Uncertain(3)
    mixture = dro.Mixture([dro.Divergence(y, 4), dro.Empirical(y, 4)], kind="tv")
    monkeypatch.setattr(dro.Empirical, "scaled", lambda self, theta, factor: theta, raising=False)
    close(mixture.scaled(row([0.3, 0.7], 0.2, 0.1), 3.0), [0.3, 0.7, 0.6, 0.3])


# --- What is refused --------------------------------------------------------------------------------------------------


def _sets() -> list[AmbiguitySet]:
    y = dro.Uncertain(2)
    return [dro.MomentSet(y, [m.Norm(1)]), dro.Wasserstein(y, 3)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dro.Mixture([]), "non-empty"),
        (lambda: dro.Mixture([m.Norm(1)]), "non-empty"),
        (lambda: dro.Mixture([*_sets(), _sets()[0]]), "over different vectors"),
        (lambda: dro.Mixture([_sets()[0]] * 1 + [dro.Mixture(_sets())]), "cannot be an event of another"),
        (lambda: dro.Mixture([*(one := _sets()), one[0]]), "listed twice"),
        (lambda: dro.Mixture(_sets(), [0.5, 0.25, 0.25]), "has 2 events"),
        (lambda: dro.Mixture(_sets(), [0.5, 0.4]), "add up to one"),
        (lambda: dro.Mixture(_sets(), [1.0, 0.0]), "must be positive"),
        (lambda: dro.Mixture(_sets(), kind="l2"), "needs one of the kinds"),
        (lambda: dro.Uncertain(2).within(3.0), "within needs"),
        (lambda: dro.Uncertain(1, dro.support.Box(0, 1)).within(dro.support.Box(lo=2)), "lo <= hi"),
    ],
)
def test_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(dro.ModelError, match=message):
        make()


def test_costs_are_written_in_y_itself() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    part = y.within(LOW)
    assert part.whole is y
    assert part.within(dro.support.Nonnegative()).whole is y
    with pytest.raises(dro.ModelError, match="not the one of the ambiguity set"):
        dro.DecisionProblem(part @ x, [], dro.Mixture([dro.MomentSet(part, [m.Norm(1)])]))

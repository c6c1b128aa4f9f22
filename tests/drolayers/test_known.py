"""Known data: one problem with parameters against problems that were built with the numbers of each item."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import drolayers as dro
from conelayers import make_engine
from conelayers.engine.solvers.interior import Interior
from conelayers.errors import ModelError, ShapeError
from conelayers.oracles import BranchAndBound, Enumeration
from drolayers import Status
from drolayers import moments as m
from drolayers.errors import MaskedDataWarning
from tests.conelayers.integer.test_contract import LINEAR_ONLY, ORACLES
from tests.drolayers.ambiguity.sets import SETS, SetCase
from tests.drolayers.known import COSTS, KnownCase, Setting, fits
from tests.drolayers.reformulation.differences import analytic, central, gap
from tests.drolayers.reformulation.problems import SUPPORTS, SupportCase
from tests.helpers.programs import needs_moreau

ENGINE = make_engine()
TIGHT = replace(ENGINE, solver=ENGINE.solver.with_tolerance(1e-12))
Row = tuple[SetCase, SupportCase, KnownCase]


def diagonal() -> list[Row]:
    """Every set once, with supports and costs in turn; ``python -m research attack`` draws others."""
    rows = []
    for i, kind in enumerate(SETS):
        support = SUPPORTS[(3 * i) % len(SUPPORTS)]
        usable = [cost for cost in COSTS if fits(support, cost)]
        rows.append((kind, support, usable[i % len(usable)]))
    # Costs that the turn has left out.
    seen = {row[2].name for row in rows}
    nonnegative = SUPPORTS[1]
    return rows + [(SETS[k], nonnegative, cost) for k, cost in enumerate(COSTS, 7) if cost.name not in seen]


def name(row: Row) -> str:
    return " / ".join(part.name for part in row)


@pytest.mark.parametrize("row", diagonal(), ids=name)
def test_the_same_as_with_constants(row: Row) -> None:
    here = Setting(*row)
    problem, known = here.problem, here.known
    solution = problem.solve(here.theta, here.nominal, known=known)
    assert bool(solution.ok.all()), solution.statuses
    decision = {v: t.detach() for v, t in problem.decision(solution.primal).items()}
    f = problem.worst_case_cost(decision, here.theta, here.nominal, known=known)
    torch.testing.assert_close(f, solution.objective, rtol=1e-6, atol=1e-6)
    for item in range(here.batch):
        alone = here.constants(item).solve(*here.of_item(item))
        torch.testing.assert_close(alone.objective[0], solution.objective[item], rtol=1e-6, atol=1e-6)
        if here.cost.unique:
            found = solution.variable(here.x)[item]
            torch.testing.assert_close(alone.variable(here.x)[0], found, rtol=1e-4, atol=1e-4)
    if not here.cost.conservative:
        spread = problem.worst_case_distribution(decision, here.theta, here.nominal, known=known)
        outcomes = spread.atoms.unbind(1)
        losses = torch.stack([problem.loss(decision, y, known=known) for y in outcomes], 1)
        expected = torch.where(spread.probabilities > 0, losses * spread.probabilities, 0.0).sum(1)
        torch.testing.assert_close(expected + spread.escaping_cost, f, rtol=1e-6, atol=1e-6)


def assert_derivative(
    function: Callable[[Tensor], Tensor], at: Tensor, found: Tensor, rows: slice | int, tolerance: float
) -> None:
    """Against central differences; shorter steps, which magnify rounding, where a longer one runs into a kink."""
    gaps = []
    for step in (1e-3, 1e-4, 1e-5, 1e-6):
        gaps.append(gap(found[rows], central(function, at, step)[rows]))
        if gaps[-1] < tolerance:
            return
    raise AssertionError(f"differences are {gaps} away, more than {tolerance}")


@pytest.mark.parametrize("row", diagonal()[::2], ids=name)
def test_gradients_in_known_data(row: Row) -> None:
    # Nothing is shown by gradients of zero.
    assert check_gradients(row) > 1e-2


def check_gradients(row: Row) -> float:
    """Compare the gradients of one problem; returns the largest."""
    here = Setting(*row, batch=1)

    def optimum(flat: Tensor) -> Tensor:
        theta, nominal = here.repeated(len(flat))
        solution = here.problem.solve(theta, nominal, known=here.unflat(flat), engine=TIGHT)
        assert bool(solution.ok.all()), solution.statuses
        return torch.cat([solution.variable(here.x), solution.objective[:, None]], 1)

    def cost(flat: Tensor) -> Tensor:
        theta, nominal = here.repeated(len(flat))
        x = {v: torch.full((len(flat), *v.shape), 0.35, dtype=torch.float64) for v in here.problem.variables}
        return here.problem.worst_case_cost(x, theta, nominal, known=here.unflat(flat))[:, None]

    found = analytic(optimum, here.flat)
    assert_derivative(optimum, here.flat, found, 2, 1e-4)
    if here.cost.unique:
        assert_derivative(optimum, here.flat, found, slice(2), 2e-3)
    assert_derivative(cost, here.flat, analytic(cost, here.flat), slice(1), 1e-4)
    return float(found.abs().max())


@pytest.mark.parametrize("engine", ["auto", "batched", "clarabel", pytest.param("moreau", marks=needs_moreau)])
@pytest.mark.parametrize("cost", ["nested maxima", "convex parts"])
def test_engines(engine: str, cost: str) -> None:
    case = next(c for c in COSTS if c.name == cost)
    kind = next(c for c in SETS if c.name == "first and second")
    here = Setting(kind, SUPPORTS[1], case, batch=3)
    layer = dro.DROLayer(here.problem, engine=engine)
    known = {n: v.clone().requires_grad_() for n, v in here.known.items()}
    decision = layer(here.theta, known=known)
    assert bool(decision.ok.all()), decision.statuses
    decision.best[here.x].sum().backward()
    grads = {n: v.grad for n, v in known.items()}
    reference = {n: v.clone().requires_grad_() for n, v in here.known.items()}
    solution = here.problem.solve(here.theta, known=reference, engine=TIGHT)
    solution.variable(here.x).sum().backward()
    torch.testing.assert_close(decision.value, solution.objective, rtol=1e-6, atol=1e-6)
    for n, grad in grads.items():
        torch.testing.assert_close(grad, reference[n].grad, rtol=1e-3, atol=1e-3)


# Integers: feasible sets differ from item to item.

DAYS = 6
SHAPES = {"stock": (3,), "price": (3,), "b": (), "w": (3,), "cap": (), "need": ()}


def days() -> dict[str, np.ndarray]:
    """Data of days, of which the fourth and the last leave no lots to choose."""
    rng = np.random.default_rng(3)
    return {
        "stock": rng.uniform(0, 1, (DAYS, 3)),
        "price": rng.uniform(0.5, 2, (DAYS, 3)),
        "b": rng.uniform(0.5, 2, DAYS),
        "w": rng.uniform(0.3, 1.5, (DAYS, 3)),
        "cap": np.array([1.0, 2, 3, 4, 5, 0.2]),
        "need": np.array([0.0, 1, 3, 5, 4, 2]),
    }


class Lots:
    """Lots and retail; known data in weights, bounds and a cone."""

    def __init__(self, linear: bool, p: dict[str, Any] | None = None) -> None:
        p = p or {n: cp.Parameter(shape, name=n, nonneg=n == "b") for n, shape in SHAPES.items()}
        y = dro.Uncertain(3, dro.support.Box(0, 4))
        self.lots = cp.Variable(3, integer=True, bounds=[0, 2], name="lots")
        self.retail = cp.Variable(3, nonneg=True, name="retail")
        over = y - self.retail - self.lots - p["stock"]
        cost = p["price"] @ self.lots + 1.2 * cp.sum(self.retail) + p["b"] * cp.sum(cp.maximum(2 * over, -over))
        rules = [p["w"] @ self.lots <= p["cap"], cp.sum(self.retail) <= 2, cp.sum(self.lots[:2]) >= p["need"]]
        if not linear:
            rules.append(cp.norm(self.lots - p["stock"], 2) <= p["cap"])
        self.problem = dro.DecisionProblem(cost, rules, dro.MomentSet(y, [m.Norm(1 if linear else 2)]))


THETA = torch.cat([torch.linspace(1, 2, 3 * DAYS).reshape(DAYS, 3), torch.full((DAYS, 1), 0.7)], 1).double()


@cache
def expected_of_days(linear: bool) -> tuple[list[Status], Tensor]:
    """Each day by itself, built with constants and enumerated."""
    found = []
    for day in range(DAYS):
        alone = Lots(linear, {n: v[day] for n, v in days().items()}).problem
        found.append(dro.DROLayer(alone, oracle=Enumeration()).eval()(THETA[day : day + 1]))
    return [d.statuses[0] for d in found], torch.cat([d.value for d in found])


@pytest.mark.parametrize(
    ("oracle", "linear"), [(o, linear) for o in ORACLES for linear in (True, False) if linear or o not in LINEAR_ONLY]
)
def test_oracles(oracle: str, linear: bool) -> None:
    here, (statuses, values) = Lots(linear), expected_of_days(linear)
    assert statuses.count(Status.INFEASIBLE) == 2
    known = {n: torch.as_tensor(v) for n, v in days().items()}
    settings: list[tuple[dict[str, Any], bool]] = [({}, False), ({"samples": "all"}, True), ({}, True)]
    for options, training in settings:
        layer = dro.DROLayer(here.problem, oracle=ORACLES[oracle](), enumerate_up_to=0, **options).train(training)
        decision = layer(THETA, known=known)
        assert decision.statuses == statuses
        torch.testing.assert_close(decision.value, values, rtol=1e-6, atol=1e-6, equal_nan=True)
        lots, used = decision.candidates[here.lots], decision.probabilities > 0
        excess = torch.maximum(
            (known["w"][:, None] * lots).sum(2) - known["cap"][:, None], known["need"][:, None] - lots[..., :2].sum(2)
        )
        assert float(excess[used].max()) < 1e-9
        assert used.any(1).tolist() == [status == Status.OPTIMAL for status in statuses]


def test_few_points_are_all_solved_item_by_item() -> None:
    here, (statuses, values) = Lots(True), expected_of_days(True)
    known = {n: torch.as_tensor(v).requires_grad_() for n, v in days().items()}
    decision = dro.DROLayer(here.problem).train()(THETA, known=known)
    assert decision.oracle is None
    assert decision.statuses == statuses
    torch.testing.assert_close(decision.value, values, rtol=1e-6, atol=1e-6, equal_nan=True)
    outcomes = torch.ones(DAYS, 3).double()
    decision.expected(lambda x: here.problem.loss(x, outcomes, known=known)).sum().backward()
    for n in ("stock", "price", "b"):
        grad = known[n].grad
        assert grad is not None
        assert bool(grad.isfinite().all())
        moved = grad.reshape(DAYS, -1).abs().amax(1) > 0
        assert moved.tolist() == [status == Status.OPTIMAL for status in statuses]


def test_one_bad_day_is_masked_alone() -> None:
    here, (statuses, values) = Lots(True), expected_of_days(True)
    known = {n: torch.as_tensor(v) for n, v in days().items()}
    known["w"][1, 2] = torch.nan
    for options, training in (({}, False), ({"samples": "all"}, True), ({"enumerate_up_to": 0}, True)):
        layer = dro.DROLayer(here.problem, oracle=BranchAndBound(), **options).train(training)
        with pytest.warns(MaskedDataWarning, match=r"w is NaN or infinite in items \[1\]"):
            decision = layer(THETA, known=known)
        assert decision.statuses[1] == Status.FAILED
        good = torch.tensor([0, 2, 3, 4, 5])
        assert [decision.statuses[k] for k in good] == [statuses[k] for k in good]
        torch.testing.assert_close(decision.value[good], values[good], rtol=1e-6, atol=1e-6, equal_nan=True)


def test_no_bound_by_numbers_is_refused() -> None:
    y, lots, cap = dro.Uncertain(2), cp.Variable(2, integer=True, name="lots"), cp.Parameter(2, name="cap")
    with pytest.raises(ModelError, match=r"lots is not bounded.*numbers"):
        dro.DecisionProblem(cp.sum(cp.pos(y - lots)), [lots >= 0, lots <= cap], dro.MomentSet(y, [m.Norm(1)]))


# What is given.

BATCH = 4


class Given:
    """A problem with parameters of all kinds, and good data."""

    def __init__(self) -> None:
        self.p = {
            "b": cp.Parameter(nonneg=True, name="b"),
            "s": cp.Parameter(3, name="s"),
            "M": cp.Parameter((2, 3), name="M"),
            "on": cp.Parameter(boolean=True, name="on"),
            "u": cp.Parameter(3, bounds=[0, 2.1], name="u"),
            "k": cp.Parameter(2, integer=True, name="k"),
        }
        p = self.p
        y = dro.Uncertain(3, dro.support.Nonnegative())
        self.x = cp.Variable(3, nonneg=True, name="x")
        cost = p["b"] * cp.sum(cp.pos(y - self.x - p["s"])) + cp.sum(self.x) + 0.5 * cp.sum_squares(self.x)
        cost += 0.1 * np.array([1.0, 2.0]) @ (p["M"] @ self.x) + p["on"]
        rules = [self.x <= 4 + p["u"], cp.sum(self.x) <= 6 + cp.sum(p["k"])]
        self.problem = dro.DecisionProblem(cost, rules, dro.MomentSet(y, [m.Norm(1)]))
        self.theta = torch.linspace(0.5, 2.5, 4 * BATCH, dtype=torch.float64).reshape(BATCH, 4)

    def data(self, batch: int = BATCH) -> dict[Any, Any]:
        """Good data."""
        generator = torch.Generator().manual_seed(0)
        r = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        return {
            "b": 2 + r(batch),
            "s": r(batch, 3),
            "M": r(batch, 2, 3),
            "on": torch.ones(batch),
            "u": r(batch, 3),
            "k": torch.arange(2 * batch).reshape(batch, 2),
        }

    def values(self, **changed: Any) -> Tensor:
        """The optimal values with some data changed."""
        return self.problem.solve(self.theta, known={**self.data(), **changed}).objective

    def at(self, name: str, where: Any, number: float) -> dict[str, Tensor]:
        """Data with one number changed."""
        changed = self.data()[name].double().clone()
        changed[where] = number
        return {name: changed}


GIVEN = Given()


def test_what_is_known() -> None:
    assert GIVEN.problem.known == {"b": (), "s": (3,), "M": (2, 3), "on": (), "u": (3,), "k": (2,)}


@pytest.mark.parametrize(
    "changed",
    [
        {"b": 2.5, "on": 0},
        {"b": np.full(BATCH, 2.5), "s": np.zeros(3), "M": [[1, 2, 3], [4, 5, 6.5]], "on": False},
        {"b": torch.full((BATCH,), 2.5), "s": torch.zeros(1, 3), "on": torch.zeros(BATCH, dtype=torch.bool)},
        {"b": np.float32(2.5), "k": np.array([1, 2], dtype=np.int16)},
    ],
    ids=["numbers", "numpy and lists", "float32 and flags", "types of NumPy"],
)
def test_inputs_of_many_kinds(changed: dict[str, Any]) -> None:
    whole = {n: torch.as_tensor(np.array(v, dtype=float)) for n, v in {**GIVEN.data(), **changed}.items()}
    whole = {n: v.expand(BATCH, *GIVEN.p[n].shape) for n, v in whole.items()}
    expected = GIVEN.problem.solve(GIVEN.theta, known=whole).objective
    torch.testing.assert_close(GIVEN.values(**changed), expected, rtol=1e-7, atol=1e-7)


def test_by_parameter_as_by_name_also_after_pickling() -> None:
    by_parameter = {GIVEN.p[n]: v for n, v in GIVEN.data().items()}
    expected = GIVEN.values()
    copy = pickle.loads(pickle.dumps(GIVEN.problem))
    for problem in (GIVEN.problem, copy):
        found = problem.solve(GIVEN.theta, known=by_parameter).objective
        torch.testing.assert_close(found, expected)


def test_one_set_for_many_items_and_one_item_for_many_sets() -> None:
    many = GIVEN.problem.solve(GIVEN.theta[:1], known=GIVEN.data()).objective
    whole = GIVEN.problem.solve(GIVEN.theta[:1].expand(BATCH, -1), known=GIVEN.data()).objective
    torch.testing.assert_close(many, whole)
    assert GIVEN.problem.solve(GIVEN.theta[:0], known=GIVEN.data(0)).objective.shape == (0,)
    one = {n: v[0] for n, v in GIVEN.data().items()}
    assert GIVEN.problem.solve(GIVEN.theta[:0], known=one).objective.shape == (0,)
    first = GIVEN.problem.solve(GIVEN.theta, known=one).objective[0]
    torch.testing.assert_close(first, GIVEN.values()[0])


def without(*names: str) -> Callable[[], Any]:
    return lambda: GIVEN.problem.solve(GIVEN.theta, known={n: v for n, v in GIVEN.data().items() if n not in names})


FOREIGN = cp.Parameter(name="foreign")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (without("s", "b"), r"needs known data for \['b', 's'\]: give known=\{'b': \.\.\.\}"),
        (lambda: GIVEN.problem.solve(GIVEN.theta), "needs known data for"),
        (lambda: GIVEN.problem.solve(GIVEN.theta, known=[1]), "known must be a dict.*not list"),
        (lambda: GIVEN.values(stok=1.0), r"a value for 'stok', which the problem does not use.*'s'"),
        (lambda: GIVEN.values(**{"on": None}), "on must be numbers, real ones, .*not NoneType"),
        (lambda: GIVEN.values(b="two"), "b holds text"),
        (lambda: GIVEN.values(b=1j * np.ones(BATCH)), "Complex data not supported"),
        (lambda: GIVEN.values(s=[[1, 2, 3], [1, 2]]), "s must be numbers"),
        (
            lambda: GIVEN.values(s=torch.ones(BATCH, 2)),
            r"s must have shape \(batch, \*\(3,\)\) or \(3,\), not \(4, 2\)",
        ),
        (lambda: GIVEN.values(M=torch.ones(BATCH, 3, 2)), r"M must have shape .*\(2, 3\), not \(4, 3, 2\)"),
        (lambda: GIVEN.values(s=torch.ones(5, 3)), "s has 5 items where there are 4"),
        (lambda: GIVEN.values(s=torch.ones(2, 3)), "s has 2 items where there are 4"),
        (lambda: GIVEN.values(s=torch.ones(0, 3)), "s has 0 items where there are 4"),
        (lambda: GIVEN.values(**GIVEN.data(5)), "b has 5 items where there are 4"),
        (lambda: GIVEN.values(s=torch.full((BATCH, 3), torch.nan)), r"s is NaN or infinite in items \[0, 1, 2, 3\]"),
        (lambda: GIVEN.values(b=-1.0), "b is -1, against its declaration, in items"),
        (
            lambda: GIVEN.problem.solve(GIVEN.theta, known={**GIVEN.data(), GIVEN.p["b"]: 2.0}),
            "two values for b: give it by name or by parameter",
        ),
        (lambda: GIVEN.problem.solve(GIVEN.theta, known={**GIVEN.data(), FOREIGN: 2.0}), "a value for 'foreign'"),
        (lambda: GIVEN.problem.solve(GIVEN.theta, known={**GIVEN.data(), GIVEN.x: 2.0}), "a value for 'x'"),
        (
            lambda: GIVEN.problem.loss({GIVEN.x: torch.ones(BATCH, 3)}, torch.ones(BATCH, 3)),
            "needs known data for",
        ),
        (
            lambda: GIVEN.problem.loss({GIVEN.x: torch.ones(BATCH, 3)}, torch.ones(BATCH, 3), known=GIVEN.data(5)),
            "b has 5 items where there are 4",
        ),
    ],
)
def test_what_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        call()


def test_a_problem_without_known_data_takes_none() -> None:
    y, x = dro.Uncertain(2), cp.Variable(2)
    problem = dro.DecisionProblem(cp.sum(cp.abs(y - x)), [x <= 1], dro.MomentSet(y, [m.Norm(1)]))
    theta = torch.ones(2, 3).double()
    assert problem.known == {}
    torch.testing.assert_close(problem.solve(theta, known={}).objective, problem.solve(theta).objective)
    with pytest.raises(ShapeError, match="it has no known data"):
        problem.solve(theta, known={"s": 1.0})


@pytest.mark.parametrize(
    ("changed", "item", "said"),
    [
        (("s", (1, 2), torch.nan), 1, r"s is NaN or infinite in items \[1\]"),
        (("M", (3, 1, 0), torch.inf), 3, r"M is NaN or infinite in items \[3\]"),
        (("b", 2, -1.0), 2, r"b is -1, against its declaration, in items \[2\]"),
        (("u", (3, 0), 2.5), 3, r"u is 2.5, against its declaration, in items \[3\]"),
        (("k", (0, 1), 2.5), 0, r"k is 2.5, against its declaration, in items \[0\]"),
        (("on", 1, 2.0), 1, r"on is 2, against its declaration, in items \[1\]"),
    ],
    ids=["nan", "infinite", "sign", "bounds", "integer", "boolean"],
)
def test_one_bad_item_is_masked_alone(changed: tuple[str, Any, float], item: int, said: str) -> None:
    known = {**GIVEN.data(), **GIVEN.at(*changed)}
    good = torch.tensor([k for k in range(BATCH) if k != item])
    x = {GIVEN.x: torch.full((BATCH, 3), 0.5).double()}
    problem, theta = GIVEN.problem, GIVEN.theta
    calls: list[Callable[[Any], Tensor]] = [
        lambda known: problem.solve(theta, known=known).objective,
        lambda known: problem.worst_case_cost(x, theta, known=known),
        lambda known: problem.worst_case_distribution(x, theta, known=known).probabilities.sum(1),
        lambda known: problem.loss(x, torch.ones(BATCH, 3).double(), known=known),
        lambda known: dro.DROLayer(problem)(theta, known=known).value,
    ]
    for call in calls:
        with pytest.warns(MaskedDataWarning, match=said):
            found = call(known)
        assert bool(found[item].isnan())
        torch.testing.assert_close(found[good], call(GIVEN.data())[good])


def test_two_bad_items_are_each_told_of() -> None:
    with pytest.warns(MaskedDataWarning, match=r"s is NaN or infinite in items \[1\] and on is 2, .* in items \[0\]"):
        found = GIVEN.values(**GIVEN.at("on", 0, 2.0), **GIVEN.at("s", (1, 1), torch.nan))
    assert found.isnan().tolist() == [True, True, False, False]


def test_a_masked_item_spoils_no_gradient() -> None:
    known = {**GIVEN.data(), **GIVEN.at("s", (1, 1), torch.nan)}
    leaves = {n: known[n].clone().requires_grad_() for n in ("b", "s", "M", "u")}
    given = {**known, **leaves}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskedDataWarning)
        decision = dro.DROLayer(GIVEN.problem)(GIVEN.theta, known=given)
        outcomes = torch.ones(BATCH, 3).double()
        decision.expected(lambda x: GIVEN.problem.loss(x, outcomes, known=given)).sum().backward()
    for leaf in leaves.values():
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())
        assert not leaf.grad[1].any()


def test_rounding_is_forgiven() -> None:
    # Yesterday's decision is today's stock, and float32 is coarser than the bounds.
    changed = {**GIVEN.at("b", 2, -1e-11), **GIVEN.at("k", (0, 0), 1e-10)}
    exact = {**GIVEN.at("b", 2, 0.0), "u": torch.full((BATCH, 3), 2.1).double()}
    found = GIVEN.values(**changed, u=torch.full((BATCH, 3), 2.1))
    torch.testing.assert_close(found, GIVEN.values(**exact), rtol=1e-6, atol=1e-6)


def shelf(declared: dict[str, Any], shape: tuple[int, ...] = ()) -> dro.DROLayer:
    """A newsvendor with stock at hand, besides a budget."""
    y, x = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(nonneg=True)
    stock, budget = cp.Parameter(shape, name="stock", **declared), cp.Parameter(name="budget")
    cost = x + 4 * cp.pos(y[0] - x - cp.sum(stock))
    problem = dro.DecisionProblem(cost, [x <= budget], dro.MomentSet(y, [m.SquaredNorm()]))
    return dro.DROLayer(problem)


@pytest.mark.parametrize("wrong", [-50.0, -0.05, -1e-5])
@pytest.mark.parametrize(("neighbour", "budget"), [(3.0, 1e3), (1e6, 1e3), (1e9, 1e3), (3.0, 1e9)])
def test_a_large_number_elsewhere_excuses_no_sign(wrong: float, neighbour: float, budget: float) -> None:
    """Beside a stock of 1e9 in another item one of -50 was taken for zero."""
    layer = shelf({"nonneg": True})
    known = {"stock": torch.tensor([wrong, neighbour]).double(), "budget": budget}
    with pytest.warns(MaskedDataWarning, match=r"stock is -.*, against its declaration, in items \[0\]"):
        decision = layer(torch.tensor([[60.0, 1.0]]).double(), known=known)
    assert decision.statuses[0] == Status.FAILED


@pytest.mark.parametrize("unit", [1.0, 1e-4, 1e-8])
def test_declarations_count_in_the_units_of_an_item(unit: float) -> None:
    layer = shelf({"nonneg": True})
    theta = torch.tensor([[60 * unit, unit**2]]).double()
    with pytest.raises(ShapeError, match="against its declaration"):
        layer(theta, known={"stock": -5 * unit, "budget": 100 * unit})
    layer = shelf({"bounds": [0, 2 * unit]})
    with pytest.raises(ShapeError, match="against its declaration"):
        layer(theta, known={"stock": 2.001 * unit, "budget": 100 * unit})
    with pytest.raises(ShapeError, match="against its declaration"):
        layer(theta, known={"stock": -1e-3 * unit, "budget": 100 * unit})
    assert layer(theta, known={"stock": (2 + 1e-8) * unit, "budget": 100 * unit}).statuses == [Status.OPTIMAL]


@pytest.mark.filterwarnings("error")
def test_noise_is_clamped_without_a_word() -> None:
    """Beside other entries, beside other data, alone; float32 beyond its bound; a whole number that float32 holds."""
    theta = torch.tensor([[60.0, 1.0]]).double()
    several = shelf({"nonneg": True}, (2,))
    exact = several(theta, known={"stock": [0.0, 1.0], "budget": 100.0}).value
    for noise in (-1e-17, -1e-9, -5e-8):
        torch.testing.assert_close(several(theta, known={"stock": [noise, 1.0], "budget": 100.0}).value, exact)
    for noise, layer in ((-1e-9, shelf({"nonneg": True})), (1e-9, shelf({"integer": True}))):
        exact = layer(theta, known={"stock": 0.0, "budget": 100.0}).value
        torch.testing.assert_close(layer(theta, known={"stock": noise, "budget": 100.0}).value, exact)
    layer = shelf({"bounds": [0, 2.1]})
    assert layer(theta, known={"stock": torch.tensor(2.1), "budget": 100.0}).statuses == [Status.OPTIMAL]


def test_whole_numbers_are_counted_in_ones() -> None:
    layer = shelf({"integer": True}, (2,))
    theta = torch.tensor([[60.0, 1.0]]).double()
    with pytest.warns(MaskedDataWarning, match=r"stock is 2.4, .* in items \[0\]"):
        layer(theta, known={"stock": torch.tensor([[2.4, 1e7], [3.0, 1e7]]).double(), "budget": 100.0})


def test_loss_with_candidates() -> None:
    x = torch.rand(BATCH, 2, 3, generator=torch.Generator().manual_seed(1)).double()
    y = torch.ones(BATCH, 3).double()
    found = GIVEN.problem.loss({GIVEN.x: x}, y, known=GIVEN.data())
    for k in range(2):
        alone = GIVEN.problem.loss({GIVEN.x: x[:, k]}, y, known=GIVEN.data())
        torch.testing.assert_close(found[:, k], alone)


# Shapes.


def against_constants(
    data: dict[str, np.ndarray],
    build: Callable[[dro.Uncertain, dict[str, Any]], tuple[cp.Expression, list[cp.Constraint]]],
    shape: int | tuple[int, int] = 3,
    **declared: Any,
) -> None:
    """Compare one problem with parameters to problems with the numbers of each item."""
    batch = len(next(iter(data.values())))
    y = dro.Uncertain(shape, dro.support.Nonnegative())
    theta = torch.cat([torch.linspace(0.5, 2, y.dim), torch.tensor([1.5])]).double().expand(batch, -1)
    parameters = {n: cp.Parameter(v.shape[1:], name=n, **declared) for n, v in data.items()}
    problem = dro.DecisionProblem(*build(y, parameters), dro.MomentSet(y, [m.Norm(1)]))
    found = problem.solve(theta, known={n: torch.as_tensor(v) for n, v in data.items()})
    assert bool(found.ok.all())
    for item in range(batch):
        numbers = {n: v[item] for n, v in data.items()}
        alone = dro.DecisionProblem(*build(y, numbers), dro.MomentSet(y, [m.Norm(1)])).solve(theta[:1])
        torch.testing.assert_close(alone.objective[0], found.objective[item], rtol=1e-6, atol=1e-6)


def test_matrices_of_outcomes() -> None:
    rng = np.random.default_rng(1)
    data = {n: rng.uniform(0, 1, (2, 2, 3)) for n in "CSD"}

    def build(y: dro.Uncertain, p: dict[str, Any]) -> tuple[cp.Expression, list[cp.Constraint]]:
        x = cp.Variable((2, 3), nonneg=True)
        cost = cp.sum(cp.multiply(p["C"], cp.pos(y - x - p["S"]))) + cp.sum(cp.multiply(p["D"], x))
        cost += cp.trace(p["C"] @ y.T @ np.array([[1.0, 2.0], [3.0, 4.0]]))
        cost += 0.1 * cp.sum(cp.maximum(p["D"].T @ y, 0) @ np.array([1.0, 2.0, 3.0]))
        return cost, [x <= 5, cp.sum(x, axis=0) <= p["D"][0] + 2]

    against_constants(data, build, (2, 3), nonneg=True)


def test_products_entry_by_entry() -> None:
    rng = np.random.default_rng(2)

    def build(y: dro.Uncertain, p: dict[str, Any]) -> tuple[cp.Expression, list[cp.Constraint]]:
        x = cp.Variable(3, nonneg=True)
        profit = cp.multiply(p["c"], cp.multiply(y, x))
        cost = cp.sum(cp.pos(profit) + 0.1 * cp.multiply(p["c"], cp.square(x))) + cp.sum(p["c"][::-1] - 3 * x)
        return cost + 0 * cp.sum(cp.multiply(p["c"], y)), [x <= 5]

    against_constants({"c": rng.uniform(0, 1, (2, 3))}, build, nonneg=True)


def test_matrix_decisions_and_three_dimensions() -> None:
    rng = np.random.default_rng(3)

    def build(y: dro.Uncertain, p: dict[str, Any]) -> tuple[cp.Expression, list[cp.Constraint]]:
        x, T = cp.Variable((2, 3)), p["T"]
        cost = cp.sum(cp.multiply(T[0], x)) + cp.trace(T[1] @ x.T) + cp.sum_squares(x) + T[1][0] @ y
        return cost + cp.sum(cp.maximum(p["Q"] @ x @ y, 0)), [T[0] @ x.T <= 4, x >= -3]

    against_constants({"T": rng.normal(size=(2, 2, 2, 3)), "Q": rng.normal(size=(2, 2, 2))}, build)


def test_weights_of_zero() -> None:
    def build(y: dro.Uncertain, p: dict[str, Any]) -> tuple[cp.Expression, list[cp.Constraint]]:
        x = cp.Variable(3, nonneg=True)
        cost = p["b"] * (cp.sum_squares(x) + cp.sum(cp.pos(y - x))) + p["c"] @ cp.pos(x - y)
        return cost + cp.maximum(p["b"] * y[0], p["c"] @ x), [x <= 5]

    data = {"b": np.array([0.0, 0.0, 1.0]), "c": np.array([[0.0, 0, 0], [1, 0, 0], [0, 0, 0]])}
    against_constants(data, build, nonneg=True)


def test_forbidden_outcomes_of_a_second_stage() -> None:
    rng = np.random.default_rng(4)
    y, s = dro.Uncertain(2, dro.support.Box(0, 3)), cp.Parameter(2, name="s")
    x = cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + dro.recourse(np.ones(2), np.eye(2), x + s - y, method="vertices")
    problem = dro.DecisionProblem(cost, [x <= 9], dro.MomentSet(y, [m.Norm(1)]))
    stock = torch.as_tensor(rng.uniform(-1, 1, (3, 2)))
    found = problem.solve(torch.tensor([[1.0, 1, 1]]).double(), known={"s": stock})
    # What is not in stock must be ordered for the largest outcome.
    torch.testing.assert_close(found.variable(x), 3 - stock, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["moments", "ball", "reweighted", "constraint", "integers"])
def test_cuda(kind: str) -> None:
    """The same on a GPU, gradients in known data included."""
    stock, price = cp.Parameter(3, name="stock"), cp.Parameter(nonneg=True, name="price")
    y, x = dro.Uncertain(3, dro.support.Nonnegative()), cp.Variable(3, nonneg=True)
    lots = 2 * cp.Variable(3, boolean=True) if kind == "integers" else x
    cost = price * cp.sum(lots) + cp.sum(cp.maximum(3 * (y - lots - stock), lots + stock - y))
    sets = {"ball": lambda: dro.Wasserstein(y, 5), "reweighted": lambda: dro.Divergence(y, 5, "chi2")}
    ambiguity = sets.get(kind, lambda: dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()]))()
    limits = [cp.sum(lots) <= 5, *([dro.cvar(y[0] - lots[0], 0.9) <= 20] if kind == "constraint" else [])]
    # Multipliers, the gradients of values, are as exact as the root of the tolerance.
    layer = dro.DROLayer(dro.DecisionProblem(cost, limits, ambiguity), engine=Interior(tolerance=1e-11)).eval()
    rng = np.random.default_rng(0)
    moments = np.hstack([2 + rng.random((16, 3)), 2 + rng.random((16, 1))] * 2)
    theta = torch.as_tensor(np.full((16, 1), 0.3) if ambiguity.needs_nominal else moments)
    atoms = torch.as_tensor(4 * rng.random((16, 5, 3))), torch.full((16, 5), 0.2).double()
    found = []
    for device in ("cpu", "cuda"):
        told = {
            "stock": torch.as_tensor(np.random.default_rng(1).random((16, 3)), device=device).requires_grad_(),
            "price": torch.as_tensor(np.random.default_rng(2).random(16), device=device),
        }
        nominal = tuple(part.to(device) for part in atoms) if ambiguity.needs_nominal else None
        decision = layer(theta.to(device), nominal, told)
        (gradient,) = torch.autograd.grad(decision.value.sum(), told["stock"], allow_unused=kind == "integers")
        found.append((decision.value, decision.ok, *([] if gradient is None else [gradient])))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there.cpu().double(), here.double(), rtol=1e-6, atol=1e-6)


def test_a_frame_with_one_column_twice_is_refused() -> None:
    stock = cp.Parameter(name="stock")
    y, x = dro.Uncertain(1), cp.Variable(1)
    problem = dro.DecisionProblem(
        cp.sum(cp.abs(y - x - stock)), [], dro.MomentSet(y, [dro.moments.SquaredNorm(mu=[0.0], sigma=1.0)])
    )
    frame = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["stock", "stock"])
    with pytest.raises(dro.ShapeError, match="several columns called 'stock'"):
        problem.loss({x: torch.zeros(2, 1)}, torch.zeros(2, 1), frame)

"""Problems of the tables in other units: the same outcomes, decisions or costs, counted in dollars or in millions.

A change of units is exact: with y = s·ỹ every set, support and cost of the tables is written anew in y, and holds the
same distributions, decisions and costs. So whatever is right at size one is known at every size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from conelayers import Derivative, Smoothed, make_engine
from drolayers import Status
from drolayers import moments as m
from drolayers import support as s
from drolayers.ambiguity.base import AmbiguitySet
from tests.drolayers.ambiguity.sets import CENTRE, E1, E2, SetCase, stacked
from tests.drolayers.reformulation.problems import DISC, PARABOLA, ROOT, WEDGE, CostCase, SupportCase

VALUE, GRADIENT, PROMISE = 1e-6, 1e-4, 1e-4
"""Relative errors: of the value and of the gradient of an optimal item, of the value of an inaccurate one."""
STABLE = 1e-5
"""How far two gradients of the reference may differ."""
LEAST = 0.1
"""Values are compared relative to their size, or to a tenth of that of the costs in the tables."""


@dataclass(frozen=True)
class Units:
    """How many new units make an old one, of the outcomes, the decision and the cost."""

    outcomes: float = 1.0
    decision: float = 1.0
    cost: float = 1.0


CHANGES = {
    "outcomes": lambda k: Units(outcomes=10.0**k),
    "decision": lambda k: Units(decision=10.0**k),
    "cost": lambda k: Units(cost=10.0**k),
    # What most people change: a newsvendor's demand, stock and bill together.
    "all": lambda k: Units(10.0**k, 10.0**k, 10.0**k),
}

DIRECTIONS = {
    "mean equality": ("2.mu",),
    "linear": ("2.mu",),
    "absolute": ("1.mu",),
    "positive square": ("0.mu", "2.mu"),
    "sum with a linear part": ("0.0.mu",),
    "minus linear": ("0.mu",),
    "tilted multiple": ("0.0.mu",),
    **{f"power {p:g}": ("0.mu",) for p in (1.0, 1.5, 2.0, 3.0)},
}
"""Parameters called mu that are directions, without a unit."""

BOUNDS: dict[str, float | dict[str, float]] = {
    "mean equality": {"3.sigma": 2.0},
    "first and second": {"1.sigma": 2.0},
    "multiple": {"1.sigma": 2.0},
    "mean and variance": {"1.sigma": 2.0},
    "mean within, and variance": {"1.sigma": 2.0},
    "mean given, multiples": {"1.sigma": 2.0, "2.sigma": 2.0},
    "multiples of sums and maxima": {"0.sigma": 2.0, "2.sigma": 3.0},
    **{f"power {p:g}": p for p in (1.5, 2.0, 3.0)},
    **{
        name: 2.0
        for name in (
            "positive square",
            "squared norm",
            "squared norm by index",
            "grouped",
            "sum of degrees 2 and 1",
            "sum of squares",
            "maximum of degrees 2 and 1",
            "conic",
            "tilted sum",
            "tilted maximum",
            "tilted multiple",
            "tilted maximum of a square and a difference",
        )
    },
    "maximum of powers": 3.0,
}
"""Degrees of bounds that are not of degree one: of all of a set's, or by name."""


def degree(kind: SetCase, name: str) -> float:
    """With which power of the outcomes' unit a parameter grows."""
    last = name.split(".")[-1]
    if kind.events is not None:
        event, _, inner = name.partition(".")
        return degree(kind.events.sets[int(event)], inner) if inner else 0.0
    if kind.divergence is not None or last in ("gamma1", "gamma2"):
        return 0.0
    if last == "sigma":
        bound = BOUNDS.get(kind.name, 1.0)
        return bound.get(name, 1.0) if isinstance(bound, dict) else bound
    if last in ("A", "A0", "metric") or name in DIRECTIONS.get(kind.name, ()):
        return 0.0
    assert last in ("mu", "h", "b0", "radius", "centre", "factor"), name
    return 1.0


def rescaled_set(kind: SetCase, y: dro.Uncertain, u: float) -> AmbiguitySet:
    """The set over outcomes u times as large; constants that have a unit are written in it."""
    fixed = np.array([-0.5, -0.9])
    # ‖y - μ‖² ≤ t as [2u(y - μ); t - u²; t + u²] in the cone.
    square = np.array([[2.0 * u, 0, 0], [0, 2.0 * u, 0], [0, 0, 1], [0, 0, 1]])
    image = np.array([[1.0, 0.3, 0, 0], [-0.2, 1, 0, 0], [0, 0, 0, 1]])
    ridge = np.array([[1.0, 0.5, 0, 0], [0, 0, 1, -1]])
    written = {
        "mean equality": lambda: [
            m.Linear(mu=E1, sigma=1.1 * u),
            m.Linear(mu=-E1, sigma=-1.1 * u),
            m.Linear(),
            m.SquaredNorm(mu=u * CENTRE),
        ],
        "absolute": lambda: [m.Absolute(mu=E1), m.Absolute(), m.Absolute(mu=E2, h=1.3 * u)],
        "positive square": lambda: [m.PositiveSquare(), m.PositiveSquare(mu=fixed), m.PositiveSquare(h=0.5 * u)],
        "squared norm by index": lambda: [m.SquaredNorm(1), m.SquaredNorm([0]), m.SquaredNorm(mu=u * CENTRE)],
        "sum of degrees 2 and 1": lambda: [m.SquaredNorm() + (0.5 * u) * m.Norm(1)],
        "maximum of degrees 2 and 1": lambda: [m.maximum(m.SquaredNorm(), u * m.Norm(1), u * m.Linear(mu=[1.0, 1.0]))],
        "mean given, multiples": lambda: [
            m.bounded(2.0 * m.Mean(mu=u * CENTRE), [0.2 * u, 0.3 * u]),
            3.0 * m.Variance(mu=u),
            0.5 * m.Variance(size=2),
        ],
        "multiples of sums and maxima": lambda: [
            2.0 * (m.SquaredNorm() + (0.5 * u) * m.Norm(1)),
            3.0 * m.maximum(m.Norm(1), 2.0 * m.Norm(np.inf)),
            0.5 * m.AbsolutePower(3.0, mu=E1),
        ],
        "tilted maximum of a square and a difference": lambda: [
            m.maximum(m.AbsolutePower(2, mu=E1), u * m.Norm(1) - 0.5 * m.Linear()),
            m.SquaredNorm(mu=u * CENTRE),
        ],
        "conic": lambda: [m.Conic([square], [[2 * u**2 * CENTRE[0], 2 * u**2 * CENTRE[1], u**2, -(u**2)]])],
        "conic, lifted, vectors learnt": lambda: [m.Conic([image, ridge], [dro.Learn(3), [1.6 * u, 0.0]], lifted=1)],
    }
    if kind.events is not None:
        return kind.events.make(lambda part, own: rescaled_set(part, own, u), y, u)
    return dro.MomentSet(y, written[kind.name]()) if kind.name in written else kind.make(y)


def rescaled_support(support: SupportCase, u: float) -> s.Support:
    """The support of outcomes u times as large."""
    ellipsoid, wedge = s.Ellipsoid(u * CENTRE, u * ROOT), s.Polyhedron(WEDGE[0], u * WEDGE[1])
    return {
        "reals": s.Reals(),
        "nonnegative": s.Nonnegative(),
        "box": s.Box([-0.5 * u, 0.0], [3.0 * u, 3.5 * u]),
        "half box": s.Box([-np.inf, 0.2 * u], [2.5 * u, np.inf]),
        "wedge": wedge,
        "ellipsoid": ellipsoid,
        "quadrant and half-plane": s.Nonnegative() & s.Polyhedron([[1.0, 1]], [4.5 * u]),
        "ellipsoid and wedge": ellipsoid & wedge,
        # Cones are cones: only what stands beside them has a unit.
        "conic, lifted": s.Conic(DISC[0], [u * b for b in DISC[1]], lifted=1),
        "conic": s.Conic(PARABOLA[0], [u * b for b in PARABOLA[1]]),
    }[support.name]


@dataclass(frozen=True, eq=False)
class Rescaled:
    """One problem of the tables in units of its own."""

    kind: SetCase
    support: SupportCase
    cost: CostCase
    units: Units
    problem: dro.DecisionProblem
    x: cp.Variable

    def leaf(self, batch: int, seed: int = 0) -> Tensor:
        """θ, flat, and for a ball the atoms and weights behind it, in units of the tables."""
        theta = self.problem.ambiguity.pack(stacked(self.kind.parameters(batch, seed))).double()
        nominal = self.kind.nominal(batch, seed + 1)
        return theta if nominal is None else torch.cat([theta, nominal[0].flatten(1), nominal[1]], 1)

    @property
    def factors(self) -> Tensor:
        """By how much each entry of a leaf grows."""
        u = self.units.outcomes
        found = [
            np.full(int(np.prod(shape)), u ** degree(self.kind, name))
            for name, shape in self.problem.ambiguity.parameters.items()
        ]
        if self.kind.around:
            found += [np.full(6, u), np.ones(3)]
        return torch.as_tensor(np.concatenate(found))

    def split(self, leaf: Tensor) -> tuple[Tensor, dro.Nominal | None]:
        """A leaf as the library takes it."""
        if not self.kind.around:
            return leaf, None
        theta, atoms, weights = leaf.split([self.problem.ambiguity.size, 6, 3], 1)
        return theta, (atoms.reshape(-1, 3, 2), weights)

    def answer(
        self, batch: int, seed: int = 0, tolerance: float | None = None, smoothing: float | None = None
    ) -> Answer:
        """Solve, differentiate, and tell all of it in the units of the tables."""
        engine = make_engine(gradient="exact" if smoothing is None else Smoothed(smoothing))
        if tolerance is not None:
            engine = replace(engine, solver=engine.solver.with_tolerance(tolerance))
        leaf = self.leaf(batch, seed).requires_grad_()
        solution = self.problem.solve(*self.split(leaf * self.factors), engine=engine)
        value = solution.objective / self.units.cost
        decision = solution.variable(self.x) / self.units.decision
        weight = torch.as_tensor(np.random.default_rng(seed + 2).normal(size=(batch, 2)))
        (of_value,) = torch.autograd.grad(value.nan_to_num().sum(), leaf, retain_graph=True)
        (of_decision,) = torch.autograd.grad((weight * decision).nan_to_num().sum(), leaf)
        codes = [Derivative(int(code)) for code in solution.derivative]
        return Answer(
            solution.statuses, value.detach(), decision.detach(), of_value.detach(), of_decision.detach(), codes
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """What a batch was told, in units of the tables."""

    statuses: list[Status]
    value: Tensor
    decision: Tensor
    of_value: Tensor
    of_decision: Tensor
    derivatives: list[Derivative]


@dataclass(frozen=True, eq=False)
class Reference:
    """The same items at size one, where certificates prove them, and which of their gradients can be relied on.

    A gradient can where two tolerances agree on it: at a kink, or where multipliers are not unique, they do not.
    """

    answer: Answer
    value_stable: list[bool]
    decision_stable: list[bool]


@dataclass(frozen=True)
class Verdict:
    """What an item deserves, with the size of its error.

    ``outcome`` is "right", "flagged" (FAILED, or INACCURATE within its promise), or begins with "wrong".
    """

    outcome: str
    error: float
    status: Status

    @property
    def wrong(self) -> bool:
        """Whether it says something false."""
        return self.outcome.startswith("wrong")

    def __str__(self) -> str:
        return f"{self.outcome} ({self.status}, {self.error:.1e})"


def rescaled(kind: SetCase, support: SupportCase, cost: CostCase, units: Units | None = None) -> Rescaled:
    """Compile one problem of the tables in other units: c·cost(x/t, y/u)."""
    units = units or Units()
    y = dro.Uncertain(2, support=rescaled_support(support, units.outcomes))
    x = cp.Variable(2, name="x")
    # What is not to be changed is left as the tables have it.
    inner = {"x": x if units.decision == 1 else x / units.decision}
    expression, constraints = cost.build(inner, y if units.outcomes == 1 else y / units.outcomes)
    expression = expression if units.cost == 1 else units.cost * expression
    ambiguity = rescaled_set(kind, y, units.outcomes)
    return Rescaled(kind, support, cost, units, dro.DecisionProblem(expression, constraints, ambiguity), x)


def reference(kind: SetCase, support: SupportCase, cost: CostCase, batch: int) -> Reference:
    """The answer in the units of the tables."""
    here = rescaled(kind, support, cost)
    answer, again = here.answer(batch), here.answer(batch, tolerance=1e-12)
    assert all(status.ok for status in answer.statuses), answer.statuses
    items = range(batch)
    return Reference(
        answer,
        [_apart(again.of_value[i], answer.of_value[i]) <= STABLE for i in items],
        [
            answer.derivatives[i].ok
            and again.derivatives[i].ok
            and _apart(again.of_decision[i], answer.of_decision[i]) <= STABLE
            for i in items
        ],
    )


def compare(found: Answer, known: Reference) -> list[Verdict]:
    """Item by item: an optimal value is right to 1e-6 and its gradient to 1e-4, an inaccurate value to 1e-4.

    The derivative of the decision is compared where it was verified.
    """
    verdicts, reference = [], known.answer
    for i, status in enumerate(found.statuses):
        best = reference.value[i]
        error = float((found.value[i] - best).abs() / best.abs().clamp(min=LEAST))
        if status == Status.FAILED:
            verdicts.append(Verdict("flagged: failed", error, status))
        elif not status.ok:
            verdicts.append(Verdict("wrong status", error, status))
        elif status == Status.INACCURATE:
            outcome = "flagged: inaccurate" if error <= PROMISE else "wrong value"
            verdicts.append(Verdict(outcome, error, status))
        elif not error <= VALUE:
            verdicts.append(Verdict("wrong value", error, status))
        elif known.value_stable[i] and not (slope := _apart(found.of_value[i], reference.of_value[i])) <= GRADIENT:
            verdicts.append(Verdict("wrong gradient of the value", slope, status))
        elif (known.decision_stable[i] and found.derivatives[i].ok) and not (
            (slope := _apart(found.of_decision[i], reference.of_decision[i])) <= GRADIENT
        ):
            verdicts.append(Verdict("wrong gradient of the decision", slope, status))
        else:
            verdicts.append(Verdict("right", error, status))
    return verdicts


def _apart(found: Tensor, expected: Tensor) -> float:
    """The distance of two gradients, relative to the larger of their size and a tenth."""
    return float((found - expected).norm() / expected.norm().clamp(min=LEAST))

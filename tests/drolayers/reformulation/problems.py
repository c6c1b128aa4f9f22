"""A table of supports and costs in two dimensions, each written once more, plainly, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from torch import Tensor

import drolayers as dro
from drolayers import support as s
from tests.drolayers.ambiguity.sets import CENTRE, Parameters, SetCase, stacked

Values = dict[str, np.ndarray]
Excess = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class SupportCase:
    """A support and by how much points ``(point, 2)`` leave it."""

    name: str
    support: s.Support
    excess: Excess

    @property
    def nonnegative(self) -> bool:
        """Whether costs may count on y ≥ 0."""
        return self.support.nonnegative(2)


@dataclass(frozen=True, eq=False)
class CostCase:
    """A cost, what it says of the decision, and its value at one decision and many outcomes ``(point, 2)``."""

    name: str
    build: Callable[[dict[str, cp.Variable], dro.Uncertain], tuple[cp.Expression, list[cp.Constraint]]]
    value: Callable[[Values, np.ndarray], np.ndarray]
    needs_nonnegative: bool = False


def _below(*rows: tuple[float, float, float]) -> Excess:
    """How far aᵀy ≤ d is violated, for rows (a₁, a₂, d)."""
    table = np.array(rows)
    return lambda y: np.maximum(y @ table[:, :2].T - table[:, 2], 0).max(1)


def _both(first: Excess, second: Excess) -> Excess:
    return lambda y: np.maximum(first(y), second(y))


WEDGE = np.array([[-2.0, 1.0], [1.0, -2.0]]), np.array([1.5, 1.0])
ROOT = np.array([[1.8, 0.3], [0.0, 1.4]])
QUADRANT = (-1.0, 0.0, 0.0), (0.0, -1.0, 0.0)


def _ellipsoid(y: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.norm((y - CENTRE) @ np.linalg.inv(ROOT).T, axis=1) - 1, 0)


# Some v has ‖y - c‖ ≤ v and v ≤ 2.
DISC = [np.eye(3), np.array([[0.0, 0, -1]])], [np.array([*CENTRE, 0]), np.array([-2.0])]
# y₁² ≤ y₂ + 1, as [y₁; y₂/2; (y₂ + 2)/2] in the cone.
PARABOLA = [np.array([[1.0, 0], [0, 0.5], [0, 0.5]])], [np.array([0.0, 0.0, -1.0])]

SUPPORTS: list[SupportCase] = [
    SupportCase("reals", s.Reals(), lambda y: np.zeros(len(y))),
    SupportCase("nonnegative", s.Nonnegative(), _below(*QUADRANT)),
    SupportCase("box", s.Box([-0.5, 0.0], [3.0, 3.5]), _below((-1, 0, 0.5), (0, -1, 0), (1, 0, 3), (0, 1, 3.5))),
    SupportCase("half box", s.Box([-np.inf, 0.2], [2.5, np.inf]), _below((1, 0, 2.5), (0, -1, -0.2))),
    SupportCase("wedge", s.Polyhedron(*WEDGE), _below((-2, 1, 1.5), (1, -2, 1))),
    SupportCase("ellipsoid", s.Ellipsoid(CENTRE, ROOT), _ellipsoid),
    SupportCase(
        "quadrant and half-plane", s.Nonnegative() & s.Polyhedron([[1.0, 1]], [4.5]), _below(*QUADRANT, (1, 1, 4.5))
    ),
    SupportCase(
        "ellipsoid and wedge",
        s.Ellipsoid(CENTRE, ROOT) & s.Polyhedron(*WEDGE),
        _both(_ellipsoid, _below((-2, 1, 1.5), (1, -2, 1))),
    ),
    SupportCase(
        "conic, lifted",
        s.Conic(*DISC, lifted=1),
        lambda y: np.maximum(np.linalg.norm(y - CENTRE, axis=1) - 2, 0),
    ),
    SupportCase(
        "conic", s.Conic(*PARABOLA), lambda y: np.maximum(abs(y[:, 0]) - np.sqrt(np.maximum(y[:, 1] + 1, 0)), 0)
    ),
]

ORDER, SHORT, LONG = np.array([0.3, 0.2]), np.array([2.0, 1.5]), np.array([1.0, 0.8])
JOINT = np.array([[1.0, 0.5], [-0.6, 1.0], [0.2, -1.2]])
STOCK = np.array([[-1.0, 0.0], [0.4, -1.0], [0.5, 0.8]])
Q = np.array([2.0, 1.4, 0.5, 1.1, 0.6])
W = np.array([[1.0, 0, -1, 0, 0.5], [0, 1, 0, -1, -0.5]])
LEVEL = 0.7
BOUND = 4.0


def _boxed(x: cp.Variable) -> list[cp.Constraint]:
    return [x >= -BOUND, x <= BOUND]


def _simplex(x: cp.Variable) -> list[cp.Constraint]:
    return [x >= 0, cp.sum(x) == 1]


def _newsvendor_value(x: Values, y: np.ndarray) -> np.ndarray:
    over = y - x["x"]
    return ORDER @ x["x"] + np.maximum(SHORT * over, -LONG * over).sum(1)


def _recourse_value(x: Values, y: np.ndarray) -> np.ndarray:
    """The larger of the vertices of {p : Wᵀp ≤ q}, found by intersecting its edges."""
    corners = []
    for i in range(5):
        for j in range(i):
            pair = W.T[[i, j]]
            if abs(np.linalg.det(pair)) > 1e-9:
                p = np.linalg.solve(pair, Q[[i, j]])
                if np.all(W.T @ p <= Q + 1e-9):
                    corners.append(p)
    return 0.2 * x["x"].sum() + ((y - x["x"]) @ np.array(corners).T).max(1)


def _tail(x: Values, loss: np.ndarray) -> np.ndarray:
    return x["tau"] + np.maximum(loss - x["tau"], 0) / (1 - LEVEL)


COSTS: list[CostCase] = [
    CostCase(
        "newsvendor",
        lambda v, y: (
            ORDER @ v["x"] + cp.sum(cp.maximum(cp.multiply(SHORT, y - v["x"]), cp.multiply(LONG, v["x"] - y))),
            _boxed(v["x"]),
        ),
        _newsvendor_value,
    ),
    CostCase(
        "joint maximum",
        lambda v, y: (cp.max(JOINT @ y + STOCK @ v["x"]) + 0.1 * cp.sum_squares(v["x"]), _boxed(v["x"])),
        lambda x, y: (y @ JOINT.T + STOCK @ x["x"]).max(1) + 0.1 * x["x"] @ x["x"],
    ),
    CostCase(
        "portfolio",
        lambda v, y: (-y @ v["x"] + 0.3 * cp.sum_squares(v["x"]), _simplex(v["x"])),
        lambda x, y: -y @ x["x"] + 0.3 * x["x"] @ x["x"],
    ),
    CostCase(
        "long and short",
        lambda v, y: (-y @ v["x"], [cp.norm(v["x"] - np.array([0.5, -0.8]), 2) <= 1.0]),
        lambda x, y: -y @ x["x"],
    ),
    CostCase(
        "convex coefficients",
        lambda v, y: (
            y[0] * cp.square(v["x"][0] - 1) + y[1] * cp.abs(v["x"][0] + v["x"][1]) - 0.6 * v["x"][1],
            _boxed(v["x"]),
        ),
        lambda x, y: y @ np.array([(x["x"][0] - 1) ** 2, abs(x["x"].sum())]) - 0.6 * x["x"][1],
        needs_nonnegative=True,
    ),
    CostCase(
        "one maximum beside a product",
        lambda v, y: (
            cp.pos(y[0] - v["x"][0]) + 0.4 * v["x"][0] + (v["x"][1] - 1) * y[1] + 0.5 * cp.square(v["x"][1]),
            _boxed(v["x"]),
        ),
        lambda x, y: (
            np.maximum(y[:, 0] - x["x"][0], 0) + 0.4 * x["x"][0] + (x["x"][1] - 1) * y[:, 1] + 0.5 * x["x"][1] ** 2
        ),
    ),
    CostCase(
        "cvar of a portfolio",
        lambda v, y: (dro.cvar(-y @ v["x"], LEVEL), _simplex(v["x"])),
        lambda x, y: _tail(x, -y @ x["x"]),
    ),
    CostCase(
        "cvar of a newsvendor",
        lambda v, y: (
            dro.cvar(
                ORDER @ v["x"] + cp.sum(cp.maximum(cp.multiply(SHORT, y - v["x"]), cp.multiply(LONG, v["x"] - y))),
                LEVEL,
            ),
            _boxed(v["x"]),
        ),
        lambda x, y: _tail(x, _newsvendor_value(x, y)),
    ),
    CostCase(
        "recourse",
        lambda v, y: (0.2 * cp.sum(v["x"]) + dro.recourse(Q, W, y - v["x"], method="vertices"), _boxed(v["x"])),
        _recourse_value,
    ),
]


@dataclass(frozen=True, eq=False)
class Case:
    """One problem of the table."""

    set: SetCase
    support: SupportCase
    cost: CostCase
    problem: dro.DecisionProblem
    x: cp.Variable

    def theta(self, batch: int, seed: int = 0) -> tuple[list[Parameters], dict[str, Tensor], dro.Nominal | None]:
        """Parameters of a batch, plainly and as the library takes them."""
        parameters = self.set.parameters(batch, seed)
        return parameters, stacked(parameters), self.set.nominal(batch, seed + 1)

    def values(self, decision: Mapping[cp.Variable, Tensor], item: int) -> Values:
        """A decision by the names that costs use."""
        return {
            "tau" if v.name().startswith("cvar_tau") else v.name(): t[item].detach().numpy()
            for v, t in decision.items()
        }


def case(kind: SetCase, support: SupportCase, cost: CostCase) -> Case:
    """Compile one problem of the table."""
    y = dro.Uncertain(2, support=support.support)
    x = cp.Variable(2, name="x")
    expression, constraints = cost.build({"x": x}, y)
    return Case(kind, support, cost, dro.DecisionProblem(expression, constraints, kind.make(y)), x)


def fits(support: SupportCase, cost: CostCase) -> bool:
    """Whether the support has what the cost needs."""
    return support.nonnegative or not cost.needs_nonnegative

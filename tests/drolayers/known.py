"""A table of costs and constraints with known data, each built with parameters or with the numbers of one item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from tests.drolayers.ambiguity.sets import SetCase, stacked
from tests.drolayers.reformulation.problems import JOINT, LONG, ORDER, SHORT, STOCK, Q, SupportCase, W

Data = Mapping[str, Any]
Built = tuple[cp.Expression, list[cp.Constraint]]


@dataclass(frozen=True, eq=False)
class Datum:
    """One parameter: shape, what is declared about it, and where its numbers are drawn."""

    shape: tuple[int, ...] = ()
    low: float = -0.5
    high: float = 0.5
    declared: dict[str, Any] = field(default_factory=dict)

    def draw(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        """Numbers of a batch."""
        return rng.uniform(self.low, self.high, (batch, *self.shape))


ANY, POSITIVE = Datum((2,)), Datum((2,), 0.5, 1.5, {"nonneg": True})
SCALAR, WEIGHT = Datum(), Datum((), 0.5, 1.5, {"nonneg": True})


@dataclass(frozen=True, eq=False)
class KnownCase:
    """A cost and constraints in x, y and known data p.

    Attributes:
        name: what test ids call it.
        data: the parameters.
        build: the same model for parameters and for numbers.
        needs_nonnegative: whether the cost counts on y >= 0.
        conservative: whether a decision rule bounds the worst case.
        unique: whether the decision is.
    """

    name: str
    data: dict[str, Datum]
    build: Callable[[cp.Variable, dro.Uncertain, Data], Built]
    needs_nonnegative: bool = False
    conservative: bool = False
    unique: bool = True

    def parameters(self) -> dict[str, cp.Parameter]:
        """Parameters by name."""
        return {name: cp.Parameter(d.shape, name=name, **d.declared) for name, d in self.data.items()}

    def draw(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Numbers of a batch, by name."""
        rng = np.random.default_rng(seed)
        return {name: torch.as_tensor(d.draw(rng, batch)) for name, d in self.data.items()}


def _boxed(x: cp.Variable) -> list[cp.Constraint]:
    return [x >= -4, x <= 4]


def _near(x: cp.Variable, weight: float = 0.4) -> cp.Expression:
    """What makes the decision unique."""
    return weight * cp.sum_squares(x - np.array([0.4, 0.1]))


def _newsvendor(x: cp.Variable, y: dro.Uncertain, stock: Any = 0.0) -> cp.Expression:
    over = y - x - stock
    return cp.sum(cp.maximum(cp.multiply(SHORT, over), cp.multiply(-LONG, over)))


def _second_stage(x: cp.Variable, y: dro.Uncertain, p: Data) -> cp.Expression:
    short, extra = cp.Variable(2), cp.Variable(nonneg=True)
    rows = [short >= cp.multiply(p["c"], y) - x - p["s"], short >= 0, extra >= cp.sum(x) + p["b"] - y[0] - short[1]]
    return dro.recourse(cp.Minimize(SHORT @ short + 0.7 * extra), rows, method="vertices")


COSTS: list[KnownCase] = [
    KnownCase(
        "prices",
        {"c": POSITIVE, "s": ANY, "b": SCALAR},
        lambda x, y, p: (
            cp.multiply(p["c"], y) @ x + p["s"] @ x + p["b"] * cp.sum(x) + cp.sum_squares(x) + p["s"] @ y,
            _boxed(x),
        ),
    ),
    KnownCase(
        "stock and prices",
        {"price": ANY, "stock": ANY, "short": POSITIVE, "long": POSITIVE},
        lambda x, y, p: (
            p["price"] @ x
            + p["short"] @ cp.pos(y - x - p["stock"])
            + cp.sum(cp.multiply(p["long"], cp.pos(x + p["stock"] - y)))
            + _near(x),
            _boxed(x),
        ),
    ),
    KnownCase(
        "weighted maxima",
        {"b": WEIGHT, "s": ANY},
        lambda x, y, p: ((1 + p["b"]) * _newsvendor(x, y) + p["s"] @ x + _near(x), _boxed(x)),
    ),
    KnownCase(
        "bounded factor",
        {"b": Datum((), 0.5, 1.5, {"nonneg": True, "bounds": [0.4, 2.0]}), "cap": Datum((2,), 1.0, 2.0)},
        lambda x, y, p: (p["b"] * _newsvendor(x, y) + _near(x), [x <= p["cap"], x >= -p["cap"]]),
    ),
    KnownCase(
        "negative factor",
        {"b": Datum((), -1.5, -0.5, {"nonpos": True})},
        lambda x, y, p: (p["b"] * cp.sum(cp.minimum(cp.multiply(LONG, y - x), 2 * (x - y))) + _near(x), _boxed(x)),
    ),
    KnownCase(
        "nested maxima",
        {"b": WEIGHT, "c": POSITIVE, "s": ANY},
        lambda x, y, p: (
            p["b"] * cp.maximum(cp.sum(cp.pos(cp.multiply(p["c"], y - x))), y[1] - x[1] + p["s"][0], p["s"] @ y)
            + _near(x),
            _boxed(x),
        ),
    ),
    KnownCase(
        "cvar",
        {"b": SCALAR, "c": POSITIVE, "s": ANY},
        lambda x, y, p: (dro.cvar(p["c"] @ cp.pos(y - x - p["s"]) + p["b"] * cp.sum(x), 0.7) + _near(x), _boxed(x)),
        unique=False,
    ),
    KnownCase(
        "matrices",
        {"M": Datum((3, 2), -1.0, 1.0), "N": Datum((3, 2), -1.0, 1.0), "d": Datum((3,))},
        lambda x, y, p: (
            cp.max((JOINT + p["M"]) @ y + (STOCK + p["N"]) @ x + p["d"])
            + cp.sum(p["N"].T @ np.arange(1.0, 4.0))
            + _near(x),
            _boxed(x),
        ),
    ),
    KnownCase(
        "matrix between",
        {"M": Datum((2, 2), -1.0, 1.0), "L": Datum((2, 3), -1.0, 1.0)},
        lambda x, y, p: (
            y @ p["M"] @ x
            + cp.max(cp.multiply(p["M"], cp.vstack([y, x])))
            + cp.sum(cp.abs(p["L"].T @ x - 1))
            + _near(x, 1.0),
            _boxed(x),
        ),
    ),
    KnownCase(
        "second stage in matrices",
        {"c": POSITIVE, "s": ANY},
        lambda x, y, p: (
            0.2 * cp.sum(x) + dro.recourse(Q, W, cp.multiply(p["c"], y) - x - p["s"], method="vertices") + _near(x),
            _boxed(x),
        ),
    ),
    KnownCase(
        "second stage in CVXPY",
        {"c": POSITIVE, "s": ANY, "b": SCALAR, "w": WEIGHT},
        lambda x, y, p: (p["w"] * _second_stage(x, y, p) + 0.2 * cp.sum(x) + _near(x), _boxed(x)),
    ),
    KnownCase(
        "decision rule",
        {"c": POSITIVE, "s": ANY},
        lambda x, y, p: (
            0.2 * cp.sum(x)
            + dro.recourse(Q, W, cp.multiply(p["c"], y) - x - p["s"], method="decision_rule")
            + _near(x),
            _boxed(x),
        ),
        conservative=True,
    ),
    KnownCase(
        "convex parts",
        {"b": WEIGHT, "s": ANY, "r": Datum((), 0.8, 1.5, {"nonneg": True})},
        lambda x, y, p: (
            p["b"] * cp.sum_squares(x) + cp.norm(x - 2 * p["s"], 2) + _newsvendor(x, y),
            [cp.norm(x + p["s"], 2) <= p["r"] + 1.0, cp.SOC(p["r"] + x[0] + 2, x - p["s"])],
        ),
    ),
    KnownCase(
        "fees on trades",
        {"b": WEIGHT, "c": POSITIVE, "s": ANY},
        lambda x, y, p: (
            p["b"] * cp.sum_squares(x - p["s"]) + p["c"] @ cp.abs(x - p["s"]) + _newsvendor(x, y, p["s"]),
            _boxed(x),
        ),
    ),
    KnownCase(
        "convex parts beside maxima",
        {"b": WEIGHT, "s": ANY},
        lambda x, y, p: (
            p["b"] * (cp.sum_squares(x) + _newsvendor(x, y, 0.1)) + cp.maximum(cp.norm(x - p["s"], 2), y[0], x[1]),
            _boxed(x),
        ),
    ),
    KnownCase(
        "convex coefficients",
        {"b": WEIGHT, "c": POSITIVE, "s": ANY},
        lambda x, y, p: (
            p["b"] * y[0] * cp.square(x[0] - 1)
            + cp.multiply(p["c"], y) @ cp.abs(x - p["s"])
            + ORDER @ cp.square(x)
            - 0.6 * x[1],
            _boxed(x),
        ),
        needs_nonnegative=True,
    ),
    KnownCase(
        "constraints alone",
        {"A": Datum((3, 2), -1.0, 1.0), "cap": Datum((3,), 0.5, 1.5), "level": Datum((), -0.3, 0.3)},
        lambda x, y, p: (
            ORDER @ x + _newsvendor(x, y) + _near(x),
            [p["A"] @ x <= p["cap"], x[0] - p["level"] * x[1] == p["level"], *_boxed(x)],
        ),
    ),
    KnownCase(
        "in both",
        {"s": ANY, "w": POSITIVE},
        lambda x, y, p: (
            _newsvendor(x, y, p["s"]) + p["w"] @ x + _near(x),
            [p["w"] @ x <= 1.0 + p["s"][0], x >= -2 - p["w"]],
        ),
    ),
]


def fits(support: SupportCase, cost: KnownCase) -> bool:
    """Whether the support has what the cost needs."""
    return support.nonnegative or not cost.needs_nonnegative


class Setting:
    """One problem with known data, its numbers for a batch, and the problems of its items built with constants."""

    def __init__(self, kind: SetCase, support: SupportCase, cost: KnownCase, batch: int = 2, seed: int = 0) -> None:
        self.kind, self.cost, self.batch = kind, cost, batch
        self.y, self.x = dro.Uncertain(2, support=support.support), cp.Variable(2, name="x")
        self.problem = dro.DecisionProblem(*cost.build(self.x, self.y, cost.parameters()), kind.make(self.y))
        self.theta, self.nominal = stacked(kind.parameters(batch, seed)), kind.nominal(batch, seed + 1)
        self.known = cost.draw(batch, seed + 2)

    def constants(self, item: int) -> dro.DecisionProblem:
        """The problem of one item, which knows of no parameters."""
        numbers = {name: value[item].numpy() for name, value in self.known.items()}
        return dro.DecisionProblem(*self.cost.build(self.x, self.y, numbers), self.kind.make(self.y))

    def of_item(self, item: int) -> tuple[dict[str, Tensor], dro.Nominal | None]:
        """The set of one item."""
        at = torch.tensor([item])
        return {n: v[at] for n, v in self.theta.items()}, None if self.nominal is None else self.nominal.at(at)

    def repeated(self, count: int) -> tuple[dict[str, Tensor], dro.Nominal | None]:
        """The set of the first item, several times."""
        at = torch.zeros(count, dtype=torch.int64)
        return {n: v[at] for n, v in self.theta.items()}, None if self.nominal is None else self.nominal.at(at)

    @property
    def flat(self) -> Tensor:
        """Known data of the first item as one vector."""
        return torch.cat([value[0].reshape(-1) for value in self.known.values()])

    def unflat(self, flat: Tensor) -> dict[str, Tensor]:
        """Known data from vectors ``(batch, entries)``."""
        sizes = [value[0].numel() for value in self.known.values()]
        parts = flat.split(sizes, 1)
        return {n: part.reshape(-1, *v.shape[1:]) for (n, v), part in zip(self.known.items(), parts, strict=True)}

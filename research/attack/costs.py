"""The costs of the attack: source text, decisions with their constraints, and the pieces that define the cost.

A new cost is one function here and one line in ``COSTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from research.attack.drawn import Draw, Item, text
from research.attack.pieces import Pieces

Array = Any


@dataclass(frozen=True)
class Worst:
    """One worst case: its pieces, and over which set it is.

    Attributes:
        pieces: of an item.
        kind: "expected", "always" (over single outcomes) or "fragility" (per unit of distance).
        own: whether the set is the constraint's own.
    """

    pieces: Callable[[Item], Pieces]
    kind: str = "expected"
    own: bool = False


@dataclass(frozen=True)
class CostPart:
    """A cost and the decisions that it is about.

    Attributes:
        lines: source lines that define the variables ``x`` (and ``z``) and known data.
        code: source text of the cost.
        names: the variables, in the order of the columns.
        unit: unit of x; other variables have the unit one.
        worst: worst cases whose sum is the cost.
        columns: number of columns; those behind the variables are auxiliary.
        plain: source text of constraints without y.
        A: of the rows Ax ≤ b that they are, ``(row, column)``.
        b: ``(row,)``.
        quadratic: the diagonal of Q in the term xᵀQx/2.
        points: all values of the integer columns; empty if there are none.
        integers: which columns are integer.
        known: values of known data, by name and item.
        size: number of columns of the variables.
        upper: where the library's value is no less than the reference's: the worst cases of a cost that is no smaller,
            and of its constraints.
        curve: a cost that is curved in y, judged by another reference.
        quantity: what an adaptive decision makes up for: a decision's quantity for every coordinate.
    """

    lines: tuple[str, ...]
    code: str
    names: tuple[tuple[str, int], ...]
    unit: float
    worst: tuple[Worst, ...]
    columns: int
    plain: tuple[str, ...]
    A: Array
    b: Array
    quadratic: Array
    points: Array
    integers: tuple[int, ...] = ()
    known: tuple[tuple[str, tuple[Array, ...], float], ...] = ()
    upper: tuple[tuple[Worst, ...], tuple[Worst, ...]] | None = None
    curve: Any = None
    quantity: Any = None

    @property
    def size(self) -> int:
        """Number of columns of the variables."""
        return sum(count for _, count in self.names)


def _between(columns: int, size: int, low: float, high: float) -> tuple[Array, Array]:
    """Low ≤ x ≤ high for the first columns."""
    eye = np.eye(columns)[:size]
    return np.vstack([-eye, eye]), np.concatenate([np.full(size, -low), np.full(size, high)])


def _stock(draw: Draw, integer: bool, known: bool, top: float) -> tuple[CostPart, Callable[[Item, int], Pieces], str]:
    """Decisions about a quantity for every coordinate: the part, the quantity as pieces, and as source text."""
    n, u = draw.dim, draw.unit
    lines, names, code = [f"x = cp.Variable({n}, name='x')"], [("x", n)], "x"
    plain = [f"x >= 0, x <= {text(top * u)}"]
    size, lots = n, np.zeros(n)
    stocks = tuple(draw.uniform(0.0, 1.0, n) for _ in range(draw.items))
    if integer:
        lots = draw.uniform(0.5, 1.5, n)
        lines.append(f"z = cp.Variable({n}, boolean=True, name='z')")
        names.append(("z", n))
        code += f" + cp.multiply({text(u * lots)}, z)"
        size += n
    if known:
        lines.append(f"stock = cp.Parameter({n}, name='stock')")
        code += " + stock"
    A, b = _between(size, n, 0.0, top)
    rows = np.hstack([np.eye(n), np.diag(lots)])[:, :size]

    def quantity(item: Item, i: int) -> Pieces:
        return Pieces.of(n, size, g=rows[i], h=float(item.known["stock"][i]) if known else 0.0)

    part = CostPart(
        tuple(lines),
        "",
        tuple(names),
        u,
        (),
        size,
        tuple(plain),
        A,
        b,
        np.zeros(size),
        np.array(list(product((0.0, 1.0), repeat=n))) if integer else np.zeros((0, 0)),
        tuple(range(n, 2 * n)) if integer else (),
        (("stock", stocks, u),) if known else (),
    )
    return part, quantity, code


def _less(a: Pieces, b: Pieces) -> Pieces:
    """A - b for single pieces."""
    return Pieces(a.F - b.F, a.f - b.f, a.g - b.g, a.h - b.h)


def _demand(draw: Draw, size: int, weights: Array) -> Pieces:
    """Weightsᵀy."""
    return Pieces.of(draw.dim, size, f=weights)


def newsvendor(draw: Draw, integer: bool, known: bool) -> CostPart:
    """Shortage and holding costs of every coordinate, and a price; at times a square of the decision."""
    part, quantity, code = _stock(draw, integer, known, 4.0)
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    short, hold = draw.between(2.0, 5.0, (2e-2, 5e2), n), draw.between(0.2, 1.5, (2e-3, 1e2), n)
    price = draw.between(0.1, 1.5, (1e-3, 10.0), part.size)
    ridge = float(draw.uniform(0.1, 1.0)) if draw.chance(0.3) else 0.0
    rows = np.eye(n)

    def pieces(item: Item) -> Pieces:
        gaps = [_less(_demand(draw, part.size, rows[i]), quantity(item, i)) for i in range(n)]
        parts = [Pieces.largest([g.times(short[i]), g.times(-hold[i])]) for i, g in enumerate(gaps)]
        return Pieces.total([*parts, Pieces.of(n, part.size, g=price)])

    written = f"{text(price[:n] * v / u)} @ x"
    written += f" + {text(price[n:] * v)} @ z" if integer else ""
    written += f" + cp.sum(cp.maximum(cp.multiply({text(short * v / u)}, y - ({code})), "
    written += f"cp.multiply({text(hold * v / u)}, {code} - y)))"
    written += f" + {text(ridge * v / u**2)} * cp.sum_squares(x)" if ridge else ""
    quadratic = np.concatenate([np.full(n, 2 * ridge), np.zeros(part.size - n)])
    return replace(part, code=written, worst=(Worst(pieces),), quadratic=quadratic)


def pooled(draw: Draw, integer: bool, known: bool) -> CostPart:
    """Shortage and holding costs of one pool, whose demand is a combination of the coordinates; at times its CVaR."""
    part, quantity, code = _stock(draw, integer, known, 4.0)
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    weights, short, hold = draw.uniform(0.3, 1.0, n), draw.uniform(2.0, 5.0), draw.uniform(0.2, 1.5)
    price = draw.uniform(0.1, 1.0, part.size)
    level = float(draw.choose((0.5, 0.8, 0.9))) if draw.chance(0.4) else None
    columns = part.size + (level is not None)

    def pieces(item: Item) -> Pieces:
        total = Pieces.total([quantity(item, i) for i in range(n)])
        gap = _less(_demand(draw, part.size, weights), total)
        loss = Pieces.largest([gap.times(short), gap.times(-hold)])
        loss = Pieces.total([loss, Pieces.of(n, part.size, g=price)])
        return loss if level is None else loss.tail(level, part.size)

    gap = f"({text(weights)} @ y - cp.sum({code}))"
    written = (
        f"cp.maximum({text(short * v / u)} * {gap}, {text(-hold * v / u)} * {gap}) + {text(price[:n] * v / u)} @ x"
    )
    written += f" + {text(price[n:] * v)} @ z" if integer else ""
    return _widened(
        replace(part, code=written if level is None else f"dro.cvar({written}, {level})", worst=(Worst(pieces),)),
        columns,
    )


def _widened(part: CostPart, columns: int) -> CostPart:
    """Room for auxiliary columns."""
    added = columns - part.columns
    return replace(
        part,
        columns=columns,
        A=np.pad(part.A, ((0, 0), (0, added))),
        quadratic=np.pad(part.quadratic, (0, added)),
    )


def portfolio(draw: Draw, integer: bool, known: bool) -> CostPart:
    """The negative return of a portfolio; at times its CVaR, a square, known prices, a few assets only."""
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    level = float(draw.choose((0.5, 0.8, 0.9))) if draw.chance(0.4) else None
    ridge = float(draw.uniform(0.1, 1.0)) if draw.chance(0.5) else 0.0
    size = 2 * n if integer else n
    columns = size + (level is not None)
    prices = tuple(draw.uniform(0.0, 1.0, n) for _ in range(draw.items))
    eye = np.eye(columns)

    def pieces(item: Item) -> Pieces:
        F = -np.eye(n, size)[None]
        g = np.pad(item.known["price"], (0, size - n)) if known else 0.0
        loss = Pieces.of(n, size, F=F, g=g)
        return loss if level is None else loss.tail(level, size)

    lines, names = [f"x = cp.Variable({n}, name='x')"], [("x", n)]
    plain = ["x >= 0, cp.sum(x) == 1"]
    A, b = [*-eye[:n], eye[:n].sum(0), -eye[:n].sum(0)], [*np.zeros(n), 1.0, -1.0]
    if integer:
        lines.append(f"z = cp.Variable({n}, boolean=True, name='z')")
        names.append(("z", n))
        plain += ["x <= z", f"cp.sum(z) <= {max(1, n - 1)}"]
        A, b = [*A, *(eye[:n] - eye[n : 2 * n]), eye[n : 2 * n].sum(0)], [*b, *np.zeros(n), max(1, n - 1)]
    lines += [f"price = cp.Parameter({n}, name='price')"] if known else []
    loss = f"-y @ x{' + price @ x' if known else ''}"
    loss = f"{text(v / u)} * ({loss})" if v != u else loss
    code = loss if level is None else f"dro.cvar({loss}, {level})"
    code += f" + {text(ridge * v)} * cp.sum_squares(x)" if ridge else ""
    return CostPart(
        tuple(lines),
        code,
        tuple(names),
        1.0,
        (Worst(pieces),),
        columns,
        tuple(plain),
        np.array(A),
        np.array(b),
        np.concatenate([np.full(n, 2 * ridge), np.zeros(columns - n)]),
        np.array(list(product((0.0, 1.0), repeat=n))) if integer else np.zeros((0, 0)),
        tuple(range(n, 2 * n)) if integer else (),
        (("price", prices, u),) if known else (),
    )


def maximum(draw: Draw, integer: bool, known: bool) -> CostPart:
    """The maximum of two or three pieces, each bilinear in the decision and y; decisions may be whole numbers."""
    n, count, size = draw.dim, int(draw.rng.integers(2, 4)), int(draw.rng.integers(1, 3))
    u, v = draw.unit, draw.cost_unit
    F, f = 0.6 * draw.normal((count, n, size)), draw.normal((count, n))
    g, h = draw.normal((count, size)), draw.normal(count)

    def pieces(item: Item) -> Pieces:
        return Pieces(F, f, g, h)

    rows = [
        f"({text(v / u * F[k])} @ x + {text(v / u * f[k])}) @ y + {text(v * g[k])} @ x + {text(v * h[k])}"
        for k in range(count)
    ]
    kind = ", integer=True" if integer else ""
    A, b = _between(size, size, -1.0, 2.0)
    return CostPart(
        (f"x = cp.Variable({size}, name='x'{kind})",),
        f"cp.maximum({', '.join(rows)})",
        (("x", size),),
        1.0,
        (Worst(pieces),),
        size,
        ("x >= -1, x <= 2",),
        A,
        b,
        np.zeros(size),
        np.array(list(product((-1.0, 0.0, 1.0, 2.0), repeat=size))) if integer else np.zeros((0, 0)),
        tuple(range(size)) if integer else (),
    )


def two_worst_cases(draw: Draw, integer: bool, known: bool) -> CostPart:
    """A sum of two worst expectations, each with another worst distribution."""
    part, quantity, code = _stock(draw, integer, known, 4.0)
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    price, slope = draw.uniform(0.3, 1.5, part.size), draw.uniform(1.0, 4.0, 2)
    weights = draw.uniform(0.3, 1.0, (2, n))

    def pieces(k: int) -> Callable[[Item], Pieces]:
        def of(item: Item) -> Pieces:
            total = Pieces.total([quantity(item, i) for i in range(n)])
            gap = _less(_demand(draw, part.size, weights[k]), total).times(slope[k])
            loss = Pieces.largest([gap, Pieces.of(n, part.size)])
            return Pieces.total([loss, Pieces.of(n, part.size, g=price * k)])

        return of

    rows = [f"{text(slope[k] * v / u)} * cp.pos({text(weights[k])} @ y - cp.sum({code}))" for k in range(2)]
    written = f"dro.expected({rows[0]}) + dro.expected({rows[1]}) + {text(price[:n] * v / u)} @ x"
    written += f" + {text(price[n:] * v)} @ z" if integer else ""
    return replace(part, code=written, worst=(Worst(pieces(0)), Worst(pieces(1))))


def recourse(draw: Draw, integer: bool, known: bool) -> CostPart:
    """Shortages are met one by one, or all together at a higher price: a second stage by its vertices."""
    part, quantity, code = _stock(draw, integer, known, 4.0)
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    short, price = draw.uniform(1.0, 4.0, n), draw.uniform(0.2, 1.0, part.size)
    shared = float(draw.uniform(short.max(), short.sum() + 0.5))
    vertices = _vertices(short, shared)

    def pieces(item: Item) -> Pieces:
        gaps = [_less(_demand(draw, part.size, np.eye(n)[i]), quantity(item, i)) for i in range(n)]
        flat = Pieces.of(n, part.size, g=price)
        return Pieces.largest(
            [Pieces.total([flat, *(gap.times(w) for gap, w in zip(gaps, p, strict=True))]) for p in vertices]
        )

    lines = (*part.lines, f"short, shared = cp.Variable({n}, nonneg=True), cp.Variable(nonneg=True)")
    objective = f"{text(short * v / u)} @ short + {text(shared * v / u)} * shared"
    written = f"{text(price[:n] * v / u)} @ x"
    written += f" + {text(price[n:] * v)} @ z" if integer else ""
    written += f" + dro.recourse(cp.Minimize({objective}), [short + shared >= y - ({code})], method='vertices')"
    return replace(part, lines=lines, code=written, worst=(Worst(pieces),))


def _vertices(top: Array, total: float) -> list[Array]:
    """The vertices of {0 ≤ p ≤ top, Σp ≤ total}, one by one: at most one entry lies between its ends."""
    vertices = []
    for ends in product((0.0, 1.0), repeat=len(top)):
        p = np.array(ends) * top
        if p.sum() <= total:
            vertices.append(p)
        for i in range(len(top)):
            between = total - (p.sum() - p[i])
            if 0 < between < top[i]:
                vertices.append(np.where(np.arange(len(top)) == i, between, p))
    return vertices


def adaptive(draw: Draw, integer: bool, known: bool) -> CostPart:
    """Shortages that are met by an adaptive decision: between the exact cost and that of a rule that is affine in y.

    The decision sees all of y, or its first coordinate only.
    """
    part, quantity, code = _stock(draw, integer, known, 4.0)
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    short, price = draw.uniform(1.0, 4.0, n), draw.uniform(0.2, 1.0, part.size)

    def pieces(item: Item) -> Pieces:
        gaps = [_less(_demand(draw, part.size, np.eye(n)[i]), quantity(item, i)) for i in range(n)]
        parts = [Pieces.largest([gap.times(short[i]), Pieces.of(n, part.size)]) for i, gap in enumerate(gaps)]
        return Pieces.total([*parts, Pieces.of(n, part.size, g=price)])

    visible = n if draw.chance(0.6) else 1
    seen = "y" if visible == n else "y[:1]"
    lines = (*part.lines, f"late = dro.Adaptive({n}, to={seen}, name='late', nonneg=True)")
    written = f"{text(price[:n] * v / u)} @ x"
    written += f" + {text(price[n:] * v)} @ z" if integer else ""
    written += f" + {text(short * v / u)} @ late"
    plain = (*part.plain, f"dro.always(late >= y - ({code}))")
    # The rule γ₀ + Γy has a column for every entry of γ₀ and then of Γ, row by row.
    first = part.size
    columns = first + n + n * n
    rule = [first + n + n * np.arange(n)[:, None] + np.arange(n)][0]

    def late(i: int) -> Pieces:
        F, g = np.zeros((1, n, columns)), np.zeros((1, columns))
        F[0, np.arange(visible), rule[i][:visible]], g[0, first + i] = 1.0, 1.0
        return Pieces(F, np.zeros((1, n)), g, np.zeros(1))

    def upper(item: Item) -> Pieces:
        flat = Pieces.of(n, part.size, g=price).wide(columns)
        return Pieces.total([flat, *(late(i).times(short[i]) for i in range(n))])

    def lacking(i: int) -> Callable[[Item], Pieces]:
        def of(item: Item) -> Pieces:
            gap = _less(_demand(draw, part.size, np.eye(n)[i]), quantity(item, i)).wide(columns)
            return _less(Pieces.largest([gap, Pieces.of(n, columns)]), Pieces.largest([late(i)] * 2))

        return of

    def total(item: Item, x: Array) -> Array:
        return np.array([quantity(item, i).g[0] @ x + quantity(item, i).h[0] for i in range(n)])

    rules = tuple(Worst(lacking(i), "always") for i in range(n))
    part = _widened(part, columns)
    return replace(
        part,
        lines=lines,
        code=written,
        plain=plain,
        worst=(Worst(pieces),),
        upper=((Worst(upper),), rules),
        quantity=total,
    )


def fragility(draw: Draw, integer: bool, known: bool) -> CostPart:
    """The least excess over a target per unit of distance."""
    part, quantity, code = _stock(draw, integer, known, 4.0)
    n, u, v = draw.dim, draw.unit, draw.cost_unit
    weights, short, target = draw.uniform(0.3, 1.0, n), draw.uniform(1.0, 3.0), draw.uniform(0.2, 2.0)
    price = draw.uniform(0.1, 0.5, part.size)

    def pieces(item: Item) -> Pieces:
        total = Pieces.total([quantity(item, i) for i in range(n)])
        gap = _less(_demand(draw, part.size, weights), total).times(short)
        loss = Pieces.largest([gap, Pieces.of(n, part.size)])
        return Pieces.total([loss, Pieces.of(n, part.size, g=price, h=-target)])

    # Distances have the unit of y: the cost is measured in it, so that the price of a distance has none.
    loss = f"{text(short)} * cp.pos({text(weights)} @ y - cp.sum({code})) + {text(price[:n])} @ x"
    loss += f" + {text(price[n:] * u)} @ z" if integer else ""
    written = f"{text(v)} * dro.fragility({loss}, {text(target * u)})"
    return replace(part, code=written, worst=(Worst(pieces, "fragility"),))


def packing(draw: Draw, integer: bool, known: bool) -> CostPart:
    """Many integers that are worth nearly the same, packed or covered: searches are long."""
    n, rows, v = draw.dim, int(draw.rng.integers(1, 3)), draw.cost_unit
    top, sign = int(draw.choose((1, 1, 1, 2, 5))), float(draw.choose((1.0, -1.0)))
    weights = np.round(draw.uniform(2.0, 9.0, (rows, n))) if draw.chance(0.4) else draw.uniform(3.0, 8.0, (rows, n))
    worth = 1.0 + float(draw.choose((0.01, 0.05, 0.5))) * draw.normal(n)
    room = np.floor(weights.sum(1) * top * draw.uniform(0.2, 0.7))
    limit = f"{text(weights)} @ x {'<=' if sign > 0 else '>='} {text(room)}"
    A, b = _between(n, n, 0.0, float(top))

    def pieces(item: Item) -> Pieces:
        return Pieces.of(n, n, F=-0.05 * sign * np.eye(n)[None], g=-sign * worth)

    written = f"{text(-0.05 * sign * v / draw.unit)} * (y @ x) + {text(-sign * worth * v)} @ x"
    return CostPart(
        (f"x = cp.Variable({n}, name='x', integer=True, bounds=[np.zeros({n}), np.full({n}, {float(top)})])",),
        written,
        (("x", n),),
        1.0,
        (Worst(pieces),),
        n,
        (limit,),
        np.vstack([A, sign * weights]),
        np.concatenate([b, sign * room]),
        np.zeros(n),
        np.zeros((0, 0)),
        tuple(range(n)),
    )


COSTS: dict[str, Callable[[Draw, bool, bool], CostPart]] = {
    "newsvendor": newsvendor,
    "pooled": pooled,
    "portfolio": portfolio,
    "maximum": maximum,
    "two worst cases": two_worst_cases,
    "recourse": recourse,
    "adaptive": adaptive,
    "fragility": fragility,
    "packing": packing,
}
COST_WEIGHTS = {"packing": 0, "newsvendor": 4, "pooled": 3, "portfolio": 4, "maximum": 3}

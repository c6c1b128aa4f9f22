"""A cost written in CVXPY, taken apart into ``c(x, y) = c0(x) + sum_j max_k { a_jk(x)'y + b_jk(x) }`` and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.cost.affine_rows import AffineRows
from drolayers.cost.coefficients import Coefficients, coefficients
from drolayers.cost.losses import Loss
from drolayers.cost.lowering import Epigraph, Lowered, lower, shorten
from drolayers.cost.products import Products, affine_rows, intervals, system
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain

__all__ = ["AffineRows", "PiecewiseCost", "RuleRecourse", "parse", "parse_entries"]


@dataclass(frozen=True)
class RuleRecourse:
    """A two-stage cost ``weight * min q'g, W g = rhs(x, y), g >= 0`` to be bounded by a decision rule.

    q and W are numbers, or expressions that are affine in known data.
    """

    weight: float
    q: np.ndarray | cp.Expression
    W: np.ndarray | cp.Expression
    rhs: AffineRows


@dataclass(frozen=True)
class CurvedCost:
    """Losses ``weight_r * l(a_r(x)'y + b_r(x))`` that are curved in y, to be added up; every row sees y."""

    loss: Loss
    weight: np.ndarray
    rows: AffineRows
    text: str


@dataclass(frozen=True)
class PiecewiseCost:
    """The cost ``c(x, y) = c0(x) + sum_j max_k { a_jk(x)'y + b_jk(x) }`` as arrays.

    Attributes:
        y: the uncertain vector.
        known: the parameters of the cost that are known data.
        certain: what of ``c0(x)``, convex and free of ``y``, is not affine.
        constant: the rest of it, one row without a slope.
        variables: the decision variables, then the auxiliary ones; stacked in Fortran order they are the columns of
            all rows below, followed by the products.
        products: of known data with variables.
        auxiliary: the fresh epigraph variables among them.
        constraints: what defines the auxiliary variables; free of ``y``.
        pieces: the rows ``a_jk(x)'y + b_jk(x)``, weights included.
        term: ``(pieces,)``; the maximum ``j`` that a piece belongs to, numbered from 0.
        forbidden: rows that must be at most zero for every ``y`` of the support (else the second stage is infeasible).
        recourses: the two-stage costs left to decision rules, in addition to the terms.
        curves: the losses that are curved in ``y``, likewise.
    """

    y: Uncertain
    known: tuple[cp.Parameter, ...]
    certain: tuple[cp.Expression, ...]
    constant: AffineRows
    variables: tuple[cp.Variable, ...]
    products: Products
    auxiliary: tuple[cp.Variable, ...]
    constraints: tuple[cp.Constraint, ...]
    pieces: AffineRows
    term: np.ndarray
    forbidden: AffineRows
    recourses: tuple[RuleRecourse, ...]
    curves: tuple[CurvedCost, ...] = ()

    @property
    def deterministic(self) -> cp.Expression:
        """``c0(x)``."""
        return sum(self.certain, start=cp.sum(self.constant.offset(self.stack)))

    @property
    def conservative(self) -> bool:
        """Whether the worst case can only be bounded from above."""
        return bool(self.recourses)

    @property
    def terms(self) -> int:
        """Number of maxima."""
        return int(self.term.max()) + 1 if len(self.term) else 0

    @property
    def stack(self) -> cp.Expression:
        """All variables as one vector, each in Fortran order, and their products with known data."""
        return stack(self.variables, self.products)

    def named(self) -> tuple[cp.Expression, list[cp.Constraint]]:
        """The same with products that are variables, for rows that are multiplied by parameters once more."""
        if not len(self.products):
            return self.stack, []
        variables, name = stack_variables(self.variables), cp.Variable(len(self.products))
        return cp.hstack([variables, name]), [name == self.products.columns(variables)]

    @property
    def signs(self) -> np.ndarray:
        """The sign of every entry of the stack, NaN where nothing settles it."""
        known = [np.full(v.size, 1.0 if v.is_nonneg() else -1.0 if v.is_nonpos() else np.nan) for v in self.variables]
        of_variables = np.concatenate([np.zeros(0), *known])
        return np.append(of_variables, self.products.signs(of_variables) if len(self.products) else [])


def parse(cost: cp.Expression, y: Uncertain) -> PiecewiseCost:
    """Takes a cost apart into maxima of pieces that are affine in ``y``.

    Sums, nonnegative multiples, maxima, absolute values, 1- and infinity-norms of expressions affine in ``y`` are
    understood, nested as CVXPY's rules of convexity allow; minima with a negative sign likewise. A convex function of
    the decision that multiplies ``y`` (which then must be nonnegative) becomes an epigraph variable.

    Args:
        cost: a scalar CVXPY expression in decision variables and ``y``.
        y: the uncertain vector.

    Raises:
        ModelError: the cost is not convex in the decision, not piecewise affine in ``y``, or has too many pieces.
    """
    if isinstance(cost, cp.Expression) and (not cost.is_scalar() or cost.is_complex()):
        kind = "complex" if cost.is_complex() else f"of shape {cost.shape}"
        raise ModelError(f"The cost {shorten(cost)} is {kind}, but must be a real scalar: sum its entries with cp.sum.")
    return parse_entries(cost, y)[0]


def parse_entries(cost: cp.Expression, y: Uncertain) -> list[PiecewiseCost]:
    """The same for every entry of an expression, column by column.

    All are over one stack, with the same products, unless a second stage, a loss that is curved in ``y`` or a convex
    function of the decision stands in them: then each is taken apart by itself.
    """
    _check(cost, y)
    lowered = lower(cost, y)
    size = cost.size
    if size > 1 and (lowered.epigraphs or lowered.rules or lowered.curves):
        flat = cp.vec(cost, order="F")
        return [parse(flat[k], y) for k in range(size)]
    decisions = cost.variables()
    epigraphs = [epigraph.variable for epigraph in lowered.epigraphs]
    maxima = [maximum.variable for maximum in lowered.maxima]
    markers = [*(rule.variable for rule in lowered.rules), *(curve.variable for curve in lowered.curves)]
    blocks = [
        [lowered.remainder],
        [row for maximum in lowered.maxima for row in maximum.rows],
        lowered.forbidden,
        [rule.rhs for rule in lowered.rules],
        [curve.rows for curve in lowered.curves],
    ]
    known = tuple(p for p in cost.parameters() if p is not y)
    entries = coefficients(
        [expression for block in blocks for expression in block],
        [*decisions, *epigraphs, *maxima, *markers],
        y.flat,
        known,
    )
    width, inner, outer = (
        int(n) for n in np.cumsum([_length(decisions) + _length(epigraphs), _length(maxima), _length(markers)])
    )
    _check_products(entries, lowered, width, y)
    ends = np.cumsum([sum(expression.size for expression in block) for block in blocks])
    owner, describe = _owners(lowered, int(ends[-1]), size)
    ranges = intervals(known)
    entries, monomials, maxima_of = system(entries, owner, range(width, inner), ranges, describe)
    if maxima_of.weight[ends[3] : ends[4]].nnz:
        names = ", ".join(shorten(curve.node) for curve in lowered.curves)
        raise ModelError(f"Of {names} a loss is taken of a maximum of y: take it of what is affine in y.")
    if maxima_of.weight[ends[1] : ends[3]].nnz:
        raise ModelError("The right-hand side of a recourse must be affine in y: take maxima of y out of it.")
    entries, marker_weight = _markers(entries, inner, outer, len(maxima_of.owner), lowered)
    table, products = affine_rows(entries, len(maxima_of.owner), y.dim, width, monomials, ranges)

    # The entries are the first rows: an affine remainder each, and one term for each scalar maximum in it.
    flat = [maxima_of.flatten(k) for k in range(size)]
    chosen = sp.csr_array(sp.vstack([one for one, _ in flat], format="csr"))
    remainders = table.combine(chosen)
    entry, heads = np.nonzero(np.stack([left for _, left in flat]))
    weights = np.stack([left for _, left in flat])[entry, heads]
    maxima_of.check_size(heads)
    count = len(heads)
    selection, term = maxima_of.expand(
        sp.csr_array((count, len(table))),
        sp.csr_array((weights, (np.arange(count), heads)), shape=(count, maxima_of.size)),
    )
    pieces = table.combine(selection)
    distinct = pieces.distinct(term)
    pieces, term, selection = pieces.take(distinct), term[distinct], selection[distinct]
    weight, inside = (chosen @ marker_weight).toarray()[0], selection @ marker_weight
    recourses = _rules(lowered, table, ends, weight, inside)
    curves = _curves(lowered, table, int(ends[3]), weight[len(lowered.rules) :], inside[:, len(lowered.rules) :])

    forbidden = table.take(np.arange(ends[1], ends[2]))
    # Rows that were multiplied by known data once more have left products behind.
    rows = [pieces, remainders, forbidden, *(rule.rhs for rule in recourses), *(curve.rows for curve in curves)]
    needed = np.unique(np.concatenate([m.indices for r in rows for m in (r.slope_linear, r.offset_linear)]))
    needed = needed[needed >= width].astype(np.int64)
    products = products.take(needed - width)

    kept, restored = _restore(lowered.epigraphs, [pieces, *(c.rows for c in curves)], remainders, products, decisions)
    places = [start + np.arange(epigraph.variable.size) for epigraph, start in kept]
    columns = np.concatenate([np.arange(_length(decisions)), *places])
    variables = (*decisions, *[epigraph.variable for epigraph, _ in kept])
    products = products.over(columns)
    columns = np.concatenate([columns, needed])
    pieces, remainders = pieces.keep_columns(columns), remainders.keep_columns(columns)
    recourses = [replace(rule, rhs=rule.rhs.keep_columns(columns)) for rule in recourses]
    forbidden = _nonzero_rows(forbidden.keep_columns(columns))
    curves = [replace(curve, rows=curve.rows.keep_columns(columns)) for curve in curves]
    x, found = stack(variables, products), []
    restored += [
        curve.loss.of(curve.rows.offset(x)) @ curve.weight for curve in map(_blind, curves) if curve.weight.size
    ]
    for k in range(size):
        mine = np.flatnonzero(entry[term] == k)
        of_entry, its, remainder = (pieces, term, remainders) if size == 1 else _one(pieces, term, remainders, mine, k)
        sees_y = np.isin(its, its[of_entry.coordinates().any(axis=1)])
        plain = of_entry.take(np.flatnonzero(~sees_y)), its[~sees_y]
        seeing, its = _with_remainder(of_entry.take(np.flatnonzero(sees_y)), its[sees_y], remainder)
        found.append(
            PiecewiseCost(
                y=y,
                known=known,
                certain=(*restored, *(_plain_maxima(*plain, x) if len(plain[1]) else ())),
                constant=remainder,
                variables=variables,
                products=products,
                auxiliary=tuple(epigraph.variable for epigraph, _ in kept),
                constraints=tuple(epigraph.constraint for epigraph, _ in kept),
                pieces=seeing,
                term=its,
                forbidden=forbidden,
                recourses=tuple(recourses),
                curves=tuple(curve for curve in map(_seeing, curves) if curve.weight.size),
            )
        )
    return found


def _one(
    pieces: AffineRows, term: np.ndarray, remainders: AffineRows, mine: np.ndarray, entry: int
) -> tuple[AffineRows, np.ndarray, AffineRows]:
    """What belongs to one entry."""
    return pieces.take(mine), term[mine], remainders.take(np.array([entry]))


def stack(variables: Sequence[cp.Variable], products: Products) -> cp.Expression:
    """The variables as one vector, each in Fortran order, and their products with known data."""
    plain = stack_variables(variables)
    return cp.hstack([plain, products.columns(plain)]) if len(products) else plain


def stack_variables(variables: Sequence[cp.Variable]) -> cp.Expression:
    """The variables as one vector, each in Fortran order."""
    if not variables:
        return cp.Constant(np.zeros(0))
    return cp.hstack([cp.vec(variable, order="F") for variable in variables])


def _check(cost: cp.Expression, y: Uncertain) -> None:
    """Refuses what can be seen to be wrong before the tree is taken apart."""
    if not isinstance(cost, cp.Expression):
        raise ModelError(f"The cost must be a CVXPY expression, not {cost!r}.")
    if not isinstance(y, Uncertain):
        raise ModelError(f"The uncertain vector must be a dro.Uncertain, not {y!r}.")
    for parameter in cost.parameters():
        if isinstance(parameter, Uncertain) and parameter is not y:
            raise ModelError(
                f"The cost uses the uncertain vector {parameter.name()}, which is not the one of the ambiguity set: "
                "put all uncertain quantities into one dro.Uncertain."
            )
    if not cost.is_convex():
        part = cost
        while culprits := [arg for arg in part.args if not arg.is_dcp()]:
            part = culprits[0]
        sign = (
            f" (where a convex function of the decision is multiplied by {y.name()}, the support must be nonnegative; "
            "known data that multiplies one, or a maximum, is declared with cp.Parameter(nonneg=True))"
        )
        raise ModelError(
            f"The cost is not convex in the decision by CVXPY's rules because of {shorten(part)}: "
            f"rewrite it with convex atoms{sign if part.parameters() else ''}."
        )


def _length(variables: Sequence[cp.Variable]) -> int:
    """Number of scalars in the variables."""
    return sum(variable.size for variable in variables)


def _owners(lowered: Lowered, rows: int, entries: int) -> tuple[np.ndarray, Callable[[int], str]]:
    """The scalar maximum that every row of the table belongs to, and the text of each; entries come first."""
    starts = np.concatenate([[0], np.cumsum([m.variable.size for m in lowered.maxima])]).astype(int)
    owner = np.full(rows, -1)
    owners = [m.owner + start for m, start in zip(lowered.maxima, starts, strict=False)]
    owned = sum(len(o) for o in owners)
    owner[entries : entries + owned] = np.concatenate([np.zeros(0, dtype=int), *owners])

    def describe(f: int) -> str:
        return shorten(lowered.maxima[int(np.searchsorted(starts, f, side="right")) - 1].node)

    return owner, describe


def _check_products(entries: Coefficients, lowered: Lowered, width: int, y: Uncertain) -> None:
    """Refuses ``y`` times a maximum of ``y``."""
    columns = entries.column[(entries.column >= width) & (entries.coordinate >= 0)] - width
    if len(columns):
        nodes: list[tuple[cp.Expression, int]] = [(m.node, m.variable.size) for m in lowered.maxima]
        nodes += [(rule.node, 1) for rule in lowered.rules]
        nodes += [(curve.node, curve.variable.size) for curve in lowered.curves]
        ends = np.cumsum([size for _, size in nodes])
        node = nodes[int(np.searchsorted(ends, columns.min(), side="right"))][0]
        raise ModelError(
            f"The cost is not piecewise affine in {y.name()} because it multiplies {shorten(node)} by {y.name()}: "
            "multiply maxima and losses by nonnegative constants only."
        )


def _markers(
    entries: Coefficients, inner: int, outer: int, rows: int, lowered: Lowered
) -> tuple[Coefficients, sp.csr_array]:
    """The entries without the markers of decision rules and of losses, and what those are multiplied by."""
    of_rule = (entries.column >= inner) & (entries.column < outer)
    some = entries[of_rule]
    if (some.factor >= 0).any():
        first = int(some.column[some.factor >= 0].min()) - inner
        if first >= len(lowered.rules):
            names = ", ".join(shorten(curve.node) for curve in lowered.curves)
            raise ModelError(f"Of {names} one is multiplied by known data: put that into the loss, or into y.")
        node = lowered.rules[first].node
        raise ModelError(
            f"{shorten(node)} is handled by a decision rule and is multiplied by known data: reduce the "
            "second stage or use method='vertices'."
        )
    weight = sp.csr_array((some.value, (some.row, some.column - inner)), shape=(rows, outer - inner))
    return entries[~of_rule], weight


def _rules(
    lowered: Lowered, table: AffineRows, ends: np.ndarray, weight: np.ndarray, inside: sp.csr_array
) -> list[RuleRecourse]:
    """The two-stage costs left to decision rules, which may only be added to the rest."""
    recourses = []
    start = int(ends[2])
    for k, rule in enumerate(lowered.rules):
        rhs = table.take(np.arange(start, start + rule.rhs.size))
        start += rule.rhs.size
        if inside[:, [k]].nnz or weight[k] < 0:
            raise ModelError(
                f"{shorten(rule.node)} is handled by a decision rule and can only be added to the cost, "
                "not be inside a maximum or a CVaR: reduce the second stage or use method='vertices'."
            )
        if weight[k] > 0:
            recourses.append(RuleRecourse(float(weight[k]), *rule.node.ruled(), rhs))
    return recourses


def _curves(
    lowered: Lowered, table: AffineRows, start: int, weight: np.ndarray, inside: sp.csr_array
) -> list[CurvedCost]:
    """The losses that are curved in ``y``, which may only be added to the rest."""
    found, column = [], 0
    for curve in lowered.curves:
        mine = np.arange(column, column + curve.rows.size)
        if inside[:, mine].nnz:
            raise ModelError(
                f"{shorten(curve.node)} is curved in y and can only be added to the cost, not be inside a maximum or a "
                "CVaR: take the maximum of pieces that are affine in y, or bound the loss by some."
            )
        kept = mine[weight[mine] != 0]
        found.append(CurvedCost(curve.loss, weight[kept], table.take(start + kept), shorten(curve.node)))
        column += curve.rows.size
    return found


def _some(curve: CurvedCost, chosen: np.ndarray) -> CurvedCost:
    """Some of its rows."""
    where = np.flatnonzero(chosen)
    return replace(curve, weight=curve.weight[where], rows=curve.rows.take(where))


def _seeing(curve: CurvedCost) -> CurvedCost:
    """The rows that see ``y``."""
    return _some(curve, np.any(curve.rows.coordinates(), axis=1, keepdims=True)[:, 0])


def _blind(curve: CurvedCost) -> CurvedCost:
    """The rows that do not."""
    return _some(curve, ~np.any(curve.rows.coordinates(), axis=1, keepdims=True)[:, 0])


def _restore(
    epigraphs: Sequence[Epigraph],
    rows: Sequence[AffineRows],
    remainder: AffineRows,
    products: Products,
    decisions: Sequence[cp.Variable],
) -> tuple[list[tuple[Epigraph, int]], list[cp.Expression]]:
    """Epigraphs that the rows need, with their first columns; the others go back into ``c0`` as they were."""
    used, start = np.zeros(remainder.width, dtype=bool), _length(decisions)
    for matrix in (remainder.slope_linear, *(m for r in rows for m in (r.slope_linear, r.offset_linear))):
        used[matrix.indices] = True
    used[products.column[products.column >= 0]] = True
    weight = remainder.offset_linear.toarray().ravel()
    kept, restored = [], []
    for epigraph in epigraphs:
        columns = slice(start, start + epigraph.variable.size)
        if used[columns].any():
            kept.append((epigraph, start))
        elif weight[columns].any():
            restored.append(_weighted(weight[columns], epigraph.expression))
        start += epigraph.variable.size
    return kept, restored


def _weighted(weight: np.ndarray, expression: cp.Expression) -> cp.Expression:
    """The weighted sum of the entries."""
    if expression.is_scalar():
        return float(weight[0]) * cp.sum(expression)
    return weight @ cp.vec(expression, order="F")


def _plain_maxima(pieces: AffineRows, term: np.ndarray, stack: cp.Expression) -> list[cp.Expression]:
    """Maxima that do not see ``y``, those of one size together."""
    offset = pieces.offset(stack)
    _, first, count = np.unique(term, return_index=True, return_counts=True)
    sums = []
    for size in np.unique(count):
        rows = (first[count == size][:, None] + np.arange(size)).ravel()
        sums.append(cp.sum(cp.max(cp.reshape(offset[rows], (len(rows) // int(size), int(size)), order="C"), axis=1)))
    return sums


def _with_remainder(pieces: AffineRows, term: np.ndarray, remainder: AffineRows) -> tuple[AffineRows, np.ndarray]:
    """The pieces with terms numbered from 0, and the slope of the affine remainder as one more term."""
    names, term = np.unique(term, return_inverse=True)
    if not remainder.coordinates().any():
        return pieces, term
    return AffineRows(
        sp.vstack([pieces.slope_linear, remainder.slope_linear], format="csr"),
        np.vstack([pieces.slope_constant, remainder.slope_constant]),
        sp.vstack([pieces.offset_linear, sp.csr_array((1, pieces.width))], format="csr"),
        np.append(pieces.offset_constant, 0.0),
    ), np.append(term, len(names))


def _nonzero_rows(rows: AffineRows) -> AffineRows:
    """Without rows that are zero whatever ``x`` and ``y`` are, up to the rounding of the vertex enumeration."""
    size = np.abs(rows.slope_constant).max(axis=1, initial=0.0) + np.abs(rows.offset_constant)
    size += abs(rows.offset_linear).max(axis=1).toarray().ravel() if rows.width and len(rows) else 0.0
    if rows.slope_linear.nnz:
        size += abs(rows.slope_linear).max(axis=1).toarray().ravel().reshape(rows.slope_constant.shape).max(axis=1)
    return rows.take(np.flatnonzero(size > 1e-9))

"""A cost written in CVXPY, taken apart into ``c(x, y) = c0(x) + sum_j max_k { a_jk(x)'y + b_jk(x) }`` and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.cost.adaptive import Adaptive
from drolayers.cost.affine_rows import AffineRows, with_remainder
from drolayers.cost.affine_rule import Lifting, ruled
from drolayers.cost.coefficients import Coefficients, coefficients
from drolayers.cost.losses import Loss
from drolayers.cost.lowering import Epigraph, Lowered, lower, shorten
from drolayers.cost.products import Products, affine_rows, intervals, stack, stack_variables, system
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain

__all__ = ["AffineRows", "PiecewiseCost", "parse", "parse_entries"]

ZERO = 1e-9
"""Share of their terms up to which combinations by rays count as zero: so exactly is a dual enumerated."""


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
        stack: all variables as one vector, each in Fortran order, and their products with known data.
        auxiliary: the fresh epigraph variables among them.
        constraints: what defines the auxiliary variables; free of ``y``.
        pieces: the rows ``a_jk(x)'y + b_jk(x)``, weights included.
        term: ``(pieces,)``; the maximum ``j`` that a piece belongs to, numbered from 0.
        terms: number of maxima.
        forbidden: rows that must be at most zero for every ``y`` of the support (else the second stage is infeasible).
        curves: the losses that are curved in ``y``, in addition to the terms.
        equations: rows that must vanish for every ``y``, coefficient by coefficient.
        components: the coordinates of ``y`` that each lifted coordinate depends on; these stand behind those of ``y``.
        owner: the set whose components they are.
        own: ``(atoms, columns)``: rows are those of the first atom's rules; where their columns are for each atom.
        atoms: how many rules there are: one, or one for every atom.
        conservative: whether decision rules stand in it, so that the worst case can only be bounded from above.
        events: the same for every event of a mixture, where second stages have rules of their own in each.
    """

    y: Uncertain
    known: tuple[cp.Parameter, ...]
    certain: tuple[cp.Expression, ...]
    constant: AffineRows
    variables: tuple[cp.Variable, ...]
    products: Products
    stack: cp.Expression
    auxiliary: tuple[cp.Variable, ...]
    constraints: tuple[cp.Constraint, ...]
    pieces: AffineRows
    term: np.ndarray
    terms: int
    forbidden: AffineRows
    curves: tuple[CurvedCost, ...]
    equations: AffineRows
    components: tuple[np.ndarray, ...]
    owner: object
    own: np.ndarray
    atoms: int
    conservative: bool
    events: tuple[PiecewiseCost, ...] = ()

    @property
    def deterministic(self) -> cp.Expression:
        """``c0(x)``."""
        return sum(self.certain, start=cp.sum(self.constant.offset(self.stack)))

    @property
    def affine(self) -> bool:
        """Whether it is affine in ``y`` whatever the decision, so that its expectation is that at the mean."""
        single = len(self.pieces) == self.terms and not self.curves and not self.events and not len(self.forbidden)
        return single and not self.conservative and self.atoms == 1

    def named(self) -> tuple[cp.Expression, list[cp.Constraint]]:
        """The same with products that are variables, for rows that are multiplied by parameters once more."""
        if not len(self.products):
            return self.stack, []
        variables, name = stack_variables(self.variables), cp.Variable(len(self.products))
        return cp.hstack([variables, name]), [name == self.products.columns(variables)]


def parse(
    cost: cp.Expression,
    y: Uncertain,
    lifting: Lifting | None = None,
    forbidden: Sequence[cp.Expression] = (),
    equations: Sequence[cp.Expression] = (),
) -> PiecewiseCost:
    """Takes a cost apart into maxima of pieces that are affine in ``y``.

    Sums, nonnegative multiples, maxima, absolute values, 1- and infinity-norms of expressions affine in ``y`` are
    understood, nested as CVXPY's rules of convexity allow; minima with a negative sign likewise. A convex function of
    the decision that multiplies ``y`` (which then must be nonnegative) becomes an epigraph variable.

    Args:
        cost: a scalar CVXPY expression in decision variables and ``y``.
        y: the uncertain vector.
        lifting: what decision rules may respond to beside ``y``.
        forbidden: affine expressions that must not be positive for any ``y``, beside the cost.
        equations: affine expressions that must vanish for every ``y``.

    Raises:
        ModelError: the cost is not convex in the decision, not piecewise affine in ``y``, or has too many pieces.
    """
    if isinstance(cost, cp.Expression) and (not cost.is_scalar() or cost.is_complex()):
        kind = "complex" if cost.is_complex() else f"of shape {cost.shape}"
        raise ModelError(f"The cost {shorten(cost)} is {kind}, but must be a real scalar: sum its entries with cp.sum.")
    return parse_entries(cost, y, lifting, forbidden, equations)[0]


def parse_entries(
    cost: cp.Expression,
    y: Uncertain,
    lifting: Lifting | None = None,
    forbidden: Sequence[cp.Expression] = (),
    equations: Sequence[cp.Expression] = (),
) -> list[PiecewiseCost]:
    """The same for every entry of an expression, column by column.

    All are over one stack, with the same products, unless a decision rule, a loss that is curved in ``y`` or a convex
    function of the decision stands in them: then each is taken apart by itself.
    """
    _check(cost, y)
    lowered = lower(cost, y, forbidden, equations)
    beside, size = (cost, *forbidden, *equations), cost.size
    lifting = lifting or Lifting(y.dim)
    leaves = {v.id: v for expression in beside for v in expression.variables()}
    decisions = [v for v in leaves.values() if not isinstance(v, Adaptive)]
    adaptive = [v for v in leaves.values() if isinstance(v, Adaptive)]
    if size > 1 and (lowered.epigraphs or lowered.curves or lowered.stages or adaptive):
        flat = cp.vec(cost, order="F")
        return [parse(flat[k], y, lifting) for k in range(size)]
    events = lifting.events if lowered.stages and not adaptive else ()
    rules = [*(lifting.rule(v) for v in adaptive), *(lifting.rule(v, inner=True) for v in lowered.stages)]
    for v in adaptive:
        if v.y is not y:
            raise ModelError(f"The adaptive decision {v.name()} sees {v.y.name()}, not the {y.name()} of the set.")
    epigraphs = [epigraph.variable for epigraph in lowered.epigraphs]
    maxima = [maximum.variable for maximum in lowered.maxima]
    markers = [curve.variable for curve in lowered.curves]
    blocks = [
        [lowered.remainder],
        [row for maximum in lowered.maxima for row in maximum.rows],
        lowered.forbidden,
        lowered.equations,
        [curve.rows for curve in lowered.curves],
    ]
    known = tuple({p.id: p for expression in beside for p in expression.parameters() if p is not y}.values())
    unknowns = [*decisions, *epigraphs, *maxima, *markers, *adaptive, *lowered.stages]
    entries = coefficients([expression for block in blocks for expression in block], unknowns, y.flat, known)
    said = np.concatenate(
        [np.zeros(0, dtype=bool)]
        + [
            _said(*lowered.rays[k], unknowns, y, known) if k in lowered.rays else np.ones(expression.size, dtype=bool)
            for k, expression in enumerate(lowered.forbidden)
        ]
    )
    ends = np.cumsum([sum(expression.size for expression in block) for block in blocks])
    owner, describe = _owners(lowered, int(ends[-1]), size)
    plain, cut = _length([*decisions, *epigraphs]), _length([*maxima, *markers])
    _check_products(entries, lowered, range(plain, plain + cut), y)
    found = ruled(entries, plain, cut, rules, y)
    entries, coefficients_of = found.entries, [rule.variable for rule in rules]
    lengths = [_length(variables) for variables in (coefficients_of, maxima, markers)]
    width, inner, outer = (int(n) for n in plain + np.cumsum(lengths))
    # Atoms' rules know distances from their atoms, and nobody else does.
    components = lifting.components if rules and (lifting.atoms == 1 or len(found.own) > 1) else ()
    if lowered.curves and components:
        raise ModelError(
            f"{shorten(lowered.curves[0].node)} is curved in y and stands beside the decision rule of "
            f"{rules[0].decision.name()}, which responds to moments or distances: bound it by pieces that are affine "
            "in y, or use dro.Divergence or dro.Empirical."
        )
    dim = y.dim + len(components)
    ranges = intervals(known)
    entries, monomials, maxima_of = system(entries, owner, range(width, inner), ranges, describe)
    names = ", ".join(shorten(curve.node) for curve in lowered.curves)
    if maxima_of.weight[ends[3] : ends[4]].nnz:
        raise ModelError(f"Of {names} a loss is taken of a maximum of y: take it of what is affine in y.")
    if maxima_of.weight[ends[1] : ends[3]].nnz:
        raise ModelError(
            "The right-hand side of a recourse, and an equation that holds always, must be affine in y: take maxima of "
            "y out of it."
        )
    # Without the markers of losses, of which only the weights matter.
    marked = (entries.column >= inner) & (entries.column < outer)
    some, entries, count = entries[marked], entries[~marked], len(maxima_of.owner)
    if (some.factor >= 0).any():
        raise ModelError(f"Of {names} one is multiplied by known data: put that into the loss, or into y.")
    marker_weight = sp.csr_array((some.value, (some.row, some.column - inner)), shape=(count, outer - inner))
    table, products = affine_rows(entries, count, dim, width, monomials, ranges)

    # The entries are the first rows: an affine remainder each, and one term for each scalar maximum in it.
    chosen, entry, selection, term = maxima_of.multiplied_out(size)
    remainders, pieces = table.combine(chosen), table.combine(selection)
    distinct = pieces.distinct(term)
    pieces, term, selection = pieces.take(distinct), term[distinct], selection[distinct]
    curves = _curves(lowered, table, int(ends[3]), (chosen @ marker_weight).toarray()[0], selection @ marker_weight)

    never, matched = table.take(ends[1] + np.flatnonzero(said)), table.take(np.arange(*ends[2:4]))
    # Rows that were multiplied by known data once more have left products behind.
    rows = [pieces, remainders, never, matched, *(curve.rows for curve in curves)]
    needed = np.unique(np.concatenate([m.indices for r in rows for m in (r.slope_linear, r.offset_linear)]))
    needed = needed[needed >= width].astype(np.int64)
    seen = products.column[needed - width]

    kept, restored = _restore(lowered.epigraphs, [pieces, *(c.rows for c in curves)], remainders, seen, decisions)
    places = [start + np.arange(epigraph.variable.size) for epigraph, start in kept]
    columns = np.concatenate([np.arange(_length(decisions)), *places, np.arange(plain, width)])
    variables = (*decisions, *[epigraph.variable for epigraph, _ in kept], *coefficients_of)
    products, own = products.take(needed - width).over(columns).each_atom(found.own[:, columns], columns)
    x, taken = stack(variables, products), np.concatenate([columns, needed])
    pieces, remainders, never, matched = (
        part.keep_columns(taken, own.shape[1]) for part in (pieces, remainders, never, matched)
    )
    never = never.nonzero()
    curves = [replace(curve, rows=curve.rows.keep_columns(taken, own.shape[1])) for curve in curves]
    restored += [
        curve.loss.of(curve.rows.offset(x)) @ curve.weight for curve in map(_blind, curves) if curve.weight.size
    ]
    costs = []
    for k in range(size):
        mine = np.flatnonzero(entry[term] == k)
        of_entry, its, remainder = (pieces, term, remainders) if size == 1 else _one(pieces, term, remainders, mine, k)
        sees_y = np.isin(its, its[of_entry.coordinates().any(axis=1)])
        blind = of_entry.take(np.flatnonzero(~sees_y)), its[~sees_y]
        constant, moving = remainder.parted(np.flatnonzero((own != own[0]).any(axis=0)))
        seeing, its = with_remainder(of_entry.take(np.flatnonzero(sees_y)), its[sees_y], moving)
        costs.append(
            PiecewiseCost(
                y=y,
                known=known,
                certain=(*restored, *(_plain_maxima(*blind, x) if len(blind[1]) else ())),
                constant=constant,
                variables=variables,
                products=products,
                stack=x,
                auxiliary=tuple(epigraph.variable for epigraph, _ in kept),
                constraints=tuple(epigraph.constraint for epigraph, _ in kept),
                pieces=seeing,
                term=its,
                terms=int(its.max(initial=-1)) + 1,
                forbidden=never,
                curves=tuple(curve for curve in map(_seeing, curves) if curve.weight.size),
                equations=matched,
                components=components,
                owner=lifting.owner,
                own=own,
                atoms=len(own),
                conservative=bool(rules),
                events=tuple(parse(cost, y, event, forbidden, equations) for event in events),
            )
        )
    return costs


def _one(
    pieces: AffineRows, term: np.ndarray, remainders: AffineRows, mine: np.ndarray, entry: int
) -> tuple[AffineRows, np.ndarray, AffineRows]:
    """What belongs to one entry."""
    return pieces.take(mine), term[mine], remainders.take(np.array([entry]))


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


def _check_products(entries: Coefficients, lowered: Lowered, maxima: range, y: Uncertain) -> None:
    """Refuses ``y`` times a maximum of ``y``."""
    inside = (entries.column >= maxima.start) & (entries.column < maxima.stop) & (entries.coordinate >= 0)
    columns = entries.column[inside] - maxima.start
    if len(columns):
        nodes: list[tuple[cp.Expression, int]] = [(m.node, m.variable.size) for m in lowered.maxima]
        nodes += [(curve.node, curve.variable.size) for curve in lowered.curves]
        ends = np.cumsum([size for _, size in nodes])
        node = nodes[int(np.searchsorted(ends, columns.min(), side="right"))][0]
        raise ModelError(
            f"The cost is not piecewise affine in {y.name()} because it multiplies {shorten(node)} by {y.name()}: "
            "multiply maxima and losses by nonnegative constants only."
        )


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
    multiplied: np.ndarray,
    decisions: Sequence[cp.Variable],
) -> tuple[list[tuple[Epigraph, int]], list[cp.Expression]]:
    """Epigraphs that the rows or products need, with their first columns; the others go back into ``c0``."""
    used, start = np.zeros(remainder.width, dtype=bool), _length(decisions)
    for matrix in (remainder.slope_linear, *(m for r in rows for m in (r.slope_linear, r.offset_linear))):
        used[matrix.indices] = True
    used[multiplied[multiplied >= 0]] = True
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


def _said(
    rays: sp.csr_array,
    rhs: cp.Expression,
    leaves: Sequence[cp.Variable],
    y: Uncertain,
    known: Sequence[cp.Parameter],
) -> np.ndarray:
    """Which combinations of a right-hand side say something: the others are zero, up to rounding, whatever it is."""
    found = coefficients([rhs], leaves, y.flat, known)
    _, key = np.unique(np.stack([found.column, found.coordinate, found.factor]), axis=1, return_inverse=True)
    place = (found.row, key.reshape(-1))
    table = sp.csr_array((found.value, place), shape=(rays.shape[1], int(key.max(initial=-1)) + 1))
    # Number by number, since decisions and outcomes may be counted in other units than the second stage.
    return np.asarray((abs(rays @ table) > ZERO * (abs(rays) @ abs(table))).sum(axis=1)).ravel() > 0

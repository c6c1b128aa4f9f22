"""A cost written in CVXPY, taken apart into ``c(x, y) = c0(x) + sum_j max_k { a_jk(x)'y + b_jk(x) }``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.cost.adaptive import Adaptive
from drolayers.cost.affine_rows import AffineRows
from drolayers.cost.affine_rule import Lifting, ruled
from drolayers.cost.coefficients import Coefficients, coefficients
from drolayers.cost.lowering import Epigraph, Lowered, lower, shorten
from drolayers.cost.products import Products, affine_rows, intervals, system
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain

__all__ = ["AffineRows", "PiecewiseCost", "parse"]


@dataclass(frozen=True)
class PiecewiseCost:
    """The cost ``c(x, y) = c0(x) + sum_j max_k { a_jk(x)'y + b_jk(x) }`` as arrays.

    Attributes:
        y: the uncertain vector.
        known: the parameters of the cost that are known data.
        deterministic: ``c0(x)``, convex and free of ``y``.
        variables: the decision variables, then the auxiliary ones; stacked in Fortran order they are the columns of
            all rows below, followed by the products.
        products: of known data with variables.
        auxiliary: the fresh epigraph variables among them.
        constraints: what defines the auxiliary variables; free of ``y``.
        pieces: the rows ``a_jk(x)'y + b_jk(x)``, weights included.
        term: ``(pieces,)``; the maximum ``j`` that a piece belongs to, numbered from 0.
        forbidden: rows that must be at most zero for every ``y`` of the support (else the second stage is infeasible).
        equations: rows that must vanish for every ``y``, coefficient by coefficient.
        components: the coordinates of ``y`` that each lifted coordinate depends on; these stand behind those of ``y``.
        owner: the set whose components they are.
        own: ``(atoms, columns)``: rows are those of the first atom's rules; where their columns are for each atom.
        conservative: whether decision rules stand in it, so that the worst case can only be bounded from above.
    """

    y: Uncertain
    known: tuple[cp.Parameter, ...]
    deterministic: cp.Expression
    variables: tuple[cp.Variable, ...]
    products: Products
    auxiliary: tuple[cp.Variable, ...]
    constraints: tuple[cp.Constraint, ...]
    pieces: AffineRows
    term: np.ndarray
    forbidden: AffineRows
    equations: AffineRows
    components: tuple[np.ndarray, ...]
    owner: object
    own: np.ndarray
    conservative: bool

    @property
    def atoms(self) -> int:
        """How many rules there are: one, or one for every atom."""
        return len(self.own)

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
    _check(cost, y)
    lowered = lower(cost, y, forbidden, equations)
    beside = (cost, *forbidden, *equations)
    lifting = lifting or Lifting(y.dim)
    leaves = {v.id: v for expression in beside for v in expression.variables()}
    decisions = [v for v in leaves.values() if not isinstance(v, Adaptive)]
    adaptive = [v for v in leaves.values() if isinstance(v, Adaptive)]
    rules = [*(lifting.rule(v) for v in adaptive), *(lifting.rule(v, inner=True) for v in lowered.stages)]
    for v in adaptive:
        if v.y is not y:
            raise ModelError(f"The adaptive decision {v.name()} sees {v.y.name()}, not the {y.name()} of the set.")
    epigraphs = [epigraph.variable for epigraph in lowered.epigraphs]
    maxima = [maximum.variable for maximum in lowered.maxima]
    blocks = [
        [lowered.remainder],
        [row for maximum in lowered.maxima for row in maximum.rows],
        lowered.forbidden,
        lowered.equations,
    ]
    known = tuple({p.id: p for expression in beside for p in expression.parameters() if p is not y}.values())
    entries = coefficients(
        [expression for block in blocks for expression in block],
        [*decisions, *epigraphs, *maxima, *adaptive, *lowered.stages],
        y.flat,
        known,
    )
    width, inner = (int(n) for n in np.cumsum([_length(decisions) + _length(epigraphs), _length(maxima)]))
    _check_products(entries, lowered, range(width, inner), y)
    found = ruled(entries, width, inner - width, rules, y)
    entries, coefficients_of = found.entries, [rule.variable for rule in rules]
    plain, width, inner = width, width + _length(coefficients_of), inner + _length(coefficients_of)
    # Atoms' rules know distances from their atoms, and nobody else does.
    components = lifting.components if rules and (lifting.atoms == 1 or len(found.own) > 1) else ()
    dim = y.dim + len(components)
    ends = np.cumsum([sum(expression.size for expression in block) for block in blocks])
    owner, describe = _owners(lowered, int(ends[-1]))
    ranges = intervals(known)
    entries, monomials, maxima_of = system(entries, owner, range(width, inner), ranges, describe)
    if maxima_of.weight[ends[1] : ends[3]].nnz:
        raise ModelError(
            "The right-hand side of a recourse, and an equation that holds always, must be affine in y: take maxima of "
            "y out of it."
        )
    table, products = affine_rows(entries, len(maxima_of.owner), dim, width, monomials, ranges)

    # The cost itself is row 0: an affine remainder, and one term for each scalar maximum in it.
    chosen, left = maxima_of.flatten(0)
    remainder = table.combine(chosen)
    heads = np.flatnonzero(left)
    maxima_of.check_size(heads)
    count = len(heads)
    selection, term = maxima_of.expand(
        sp.csr_array((count, len(table))),
        sp.csr_array((left[heads], (np.arange(count), heads)), shape=(count, maxima_of.size)),
    )
    pieces = table.combine(selection)
    distinct = pieces.distinct(term)
    pieces, term, selection = pieces.take(distinct), term[distinct], selection[distinct]

    never, matched = (table.take(np.arange(*ends[k : k + 2])) for k in (1, 2))
    # Rows that were multiplied by known data once more have left products behind.
    rows = [pieces, remainder, never, matched]
    needed = np.unique(np.concatenate([m.indices for r in rows for m in (r.slope_linear, r.offset_linear)]))
    needed = needed[needed >= width].astype(np.int64)
    products = products.take(needed - width)

    kept, restored = _restore(lowered.epigraphs, pieces, remainder, products, _length(decisions))
    places = [start + np.arange(epigraph.variable.size) for epigraph, start in kept]
    columns = np.concatenate([np.arange(_length(decisions)), *places, np.arange(plain, width)])
    variables = (*decisions, *[epigraph.variable for epigraph, _ in kept], *coefficients_of)
    products, own = _each_atom(products.over(columns), found.own[:, columns], columns)
    taken = np.concatenate([columns, needed])
    pieces, remainder, never, matched = (
        part.keep_columns(taken, own.shape[1]) for part in (pieces, remainder, never, matched)
    )
    x = stack(variables, products)
    sees_y = np.isin(term, term[pieces.coordinates().any(axis=1)])
    fixed, moving = remainder.parted(np.flatnonzero((own != own[0]).any(axis=0)))
    deterministic = sum(
        [*restored, *_plain_maxima(pieces.take(np.flatnonzero(~sees_y)), term[~sees_y], x)],
        start=cp.sum(fixed.offset(x)),
    )
    pieces, term = _with_remainder(pieces.take(np.flatnonzero(sees_y)), term[sees_y], moving)
    return PiecewiseCost(
        y=y,
        known=known,
        deterministic=deterministic,
        variables=variables,
        products=products,
        auxiliary=tuple(epigraph.variable for epigraph, _ in kept),
        constraints=tuple(epigraph.constraint for epigraph, _ in kept),
        pieces=pieces,
        term=term,
        forbidden=_nonzero_rows(never),
        equations=matched,
        components=components,
        owner=lifting.owner,
        own=own,
        conservative=bool(rules),
    )


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
    if not cost.is_scalar() or cost.is_complex():
        kind = "complex" if cost.is_complex() else f"of shape {cost.shape}"
        raise ModelError(f"The cost {shorten(cost)} is {kind}, but must be a real scalar: sum its entries with cp.sum.")
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


def _owners(lowered: Lowered, rows: int) -> tuple[np.ndarray, Callable[[int], str]]:
    """The scalar maximum that every row of the table belongs to, and the text of each; the cost itself comes first."""
    starts = np.concatenate([[0], np.cumsum([m.variable.size for m in lowered.maxima])]).astype(int)
    owner = np.full(rows, -1)
    owners = [m.owner + start for m, start in zip(lowered.maxima, starts, strict=False)]
    owned = sum(len(o) for o in owners)
    owner[1 : 1 + owned] = np.concatenate([np.zeros(0, dtype=int), *owners])

    def describe(f: int) -> str:
        return shorten(lowered.maxima[int(np.searchsorted(starts, f, side="right")) - 1].node)

    return owner, describe


def _check_products(entries: Coefficients, lowered: Lowered, maxima: range, y: Uncertain) -> None:
    """Refuses ``y`` times a maximum of ``y``."""
    inside = (entries.column >= maxima.start) & (entries.column < maxima.stop) & (entries.coordinate >= 0)
    columns = entries.column[inside] - maxima.start
    if len(columns):
        ends = np.cumsum([m.variable.size for m in lowered.maxima])
        node = lowered.maxima[int(np.searchsorted(ends, columns.min(), side="right"))].node
        raise ModelError(
            f"The cost is not piecewise affine in {y.name()} because it multiplies {shorten(node)} by {y.name()}: "
            "multiply maxima by nonnegative constants only."
        )


def _each_atom(products: Products, own: np.ndarray, columns: np.ndarray) -> tuple[Products, np.ndarray]:
    """Products with every atom's coefficients, and where the columns of the first atom's rows are for each."""
    place = np.full(int(max(columns.max(initial=-1), own.max(initial=-1))) + 1, -1)
    place[columns] = np.arange(len(columns))
    own, count = place[own], len(products)
    there = np.hstack([own, np.full((len(own), 1), -1)])[:, products.column] if count else own[:, :0]
    atom, which = np.nonzero(there != there[0])
    behind = len(columns) + np.tile(np.arange(count), (len(own), 1))
    behind[atom, which] = len(columns) + count + np.arange(len(atom))
    same = np.tile(len(columns) + count + np.arange(len(atom)), (len(own), 1))
    return products.with_columns(which, there[atom, which]), np.hstack([own, behind, same])


def _restore(
    epigraphs: Sequence[Epigraph], pieces: AffineRows, remainder: AffineRows, products: Products, start: int
) -> tuple[list[tuple[Epigraph, int]], list[cp.Expression]]:
    """Epigraphs that the pieces need, with their first columns; the others go back into ``c0`` as they were."""
    used = np.zeros(pieces.width, dtype=bool)
    for matrix in (pieces.slope_linear, pieces.offset_linear, remainder.slope_linear):
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
    """The pieces with terms numbered from 0, and the affine remainder, whose offset is none but rules', as one more."""
    names, term = np.unique(term, return_inverse=True)
    if not remainder.coordinates().any():
        return pieces, term
    return AffineRows(
        sp.vstack([pieces.slope_linear, remainder.slope_linear], format="csr"),
        np.vstack([pieces.slope_constant, remainder.slope_constant]),
        sp.vstack([pieces.offset_linear, remainder.offset_linear], format="csr"),
        np.append(pieces.offset_constant, 0.0),
    ), np.append(term, len(names))


def _nonzero_rows(rows: AffineRows) -> AffineRows:
    """Without rows that are zero whatever ``x`` and ``y`` are, up to the rounding of the vertex enumeration."""
    size = np.abs(rows.slope_constant).max(axis=1, initial=0.0) + np.abs(rows.offset_constant)
    size += abs(rows.offset_linear).max(axis=1).toarray().ravel() if rows.width and len(rows) else 0.0
    if rows.slope_linear.nnz:
        size += abs(rows.slope_linear).max(axis=1).toarray().ravel().reshape(rows.slope_constant.shape).max(axis=1)
    return rows.take(np.flatnonzero(size > 1e-9))

"""From a CVXPY problem with parameters to a :class:`ConeProgram`, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from cvxpy.atoms.affine.diag import diag_mat
from cvxpy.constraints import NonNeg, Zero
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL
from cvxpy.utilities.scopes import dpp_scope, quad_form_dpp_scope

from conelayers.errors import ModelError
from conelayers.program.duals import DualSlot, locate_duals
from conelayers.program.program import AffineMap, ConeProgram, Cones, Slot
from conelayers.transforms import refuse_transforms

WHOLE = 1e-9
"""By how much a bound of an integer may miss a whole number: rounding."""

CONSTANT_ID = -1
"""CVXPY's number of the constant among the parameters; its column is the last."""

_SYMMETRIC = ("PSD", "NSD", "symmetric")
_STRUCTURES = (*_SYMMETRIC, "diag", "sparsity", "hermitian", "complex", "imag")


class _Canonical(CLARABEL):
    """Not a solver: how CVXPY is asked for the cone form.

    The stock interfaces refuse a boolean cone program, and turn bounds of variables into anonymous rows. This one keeps
    integrality aside and leaves the bounds in ``lower_bounds`` and ``upper_bounds``.
    """

    MIP_CAPABLE = True
    BOUNDED_VARIABLES = True
    MI_SUPPORTED_CONSTRAINTS = CLARABEL.SUPPORTED_CONSTRAINTS

    def name(self) -> str:
        """A name of its own, so that CVXPY's cache never confuses it with Clarabel."""
        return "CONELAYERS"

    @classmethod
    def format_constraints(cls, problem: Any, exp_cone_order: list[int]) -> Any:
        """CVXPY's own multiplies by matrices as wide as columns times parameters, though rows only change places."""
        places = [_places(constraint, exp_cone_order) for constraint in problem.constraints]
        known = [place for place in places if place is not None]
        if not places or len(known) < len(places):
            return super().format_constraints(problem, exp_cone_order)
        starts = np.concatenate([[0], np.cumsum([place.size for place in known])])
        place = np.concatenate([start + place for start, place in zip(starts, known, strict=False)])
        equations = [isinstance(constraint, Zero) for constraint in problem.constraints]
        sign = np.repeat(np.where(equations, -1.0, 1.0), np.diff(starts))
        entries = sp.coo_array(problem.A)
        column, row = np.divmod(entries.row.astype(np.int64), place.size)
        formatted = copy(problem)
        formatted.A = sp.csc_array(
            (entries.data * sign[row], (column * place.size + place[row], entries.col)), shape=entries.shape
        )
        formatted.reduced_A = type(problem.reduced_A)(formatted.A, problem.x.size)
        formatted.formatted = True
        return formatted


def _places(constraint: cp.Constraint, exp_cone_order: list[int]) -> np.ndarray | None:
    """Where the rows of a constraint's arguments go, so that each cone's rows stand together; None where unknown."""
    if isinstance(constraint, Zero | NonNeg):
        return np.arange(constraint.size)
    if isinstance(constraint, cp.SOC):
        count, size = constraint.args[0].size, constraint.args[1].size // constraint.args[0].size + 1
        first = size * np.arange(count)
        return np.concatenate([first, (first[:, None] + np.arange(1, size)).ravel()])
    if isinstance(constraint, cp.ExpCone | cp.PowCone3D):
        order = exp_cone_order if isinstance(constraint, cp.ExpCone) else range(3)
        return np.concatenate([3 * np.arange(constraint.args[0].size) + offset for offset in order])
    return None


Canonical = tuple[Any, dict[int, int], dict[int, int]]

Duals = tuple[tuple[DualSlot, ...] | None, ...]
"""Rows of the dual variables of every constraint of a problem, in their order."""


def compile_program(
    problem: cp.Problem, parameters: Sequence[cp.Parameter] | None = None, free: Sequence[cp.Variable] = ()
) -> ConeProgram:
    """Compile a parametrised CVXPY problem; see :func:`compile_with_duals`."""
    return compile_with_duals(problem, parameters, free)[0]


def compile_with_duals(
    problem: cp.Problem, parameters: Sequence[cp.Parameter] | None = None, free: Sequence[cp.Variable] = ()
) -> tuple[ConeProgram, Duals]:
    """Compile a parametrised CVXPY problem, and locate the dual variables of its constraints.

    Args:
        problem: a minimisation (or maximisation: its objective is negated) that is DCP and DPP.
        parameters: the order of the parameters among the features; each is laid out row by row, as torch does.
            Parameters that the problem does not use may be listed: they are ignored. By default,
            ``problem.parameters()``.
        free: variables whose declared bounds and integrality are dropped, because constraints fix them.

    Raises:
        ModelError: not convex, not DPP, NaN or infinite constants, an unsupported cone or parameter, or an unbounded
            integer variable.
    """
    # What is compiled is kept, and what is made within a transform ends with it.
    refuse_transforms()
    listed = list(problem.parameters() if parameters is None else parameters)
    _check(problem, listed)
    plain = _plain(problem)
    canonical, constraint_ids, parameter_ids = _canonical(plain.objective, plain.constraints)
    dims = canonical.cone_dims
    if dims.pnd:
        raise ModelError(f"Power cones in n dimensions are not supported; they come from {_cone_offender(problem)}.")

    columns = canonical.x.size
    slots, feature_map = _layout(listed, canonical, parameter_ids)
    stacked = _stacked(canonical.reduced_A, feature_map, columns)
    bound_rows, bound_offsets, integers = _bound_rows(canonical, problem, free, _said(stacked, dims, columns))
    # The bounds close the block of nonnegative rows.
    at = dims.zero + dims.nonneg
    first_lower, extra = at, bound_rows.shape[0]
    duals = locate_duals(plain.constraints[: len(problem.constraints)], canonical, constraint_ids, extra)
    rows, cols, coefficient, constant = stacked
    rows = np.where(rows >= at, rows + extra, rows)
    rows = np.concatenate([rows, at + bound_rows.row])
    cols = np.concatenate([cols, bound_rows.col])
    coefficient = sp.vstack([coefficient, sp.csr_array((bound_rows.nnz, feature_map.shape[1]))], format="csr")
    constant = np.concatenate([constant, bound_rows.data])

    is_rhs = cols == columns
    cones = Cones(
        zero=int(dims.zero),
        nonneg=int(dims.nonneg) + extra,
        soc=tuple(int(d) for d in dims.soc),
        psd=tuple(int(order) for order in dims.psd),
        exp=int(dims.exp),
        power=tuple(float(a) for a in dims.p3d),
    )
    by_row = np.lexsort((cols, rows))
    A_entries = by_row[~is_rhs[by_row]]
    # CVXPY's rows read  s = A'x + b'; ours read Ax + s = b.
    A_map = _affine(-constant[A_entries], -coefficient[A_entries])
    rhs_rows = rows[is_rhs]
    spread = sp.csr_array(
        (np.ones(rhs_rows.size), (rhs_rows, np.arange(rhs_rows.size))), shape=(cones.rows, rhs_rows.size)
    )
    b_constant = spread @ constant[is_rhs]
    b_constant[at : at + extra] += bound_offsets
    b_map = _affine(b_constant, sp.csr_array(spread @ coefficient[is_rhs]))

    q_coefficient, q_constant = _select(sp.csc_array(canonical.q), feature_map)
    P_indptr, P_indices, P_map = _quadratic(canonical, feature_map, columns)
    q_map, constant_map = _affine(q_constant[:-1], q_coefficient[:-1]), _affine(q_constant[-1:], q_coefficient[-1:])
    _check_maps(A_map, b_map, q_map, P_map, constant_map)
    column, lower, upper = integers
    program = ConeProgram(
        cones=cones,
        columns=columns,
        A_indptr=_long(np.searchsorted(rows[A_entries], np.arange(cones.rows + 1))),
        A_indices=_long(cols[A_entries]),
        P_indptr=P_indptr,
        P_indices=P_indices,
        A_map=A_map,
        b_map=b_map,
        q_map=q_map,
        P_map=P_map,
        constant_map=constant_map,
        variables=tuple(
            Slot(v.name(), int(canonical.var_id_to_col[v.id]), tuple(v.shape), int(v.id), v)
            for v in problem.variables()
        ),
        parameters=slots,
        integers=_long(column),
        lower_rows=_long(first_lower + lower),
        upper_rows=_long(first_lower + upper),
    )
    return program, duals


def _plain(problem: cp.Problem) -> cp.Problem:
    """The same problem with plain matrices in place of symmetric variables, of which CVXPY would keep a triangle."""
    plain, constraints = {}, []
    for variable in problem.variables():
        if not any(variable.attributes.get(a) for a in _SYMMETRIC):
            continue
        rest = {a: value for a, value in variable.attributes.items() if a not in _SYMMETRIC}
        X = plain[id(variable)] = cp.Variable(variable.shape, variable.name(), var_id=variable.id, **rest)
        above = np.triu_indices(X.shape[0], 1)
        if above[0].size:
            constraints.append(X[above] == X.T[above])
        if variable.attributes["PSD"]:
            constraints.append(X >> 0)
        elif variable.attributes["NSD"]:
            constraints.append(X << 0)
    if not plain:
        return problem
    objective = problem.objective.tree_copy(id_objects=plain)
    return cp.Problem(objective, [*(c.tree_copy(id_objects=plain) for c in problem.constraints), *constraints])


def _canonical(objective: cp.Minimize | cp.Maximize, constraints: list[cp.Constraint]) -> Canonical:
    """CVXPY's parametrised cone program, and its numbers of constraints and parameters by the user's."""
    # A problem of our own, since CVXPY caches canonicalisations without looking at the back end asked for.
    fresh = cp.Problem(objective, constraints)

    def canonicalise(backend: str) -> Canonical:
        try:
            with quad_form_dpp_scope():
                data, chain, _ = fresh.get_problem_data(_Canonical(), enforce_dpp=True, canon_backend=backend)
        except MemoryError as error:
            variables, numbers = (sum(leaf.size for leaf in part) for part in (fresh.variables(), fresh.parameters()))
            raise ModelError(
                f"There is not enough memory to compile a problem with {variables:,} variables and {numbers:,} "
                "parameters (numbers, not arrays): use fewer atoms or outcomes, or a machine with more memory."
            ) from error
        parameters = {given: lowered[0] for given, lowered in chain.compose_param_id_map().items()}
        return data["param_prob"], chain.compose_constr_id_map(), parameters

    # CVXPY multiplies infinite bounds by zeros on its way.
    with np.errstate(invalid="ignore"):
        try:
            return canonicalise("COO")
        except ValueError:
            # CVXPY 1.9's fast way stumbles over entrywise products of parameters with constants.
            fresh = cp.Problem(objective, constraints)
            return canonicalise("SCIPY")


def _check(problem: cp.Problem, parameters: list[cp.Parameter]) -> None:
    """Name the first thing that cannot be compiled."""
    for parameter in problem.parameters():
        if not any(parameter.id == p.id for p in parameters):
            raise ModelError(f"Parameter {parameter.name()} is used in the problem but is not listed in parameters.")
    check_leaves(problem.objective.expr, problem.constraints, structured_parameters=True)
    with quad_form_dpp_scope():
        _check_curvature(problem)


def _check_curvature(problem: cp.Problem) -> None:
    """Name the first part that is not convex, or not DPP; parameters of quadratic forms may stand in the objective."""
    for part in (problem.objective, *problem.constraints):
        expressions = list(part.args)
        if not part.is_dcp():
            raise ModelError(f"Not convex: {_offender(expressions, dpp=False) or part}.")
        if not part.is_dcp(dpp=True):
            offender = _offender(expressions, dpp=True)
            advice = "make what is computed from parameters alone a parameter of its own"
            if offender is not None and any(arg.variables() and arg.parameters() for arg in offender.args):
                advice = "write what holds both variables and parameters inside it as a variable of its own, v == x - s"
            raise ModelError(
                f"Not DPP (a product of parameters, or a parameter where only constants may stand): "
                f"{part if offender is None else offender}: {advice}."
            )


def check_leaves(
    cost: cp.Expression, constraints: Sequence[cp.Constraint], structured_parameters: bool = False
) -> None:
    """Name the first part that holds what has a structure, or a constant that is no number.

    A solver would fail on such a constant and blame something else.
    """
    first: dict[int, cp.Expression] = {}
    for leaf in (leaf for part in (cost, *constraints) for leaf in (*part.parameters(), *part.variables())):
        if first.setdefault(leaf.id, leaf) is not leaf:
            raise ModelError(
                f"{first[leaf.id].name()} and {leaf.name()} have one number, since one of them was unpickled: CVXPY "
                "would take them for the same, so make the others after unpickling, or use the unpickled ones alone."
            )
        variable = isinstance(leaf, cp.Variable)
        taken: tuple[str, ...] = _SYMMETRIC if variable and leaf.ndim == 2 else ()
        if structured_parameters and not variable:
            taken = (*_SYMMETRIC, "diag", "sparsity")
        structure = [a for a in _STRUCTURES if leaf.attributes.get(a) and a not in taken]
        if structure:
            kind = "Variable" if variable else "Parameter"
            raise ModelError(
                f"{kind} {leaf.name()} has structure {structure}, which CVXPY rewrites: declare it as a plain array."
            )
        held = leaf.attributes.get("bounds") or ()
        if any(isinstance(end, cp.Expression) for end in held):
            raise ModelError(
                f"Variable {leaf.name()} is declared with bounds that are parameters: constrain it by them."
            )
    for constraint in constraints:
        if isinstance(constraint, cp.FiniteSet):
            raise ModelError(
                f"The constraint {constraint} is not supported: choose among values by booleans, "
                "x == values @ pick with cp.sum(pick) == 1."
            )
    for node in _nodes([cost, *constraints]):
        if isinstance(node, diag_mat) and node.parameters() and not node.variables():
            raise ModelError(
                f"CVXPY 1.9 miscalculates products with the diagonal {node} of a parameter: make the diagonal a "
                "parameter of its own."
            )
    for part in (cost, *constraints):
        if _all_finite(part):
            continue
        with np.printoptions(formatter={"float_kind": lambda number: f"{number:g}"}):
            named = f"constraint {part}" if isinstance(part, cp.Constraint) else f"cost's part {_not_finite(part)}"
        raise ModelError(
            f"The {named} holds NaN or infinity: leave out bounds and pieces that are infinite, and give "
            "finite numbers elsewhere."
        )


def _nodes(parts: Sequence[cp.Expression | cp.Constraint]) -> Iterator[cp.Expression | cp.Constraint]:
    """Everything in some expressions and constraints, once."""
    seen: set[int] = set()
    left = list(parts)
    while left:
        node = left.pop()
        if id(node) not in seen:
            seen.add(id(node))
            left += node.args
            yield node


def _all_finite(part: cp.Expression | cp.Constraint) -> bool:
    """Whether all constants of a part are numbers."""
    values = (constant.value for constant in part.constants())
    return all(bool(np.isfinite(value.data if sp.issparse(value) else value).all()) for value in values)


def _not_finite(expression: cp.Expression) -> cp.Expression:
    """The innermost expression in a variable or parameter that holds a constant which is no number."""
    inner = (arg for arg in expression.args if not arg.is_constant() and not _all_finite(arg))
    return next((_not_finite(arg) for arg in inner), expression)


def _check_maps(*maps: AffineMap) -> None:
    """Finite constants can still overflow when they are multiplied with each other."""
    if not all(bool(part.isfinite().all()) for found in maps for part in (found.constant, found.coefficient)):
        raise ModelError(
            "The products of the problem's constants are NaN or infinite: write it in units in which its numbers are "
            "smaller."
        )


def _offender(expressions: list[cp.Expression], dpp: bool) -> cp.Expression | None:
    """The innermost expression that breaks the rules."""

    def follows(expression: cp.Expression) -> bool:
        with dpp_scope() if dpp else nullcontext(), quad_form_dpp_scope():
            return bool(expression.is_convex() or expression.is_concave())

    for expression in expressions:
        if isinstance(expression, cp.Expression) and not follows(expression):
            return _offender(expression.args, dpp) or expression
    return None


def _cone_offender(problem: cp.Problem) -> object:
    """The innermost part of a problem that needs a cone which we do not have."""

    def needs(part: cp.Expression | cp.Constraint) -> bool:
        objective, constraints = cp.Minimize(0), []
        if isinstance(part, cp.Constraint):
            constraints = [part]
        elif part.is_affine():
            return False
        else:
            total = part if part.is_scalar() else np.ones(part.size) @ part.flatten(order="F")
            objective = cp.Minimize(total) if part.is_convex() else cp.Maximize(total)
        dims = _canonical(objective, constraints)[0].cone_dims
        return bool(dims.pnd)

    def innermost(parts: list[Any]) -> object | None:
        for part in parts:
            if needs(part):
                inner = innermost(part.args)
                return part if inner is None else inner
        return None

    return innermost([problem.objective.expr, *problem.constraints])


def _layout(
    listed: list[cp.Parameter], canonical: Any, ids: Mapping[int, int]
) -> tuple[tuple[Slot, ...], sp.csr_array]:
    """Place parameters among the features, and map the features to CVXPY's columns of parameters.

    Args:
        listed: the parameters, in the order of the features.
        canonical: CVXPY's parametrised cone program, whose last column is that of the constant.
        ids: CVXPY's number of a parameter in the cone program, by the number that the user's has.

    Returns:
        The slots, and a sparse matrix ``(column, feature)``.
    """
    slots, entries, offset = [], [], 0
    for parameter in listed:
        slots.append(Slot(parameter.name(), offset, tuple(parameter.shape), int(parameter.id), parameter))
        first = canonical.param_id_to_col.get(ids.get(parameter.id, parameter.id))
        if first is not None:
            column, feature, weight = _parameter_columns(parameter)
            entries.append(np.stack([first + column, offset + feature, weight]))
        offset += parameter.size
    columns = canonical.param_id_to_col[CONSTANT_ID] + 1
    column, feature, weight = np.concatenate([np.zeros((3, 0)), *entries], 1)
    place = (column.astype(np.int64), feature.astype(np.int64))
    return tuple(slots), sp.csr_array(sp.coo_array((weight, place), shape=(columns, offset)))


def _parameter_columns(parameter: cp.Parameter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of a parameter in CVXPY, entries in C order that they hold, and weights.

    CVXPY keeps the upper triangle of a symmetric matrix by rows, the diagonal of a diagonal one, and the listed
    entries of a sparse one. A symmetric entry is the mean of both that a value has, so that gradients are symmetric.
    """
    size, shape = parameter.size, parameter.shape
    if any(parameter.attributes.get(a) for a in _SYMMETRIC):
        row, column = np.triu_indices(shape[0])
        index = np.arange(row.size)
        feature = np.concatenate([row * shape[0] + column, column * shape[0] + row])
        return np.tile(index, 2), feature, np.full(2 * row.size, 0.5)
    if parameter.attributes.get("diag"):
        index = np.arange(shape[0])
        return index, index * (shape[0] + 1), np.ones(index.size)
    if parameter.attributes.get("sparsity"):
        feature = np.ravel_multi_index(tuple(np.asarray(i) for i in parameter.sparse_idx), shape)
        return np.arange(feature.size), feature, np.ones(feature.size)
    # Features are laid out in C order, CVXPY's columns in Fortran order.
    return np.arange(size).reshape(shape, order="F").ravel(order="C"), np.arange(size), np.ones(size)


def _stacked(
    reduced: object, spread: sp.csr_array, columns: int
) -> tuple[np.ndarray, np.ndarray, sp.csr_array, np.ndarray]:
    """Entries of CVXPY's [A | b] as (row, column, coefficients of the features, constant)."""
    reduced.cache()  # type: ignore[attr-defined]
    if reduced.problem_data_index is None:  # type: ignore[attr-defined]
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, sp.csr_array((0, spread.shape[1])), np.zeros(0)
    rows, indptr, _ = reduced.problem_data_index  # type: ignore[attr-defined]
    cols = np.repeat(np.arange(columns + 1), np.diff(indptr))
    coefficient, constant = _select(sp.csc_array(reduced.reduced_mat), spread)  # type: ignore[attr-defined]
    return np.asarray(rows, dtype=np.int64), cols, coefficient, constant


def _select(matrix: sp.csc_array, spread: sp.csr_array) -> tuple[sp.csr_array, np.ndarray]:
    """Split CVXPY's parameter columns into those of the features, in their order, and the constant."""
    return sp.csr_array(matrix @ spread), matrix[:, [-1]].toarray()[:, 0]


def _said(
    stacked: tuple[np.ndarray, np.ndarray, sp.csr_array, np.ndarray], dims: Any, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """The bounds that linear rows of one column and of constants state, by column."""
    rows, cols, coefficient, constant = stacked
    linear, entry = dims.zero + dims.nonneg, cols < columns
    fixed = np.bincount(rows, weights=np.diff(coefficient.indptr), minlength=linear) == 0
    alone = fixed & (np.bincount(rows[entry], minlength=fixed.size) == 1) & (np.arange(fixed.size) < linear)
    offset = np.bincount(rows[~entry], weights=constant[~entry], minlength=fixed.size)
    chosen = np.flatnonzero(entry & alone[rows] & (constant != 0))
    row, column = rows[chosen], cols[chosen]
    # CVXPY's rows read  s = ax + b  with s ≥ 0, or s = 0.
    end = -offset[row] / constant[chosen]
    lower, upper = np.full(columns, -np.inf), np.full(columns, np.inf)
    below, above = ((row < dims.zero) | (sign * constant[chosen] > 0) for sign in (1, -1))
    np.maximum.at(lower, column[below], end[below])
    np.minimum.at(upper, column[above], end[above])
    return lower, upper


def _bound_rows(
    canonical: object, problem: cp.Problem, free: Sequence[cp.Variable], said: tuple[np.ndarray, np.ndarray]
) -> tuple[sp.coo_array, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows for the bounds of variables, written as CVXPY writes rows, and where the integers' bounds are."""
    x = canonical.x  # type: ignore[attr-defined]
    columns = x.size
    lower, upper = (
        np.full(columns, end) if bound is None else np.array(bound, dtype=float)
        for bound, end in ((canonical.lower_bounds, -np.inf), (canonical.upper_bounds, np.inf))  # type: ignore[attr-defined]
    )
    starts = {v.id: canonical.var_id_to_col[v.id] for v in free if v.id in canonical.var_id_to_col}  # type: ignore[attr-defined]
    ranges = [starts[v.id] + np.arange(v.size) for v in free if v.id in starts]
    dropped = np.concatenate([np.zeros(0, dtype=np.int64), *ranges])
    lower[dropped], upper[dropped] = -np.inf, np.inf
    boolean = np.setdiff1d(np.array([i[0] for i in x.boolean_idx], dtype=np.int64), dropped)
    integer = np.setdiff1d(np.array([i[0] for i in x.integer_idx], dtype=np.int64), dropped)
    integer = np.sort(np.concatenate([boolean, integer]))
    lower[boolean], upper[boolean] = np.maximum(lower[boolean], 0.0), np.minimum(upper[boolean], 1.0)
    # Constraints on one integer count as if they were its declared bounds.
    narrow = np.stack([np.maximum(lower, said[0])[integer], np.minimum(upper, said[1])[integer]])
    # If they leave no integer, no decision is feasible. Any box will do, since their rows stay in the program.
    empty = (np.ceil(narrow[0] - WHOLE) > np.floor(narrow[1] + WHOLE)) & (
        np.ceil(lower[integer] - WHOLE) <= np.floor(upper[integer] + WHOLE)
    )
    wide = np.stack([lower[integer], upper[integer]])
    wide = np.where(np.isfinite(wide), wide, np.where(np.isfinite(wide[::-1]), wide[::-1], np.ceil(narrow[0])))
    lower[integer], upper[integer] = np.where(empty, wide, narrow)
    for column in integer:
        if not (np.isfinite(lower[column]) and np.isfinite(upper[column])):
            name = next(
                v.name()
                for v in problem.variables()
                if 0 <= column - canonical.var_id_to_col.get(v.id, columns) < v.size  # type: ignore[attr-defined]
            )
            raise ModelError(
                f"Integer variable {name} is not bounded: declare it with cp.Variable(..., bounds=[lo, hi]), or "
                "constrain it by numbers."
            )
    lower[integer], upper[integer] = np.ceil(lower[integer] - WHOLE), np.floor(upper[integer] + WHOLE)
    low, high = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    count = low.size + high.size
    sign = np.concatenate([np.ones(low.size), -np.ones(high.size)])
    matrix = sp.coo_array((sign, (np.arange(count), np.concatenate([low, high]))), shape=(count, columns))
    offsets = np.concatenate([-lower[low], upper[high]])
    return matrix, offsets, (integer, np.searchsorted(low, integer), low.size + np.searchsorted(high, integer))


def _quadratic(canonical: object, spread: sp.csr_array, columns: int) -> tuple[torch.Tensor, torch.Tensor, AffineMap]:
    """The full symmetric quadratic form, by rows."""
    if canonical.P is None:  # type: ignore[attr-defined]
        empty = _affine(np.zeros(0), sp.csr_array((0, spread.shape[1])))
        return torch.zeros(columns + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), empty
    reduced = canonical.reduced_P  # type: ignore[attr-defined]
    reduced.cache()
    rows, indptr, _ = reduced.problem_data_index
    cols = np.repeat(np.arange(columns), np.diff(indptr))
    coefficient, constant = _select(sp.csc_array(reduced.reduced_mat), spread)
    by_row = np.lexsort((cols, rows))
    offsets = _long(np.searchsorted(np.asarray(rows)[by_row], np.arange(columns + 1)))
    return offsets, _long(cols[by_row]), _affine(constant[by_row], coefficient[by_row])


def _affine(constant: np.ndarray, coefficient: sp.csr_array) -> AffineMap:
    """An affine map from its dense constant and sparse linear part."""
    entries = sp.coo_array(coefficient)
    entries.sum_duplicates()
    keep = entries.data != 0.0
    return AffineMap(
        torch.from_numpy(np.ascontiguousarray(constant, dtype=np.float64)),
        _long(entries.row[keep]),
        _long(entries.col[keep]),
        torch.from_numpy(np.ascontiguousarray(entries.data[keep], dtype=np.float64)),
    )


def _long(values: np.ndarray) -> torch.Tensor:
    """Indices as torch wants them."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))

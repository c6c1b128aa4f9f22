"""How each CVXPY atom is computed in torch, on tensors ``(..., *shape)`` with any leading batch dimensions.

Dimensions of an expression are addressed from the end, so that an operation never has to know how many batch dimensions
there are, and tensors with different ones broadcast against each other as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.geo_mean import GeoMean
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.atoms.quad_form import QuadForm
from torch import Tensor

from drolayers.cost.recourse import Recourse, SecondStage
from drolayers.errors import ModelError

Operation = Callable[[Sequence[Tensor]], Tensor]
# A ray of the second stage counts as violated beyond this, relative to the size of the sum: decisions come from solvers
# that stop a little outside their constraints, and HiGHS takes the same for feasible.
RAY_TOLERANCE = 1e-7


class Fixed:
    """A constant, converted once for every dtype and device that it meets."""

    def __init__(self, values: np.ndarray) -> None:
        self._tensor = torch.as_tensor(np.ascontiguousarray(values))
        self._converted: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @classmethod
    def of(cls, node: cp.Expression) -> Fixed:
        """The value of an expression without leaves to fill."""
        value = node.value
        if value is None or np.iscomplexobj(value):
            raise ModelError(f"The constant {node} of the cost has no real value.")
        return cls(np.asarray(value.toarray() if sp.issparse(value) else value, dtype=float).reshape(node.shape))

    def like(self, reference: Tensor) -> Tensor:
        """The constant on the device, and for real numbers in the dtype, of another tensor."""
        dtype = reference.dtype if self._tensor.is_floating_point() else self._tensor.dtype
        key = (dtype, reference.device)
        if key not in self._converted:
            self._converted[key] = self._tensor.to(dtype=dtype, device=reference.device)
        return self._converted[key]


def operation(node: cp.Expression) -> Operation:
    """What an atom does to the tensors of its arguments.

    Raises:
        ModelError: the atom is not known here.
    """
    return _of(node)(node)


def absolute(node: cp.Expression) -> Operation:
    """The same with the absolute values of an affine atom's coefficients, where that is not what the atom does."""
    found = _of(node)
    return _linear(node, np.abs) if found is _linear else found(node)


def _of(node: cp.Expression) -> Callable[[Any], Operation]:
    """How an atom is compiled."""
    for kind in type(node).__mro__:
        if kind in _TABLE:
            return _TABLE[kind]
    raise _unknown(node)


def _unknown(node: cp.Expression) -> ModelError:
    return ModelError(
        f"The atom {type(node).__name__} cannot be evaluated in torch: "
        "give a torch loss of your own in place of problem.loss."
    )


def _align(tensor: Tensor, ndim: int, target: int) -> Tensor:
    """Axes of length one between the batch and the entries, as NumPy adds them when it broadcasts."""
    split = tensor.ndim - ndim
    return tensor.reshape(*tensor.shape[:split], *[1] * (target - ndim), *tensor.shape[split:])


def _flat(tensor: Tensor, ndim: int) -> Tensor:
    """The entries in C order along one last dimension."""
    return tensor.unsqueeze(-1) if ndim == 0 else tensor.flatten(tensor.ndim - ndim)


def _unflat(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of :func:`_flat`."""
    return tensor.reshape(*tensor.shape[:-1], *shape)


def _elementwise(function: Callable[..., Tensor]) -> Callable[[cp.Expression], Operation]:
    """An atom that acts entry by entry on broadcast arguments."""

    def compile_atom(node: cp.Expression) -> Operation:
        ndims = [arg.ndim for arg in node.args]

        def apply(args: Sequence[Tensor]) -> Tensor:
            return function(*[_align(arg, ndim, node.ndim) for arg, ndim in zip(args, ndims, strict=True)])

        return apply

    return compile_atom


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[cp.Expression], Operation]:
    """An elementwise atom of any number of arguments."""
    return _elementwise(lambda *args: reduce(function, args))


def _with_data(build: Callable[[Any], Callable[[Tensor], Tensor]]) -> Callable[[cp.Expression], Operation]:
    """An elementwise atom of one argument with settings on the node."""

    def compile_atom(node: cp.Expression) -> Operation:
        function = build(node)
        return lambda args: function(args[0])

    return compile_atom


def _power(node: Any) -> Callable[[Tensor], Tensor]:
    exponent = float(node.p.value)
    return lambda tensor: tensor.pow(exponent)


def _huber(node: Any) -> Callable[[Tensor], Tensor]:
    bound = float(node.M.value)

    def apply(tensor: Tensor) -> Tensor:
        size = tensor.abs()
        return torch.where(size <= bound, size.square(), 2 * bound * size - bound**2)

    return apply


def _reduction(function: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Callable[[cp.Expression], Operation]:
    """An atom that reduces along axes."""

    def compile_atom(node: Any) -> Operation:
        ndim = node.args[0].ndim
        if ndim == 0:
            return lambda args: function(args[0].unsqueeze(-1), (-1,), False)
        axes = range(ndim) if node.axis is None else np.atleast_1d(node.axis)
        dims = tuple(int(axis) - ndim for axis in axes)
        keepdims = bool(node.keepdims)
        return lambda args: function(args[0], dims, keepdims)

    return compile_atom


def _pnorm(node: Any) -> Operation:
    p = float(node.p)
    norm = _reduction(lambda tensor, dims, keep: torch.linalg.vector_norm(tensor, p, dims, keep))
    return norm(node)


def _quad_over_lin(node: Any) -> Operation:
    squares = _reduction(lambda tensor, dims, keep: tensor.square().sum(dims, keep))(node)
    ndim, target = node.args[1].ndim, node.ndim

    def apply(args: Sequence[Tensor]) -> Tensor:
        divisor = _flat(args[1], ndim)[..., 0]
        return squares(args[:1]) / _align(divisor, 0, target)

    return apply


def _quad_form(node: Any) -> Operation:
    ndim, shape = node.args[0].ndim, node.shape

    def apply(args: Sequence[Tensor]) -> Tensor:
        x = _flat(args[0], ndim)
        value = ((args[1] @ x.unsqueeze(-1)).squeeze(-1) * x).sum(-1, keepdim=True)
        return _unflat(value, shape)

    return apply


def _sum_largest(node: Any) -> Operation:
    if node.axis is not None:
        raise ModelError(f"{node} cannot be evaluated in torch along an axis: give a torch loss of your own.")
    ndim, shape = node.args[0].ndim, node.shape
    weight = Fixed(np.clip(node.k - np.arange(node.args[0].size), 0.0, 1.0))

    def apply(args: Sequence[Tensor]) -> Tensor:
        ordered = _flat(args[0], ndim).sort(dim=-1, descending=True).values
        return _unflat((ordered * weight.like(ordered)).sum(-1, keepdim=True), shape)

    return apply


def _matmul(node: cp.Expression) -> Operation:
    left_ndim, right_ndim = (arg.ndim for arg in node.args)
    if 0 in (left_ndim, right_ndim):
        return _elementwise(torch.mul)(node)
    target = max(left_ndim, right_ndim, 2)

    def apply(args: Sequence[Tensor]) -> Tensor:
        left = args[0].unsqueeze(-2) if left_ndim == 1 else args[0]
        right = args[1].unsqueeze(-1) if right_ndim == 1 else args[1]
        product = _align(left, max(left_ndim, 2), target) @ _align(right, max(right_ndim, 2), target)
        return _unflat(_flat(product, target), node.shape)

    return apply


def _selection(node: Any) -> Operation:
    """An atom that only picks, repeats or reorders entries: its own ``numeric`` tells which, on numbered entries."""
    ndims = [arg.ndim for arg in node.args]
    starts = np.cumsum([0, *[arg.size for arg in node.args]])
    numbered = [start + np.arange(arg.size).reshape(arg.shape) for arg, start in zip(node.args, starts, strict=False)]
    picked = np.rint(np.asarray(node.numeric(numbered))).astype(np.int64).reshape(node.shape).ravel()
    position = Fixed(picked)
    in_place = np.array_equal(picked, np.arange(starts[-1]))

    def apply(args: Sequence[Tensor]) -> Tensor:
        flat = [_flat(arg, ndim) for arg, ndim in zip(args, ndims, strict=True)]
        if len(flat) > 1:
            batch = torch.broadcast_shapes(*[arg.shape[:-1] for arg in flat])
            flat = [torch.cat([arg.expand(*batch, arg.shape[-1]) for arg in flat], dim=-1)]
        entries = flat[0] if in_place else flat[0].index_select(-1, position.like(flat[0]))
        return _unflat(entries, node.shape)

    return apply


def _cumsum(node: Any) -> Operation:
    ndim, axis = node.args[0].ndim, node.axis
    if ndim == 0 or axis is None:
        return lambda args: _unflat(_flat(args[0], ndim).cumsum(-1), node.shape)
    return lambda args: args[0].cumsum(int(axis) - ndim)


def _geo_mean(node: Any) -> Operation:
    if node.axis is not None:
        raise ModelError(f"{node} cannot be evaluated in torch along an axis: give a torch loss of your own.")
    arg, shape = node.args[0], node.shape
    powers = np.zeros(arg.size)
    powers[np.asarray(node._keep)] = [float(w) for w in node.w]
    exponent = Fixed(powers.reshape(arg.shape, order="F").ravel())

    def apply(args: Sequence[Tensor]) -> Tensor:
        entries = _flat(args[0], arg.ndim)
        return _unflat(entries.pow(exponent.like(entries)).prod(-1, keepdim=True), shape)

    return apply


def _linear(node: Any, of: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Operation:
    """An affine atom that sees one argument beside constants: its own ``numeric`` tells the matrix, unit by unit."""
    varies = [k for k, arg in enumerate(node.args) if arg.variables() or arg.parameters()]
    if len(varies) != 1:
        raise _unknown(node)
    (place,) = varies
    arg = node.args[place]

    def at(value: np.ndarray) -> np.ndarray:
        args = [value if k == place else other.value for k, other in enumerate(node.args)]
        found = node.numeric(args)
        return np.asarray(found.toarray() if sp.issparse(found) else found).real.reshape(node.shape).ravel()

    offset = at(np.zeros(arg.shape))
    matrix = Fixed(of(np.stack([at(unit.reshape(arg.shape)) - offset for unit in np.eye(arg.size)])))
    constant = Fixed(of(offset))

    def apply(args: Sequence[Tensor]) -> Tensor:
        entries = _flat(args[place], arg.ndim)
        return _unflat(entries @ matrix.like(entries) + constant.like(entries), node.shape)

    return apply


def _of_matrix(function: Callable[[Tensor], Tensor]) -> Callable[[cp.Expression], Operation]:
    """An atom that makes a number of one matrix."""
    return lambda node: lambda args: _unflat(function(args[0]).unsqueeze(-1), node.shape)


def _lambda_sum_largest(node: Any) -> Operation:
    share = Fixed(np.clip(float(node.k) - np.arange(node.args[0].shape[0]), 0.0, 1.0)[::-1])

    def total(matrix: Tensor) -> Tensor:
        ascending = torch.linalg.eigvalsh(matrix)
        return (ascending * share.like(ascending)).sum(-1)

    return _of_matrix(total)(node)


def _log_det(matrix: Tensor) -> Tensor:
    sign, size = torch.linalg.slogdet(matrix)
    return size.masked_fill(sign <= 0, -torch.inf)


def _diag_vec(node: Any) -> Operation:
    offset = int(node.k)
    return lambda args: torch.diag_embed(args[0], offset=offset)


def _recourse(node: Any) -> Operation:
    stage: SecondStage = node.stage
    if stage.vertices is None:
        return lambda args: _SolveSecondStage.apply(stage, *args)
    dual = stage.vertices
    points, forbidden = Fixed(dual.points.toarray().T), Fixed(dual.forbidden.toarray().T)
    # Every block as a row of vertex numbers, short ones filled up with their first vertex.
    members = [np.flatnonzero(dual.block == b) for b in range(dual.blocks)]
    longest = max(len(m) for m in members)
    table = np.stack([np.concatenate([m, np.full(longest - len(m), m[0])]) for m in members])
    position = Fixed(table.ravel())

    def apply(args: Sequence[Tensor]) -> Tensor:
        rhs = args[0]
        values = (rhs @ points.like(rhs)).index_select(-1, position.like(rhs))
        value = _unflat(values, table.shape).amax(-1).sum(-1)
        rays = forbidden.like(rhs)
        tolerance = max(RAY_TOLERANCE, 16 * torch.finfo(rhs.dtype).eps)
        violation = rhs @ rays - tolerance * (rhs.abs() @ rays.abs() + 1.0)
        return value.masked_fill((violation > 0).any(-1), torch.inf)

    return apply


class _SolveSecondStage(torch.autograd.Function):
    """The second stage solved item by item; by the envelope theorem its gradients are multipliers and actions."""

    @staticmethod
    def forward(ctx: Any, stage: SecondStage, *args: Tensor) -> Tensor:
        """Of the right-hand side and, where they are known data, costs and coefficients."""
        batch, like = torch.broadcast_shapes(*[arg.shape[:-1] for arg in args]), args[0]
        whole = [arg.detach().expand(*batch, arg.shape[-1]) for arg in args]
        items = [arg.reshape(-1, arg.shape[-1]).cpu().double().numpy() for arg in whole]
        typical = np.nan_to_num(np.abs(items[0])).max(axis=0, initial=0.0)
        solved = [stage.solve(*item, typical=typical) for item in zip(*items, strict=True)]
        value, *slopes = (torch.as_tensor(np.array([found[k] for found in solved])).to(like) for k in range(4))
        ctx.save_for_backward(*(slope.reshape(arg.shape) for slope, arg in zip(slopes, whole, strict=False)))
        ctx.shapes = [arg.shape for arg in args]
        return value.reshape(batch)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pulled = (gradient.unsqueeze(-1) * slope for slope in ctx.saved_tensors)
        return None, *(part.sum_to_size(shape) for part, shape in zip(pulled, ctx.shapes, strict=True))


_TABLE: dict[type, Callable[[Any], Operation]] = {
    AddExpression: _fold(torch.add),
    NegExpression: _elementwise(torch.neg),
    cp.multiply: _elementwise(torch.mul),
    DivExpression: _elementwise(torch.div),
    MulExpression: _matmul,
    Wrap: _elementwise(lambda tensor: tensor),
    cp.maximum: _fold(torch.maximum),
    cp.minimum: _fold(torch.minimum),
    cp.abs: _elementwise(torch.abs),
    cp.exp: _elementwise(torch.exp),
    cp.log: _elementwise(torch.log),
    cp.log1p: _elementwise(torch.log1p),
    cp.entr: _elementwise(torch.special.entr),
    cp.logistic: _elementwise(torch.nn.functional.softplus),
    cp.xexp: _elementwise(lambda x: x * x.exp()),
    cp.kl_div: _elementwise(lambda x, y: torch.xlogy(x, x) - torch.xlogy(x, y) - x + y),
    cp.rel_entr: _elementwise(lambda x, y: torch.xlogy(x, x) - torch.xlogy(x, y)),
    Power: _with_data(_power),
    cp.huber: _with_data(_huber),
    Sum: _reduction(lambda tensor, dims, keep: tensor.sum(dims, keep)),
    cp.max: _reduction(lambda tensor, dims, keep: tensor.amax(dims, keep)),
    cp.min: _reduction(lambda tensor, dims, keep: tensor.amin(dims, keep)),
    cp.norm1: _reduction(lambda tensor, dims, keep: tensor.abs().sum(dims, keep)),
    cp.norm_inf: _reduction(lambda tensor, dims, keep: tensor.abs().amax(dims, keep)),
    cp.log_sum_exp: _reduction(lambda tensor, dims, keep: tensor.logsumexp(dims, keep)),
    Pnorm: _pnorm,
    cp.quad_over_lin: _quad_over_lin,
    QuadForm: _quad_form,
    cp.sum_largest: _sum_largest,
    cp.cumsum: _cumsum,
    diag_vec: _diag_vec,
    Trace: lambda node: lambda args: args[0].diagonal(dim1=-2, dim2=-1).sum(-1),
    Recourse: _recourse,
    GeoMean: _geo_mean,
    cp.lambda_max: _of_matrix(lambda matrix: torch.linalg.eigvalsh(matrix).amax(-1)),
    cp.lambda_sum_largest: _lambda_sum_largest,
    cp.sigma_max: _of_matrix(lambda matrix: torch.linalg.matrix_norm(matrix, 2)),
    cp.normNuc: _of_matrix(lambda matrix: torch.linalg.matrix_norm(matrix, "nuc")),
    cp.log_det: _of_matrix(_log_det),
    cp.tr_inv: _of_matrix(lambda matrix: torch.linalg.inv(matrix).diagonal(dim1=-2, dim2=-1).sum(-1)),
    # All others that are affine, such as kron and convolve.
    AffAtom: _linear,
    **dict.fromkeys(
        [
            index,
            special_index,
            cp.reshape,
            cp.transpose,
            cp.broadcast_to,
            cp.upper_tri,
            Promote,
            diag_mat,
            Hstack,
            Vstack,
            Concatenate,
        ],
        _selection,
    ),
}

"""The torch version of a cost must give CVXPY's number item by item, and gradients that agree with differences."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from conelayers.errors import ModelError, ShapeError
from drolayers.cost.recourse import recourse
from drolayers.cost.risk import cvar
from drolayers.cost.torch_loss import TorchCost, evaluate

RNG = np.random.default_rng(5)
A = RNG.normal(size=(3, 3))
POSITIVE = RNG.random(3) + 0.5
Q = A @ A.T + np.eye(3)
SPARSE = sp.csr_array(np.array([[0.0, 2.0, 0.0], [1.0, 0.0, -1.0]]))
CUBE = RNG.normal(size=(2, 3, 4))

Build = Callable[[cp.Expression, cp.Expression, cp.Expression, cp.Expression], cp.Expression]

# Expressions of x (3,), X (2, 3), p (3,) positive and the scalar s.
EXPRESSIONS: dict[str, Build] = {
    "leaf": lambda x, X, p, s: X,
    "sum of scalar and vector": lambda x, X, p, s: x + s + 1.0,
    "broadcast sum": lambda x, X, p, s: X + x[None, :] - p,
    "negative": lambda x, X, p, s: -X,
    "scalar product": lambda x, X, p, s: s * X,
    "elementwise product": lambda x, X, p, s: cp.multiply(X, cp.vstack([x, p])),
    "broadcast product": lambda x, X, p, s: cp.multiply(X, x),
    "division": lambda x, X, p, s: X / 4.0 + x / POSITIVE,
    "inner product": lambda x, X, p, s: x @ p,
    "matrix vector": lambda x, X, p, s: X @ x,
    "vector matrix": lambda x, X, p, s: x @ X.T,
    "matrix matrix": lambda x, X, p, s: X @ A @ X.T,
    "constant matrix": lambda x, X, p, s: A @ x,
    "sparse matrix": lambda x, X, p, s: SPARSE @ x,
    "batched matrix": lambda x, X, p, s: X @ CUBE,
    "sum": lambda x, X, p, s: cp.sum(X),
    "sum along axis": lambda x, X, p, s: cp.sum(X, axis=0),
    "sum kept": lambda x, X, p, s: cp.sum(X, axis=1, keepdims=True) @ s[None],
    "sum of scalar": lambda x, X, p, s: cp.sum(s) + cp.max(s) + cp.norm1(s),
    "mean": lambda x, X, p, s: cp.mean(X),
    "max": lambda x, X, p, s: cp.max(X),
    "max along axis": lambda x, X, p, s: cp.max(X, axis=1),
    "min kept": lambda x, X, p, s: cp.min(X, axis=0, keepdims=True),
    "maximum": lambda x, X, p, s: cp.maximum(x, p, s, 0.3),
    "minimum": lambda x, X, p, s: cp.minimum(x, 2 * p - 1),
    "pos and neg": lambda x, X, p, s: cp.pos(x) + 2 * cp.neg(X),
    "scalene": lambda x, X, p, s: cp.scalene(x, 2, 3),
    "abs": lambda x, X, p, s: cp.abs(X),
    "norm 1": lambda x, X, p, s: cp.norm1(X) + cp.norm(x, 1),
    "norm 1 along axis": lambda x, X, p, s: cp.norm(X, 1, axis=1),
    "norm 2": lambda x, X, p, s: cp.norm(x, 2) + cp.norm(X, "fro"),
    "norm 2 along axis": lambda x, X, p, s: cp.norm(X, 2, axis=0),
    "norm inf": lambda x, X, p, s: cp.norm(x, "inf"),
    "norm 3": lambda x, X, p, s: cp.pnorm(x, 3),
    "norm 2.5": lambda x, X, p, s: cp.pnorm(p, 2.5),
    "matrix norm 1": lambda x, X, p, s: cp.norm(X, 1),
    "sum of squares": lambda x, X, p, s: cp.sum_squares(X - 1),
    "quad over lin": lambda x, X, p, s: cp.quad_over_lin(x, p[0]),
    "quad form": lambda x, X, p, s: cp.quad_form(x, Q) + cp.quad_form(X[0, :], np.eye(3)),
    "square": lambda x, X, p, s: cp.square(X),
    "powers": lambda x, X, p, s: cp.power(p, 3) + cp.power(p, -0.5) + cp.power(p, 1.5),
    "root": lambda x, X, p, s: cp.sqrt(p) + cp.inv_pos(p),
    "exp": lambda x, X, p, s: cp.exp(x) + cp.xexp(p),
    "log": lambda x, X, p, s: cp.log(p) + cp.log1p(p),
    "entropy": lambda x, X, p, s: cp.entr(p) + cp.kl_div(p, POSITIVE) + cp.rel_entr(POSITIVE, p),
    "logistic": lambda x, X, p, s: cp.logistic(x),
    "log sum exp": lambda x, X, p, s: cp.log_sum_exp(X) + cp.sum(cp.log_sum_exp(X, axis=1)),
    "huber": lambda x, X, p, s: cp.huber(2 * X, 0.7),
    "sum largest": lambda x, X, p, s: cp.sum_largest(X, 2) + cp.sum_largest(X, 3.5),
    "index": lambda x, X, p, s: X[1, 2] + x[-1],
    "slices": lambda x, X, p, s: X[::-1, 1:],
    "new axis": lambda x, X, p, s: x[:, None] + p[None, :],
    "special index": lambda x, X, p, s: X[[1, 0, 1], [0, 2, 2]],
    "boolean index": lambda x, X, p, s: x[np.array([True, False, True])],
    "reshape F": lambda x, X, p, s: cp.reshape(X, (3, 2), order="F"),
    "reshape C": lambda x, X, p, s: cp.reshape(X, (3, 2), order="C"),
    "vec": lambda x, X, p, s: cp.vec(X, order="F"),
    "flatten C": lambda x, X, p, s: X.flatten(order="C"),
    "transpose": lambda x, X, p, s: X.T,
    "hstack": lambda x, X, p, s: cp.hstack([x, s, p, 1.0]),
    "hstack matrices": lambda x, X, p, s: cp.hstack([X, X[:, :1]]),
    "vstack": lambda x, X, p, s: cp.vstack([X, x, np.ones(3)]),
    "concatenate": lambda x, X, p, s: cp.concatenate([X, X], axis=1),
    "bmat": lambda x, X, p, s: cp.bmat([[X, X], [X, np.ones((2, 3))]]),
    "stack": lambda x, X, p, s: cp.stack([x, p], axis=1),
    # Of a product it is an inner product.
    "geometric mean": lambda x, X, p, s: cp.geo_mean(p) + cp.geo_mean(cp.vstack([p, p + 1]), [1, 2, 0, 3, 0, 1]),
    "eigenvalues": lambda x, X, p, s: cp.lambda_max(cp.outer(x, x) + cp.diag(p)) + cp.lambda_min(X @ X.T),
    "largest eigenvalues": lambda x, X, p, s: cp.lambda_sum_largest(cp.outer(x, x) + cp.diag(p), 2),
    "singular values": lambda x, X, p, s: cp.sigma_max(X) + cp.normNuc(X),
    "determinant": lambda x, X, p, s: cp.log_det(X @ X.T + np.eye(2)) + cp.tr_inv(X @ X.T + np.eye(2)),
    "kron": lambda x, X, p, s: cp.kron(A[:2], X) + cp.kron(X, A[:2]),
    "convolve": lambda x, X, p, s: cp.convolve(POSITIVE, x),
    "inner product of vectors": lambda x, X, p, s: cp.vdot(A, cp.diag(x)),
    "trace": lambda x, X, p, s: cp.trace(X @ X.T) + cp.trace(cp.vstack([X, x])),
    "diag of vector": lambda x, X, p, s: cp.diag(x) + cp.diag(x[:2], k=1),
    "diag of matrix": lambda x, X, p, s: cp.diag(X @ A[:, :2]),
    "upper triangle": lambda x, X, p, s: cp.upper_tri(cp.vstack([X, x])),
    "cumsum": lambda x, X, p, s: cp.cumsum(x) + cp.cumsum(X, axis=0)[1],
    "cumsum along axis": lambda x, X, p, s: cp.cumsum(X, axis=1),
    "difference": lambda x, X, p, s: cp.diff(x),
    "broadcast": lambda x, X, p, s: cp.broadcast_to(x, (2, 3)) + X,
    "outer": lambda x, X, p, s: cp.outer(x, p),
    "total variation": lambda x, X, p, s: cp.tv(x) + cp.ptp(p),
    "wrap": lambda x, X, p, s: cp.psd_wrap(cp.outer(x, x)),
    "constant": lambda x, X, p, s: cp.Constant(SPARSE) @ np.ones(3) + 2.0,
    "recourse": lambda x, X, p, s: recourse([3.0, 1.0, 0.5], [[1.0, -1.0, 0.2]], s - x[0], "vertices"),
    "recourse in blocks": lambda x, X, p, s: recourse(
        [3.0, 1.0, 2.0, 1.0, 1.0], [[1.0, -1.0, 0, 0, 0.0], [0, 0, 1.0, -1.0, -2.0]], x[:2] - p[:2]
    ),
    "recourse by linear programs": lambda x, X, p, s: recourse(
        np.array([3.0, 1.0, 2.0, 1.0]), np.array([[1.0, -1.0, 0.5, 0], [0, 0, 1.0, -1.0]]), x[:2], "decision_rule"
    ),
    "newsvendor": lambda x, X, p, s: p @ x + cp.sum(cp.maximum(2 * (X[0] - x), x - X[0])),
}


def leaves() -> tuple[cp.Variable, cp.Variable, cp.Variable, cp.Parameter]:
    return cp.Variable(3), cp.Variable((2, 3)), cp.Variable(3, pos=True), cp.Parameter()


def random_values(x: cp.Variable, X: cp.Variable, p: cp.Variable, s: cp.Parameter) -> dict[cp.Expression, torch.Tensor]:
    """Values with different batch dimensions, which broadcast to (2, 4)."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {x: draw(2, 4, 3), X: draw(2, 1, 2, 3), p: draw(4, 3).abs() + 0.2, s: draw(2, 1)}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_agrees_with_cvxpy_item_by_item(name: str) -> None:
    variables = leaves()
    expression = EXPRESSIONS[name](*variables)
    values = random_values(*variables)
    result = evaluate(expression, values)
    assert result.shape == (2, 4, *expression.shape)
    expanded = {leaf: value.expand(2, 4, *leaf.shape) for leaf, value in values.items()}
    for i in range(2):
        for j in range(4):
            for leaf, value in expanded.items():
                leaf.value = value[i, j].numpy()
            expected = expression.value
            expected = expected.toarray() if sp.issparse(expected) else expected
            # CVXPY's own numbers of upper_tri come as (3,) where its shape says (3, 1).
            expected = np.reshape(expected, expression.shape)
            np.testing.assert_allclose(result[i, j].numpy(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in EXPRESSIONS if name != "constant"])
def test_gradients_agree_with_differences(name: str) -> None:
    variables = leaves()
    cost = TorchCost(EXPRESSIONS[name](*variables))
    values = random_values(*variables)
    inputs = tuple(value.requires_grad_() for value in values.values())

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return cost(dict(zip(values, tensors, strict=True)))

    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_scalars_keep_their_batch() -> None:
    """A reduction of a scalar is the scalar, whatever stands before it."""
    s = cp.Variable()
    value = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(evaluate(cp.sum(s) + cp.max(s) + cp.norm1(s), {s: value}), 2 * value + value.abs())


def test_gradients_of_every_leaf_flow() -> None:
    x, X, p, s = leaves()
    values = random_values(x, X, p, s)
    for value in values.values():
        value.requires_grad_()
    evaluate(cp.sum(X @ x) * s + cp.sum(cp.log(p)), values).sum().backward()
    for value in values.values():
        assert value.grad is not None
        assert value.grad.abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_that_of_the_values(dtype: torch.dtype) -> None:
    x = cp.Variable(3)
    cost = TorchCost(A @ x + recourse([1.0, 2.0], [[1.0, -1.0]], x[0]))
    assert cost({x: torch.ones(5, 3, dtype=dtype)}).dtype == dtype
    assert cost({x: torch.ones(5, 3, dtype=torch.float64)}).dtype == torch.float64


def test_constants_follow_the_device_of_the_values() -> None:
    x = cp.Variable(3)
    cost = TorchCost(cp.max(A @ x[[2, 0, 1]]) + recourse([1.0, 2.0], [[1.0, -1.0]], x[0]))
    assert cost({x: torch.ones(5, 3, device="meta")}).device.type == "meta"
    assert cost({x: torch.ones(5, 3)}).device.type == "cpu"


def test_infeasible_recourse_is_infinite_and_harmless() -> None:
    x = cp.Variable(2)
    W = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]])
    for method in ("vertices", "decision_rule"):
        value = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [0.0, -1.0]], dtype=torch.float64, requires_grad=True)
        result = evaluate(recourse([1.0, 2.0, 3.0], W, x, method), {x: value})
        assert result.tolist() == [5.0, float("inf"), 3.0]
        result[torch.isfinite(result)].sum().backward()
        assert value.grad is not None
        assert value.grad[:2].tolist() == [[1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dependent_rows_survive_rounding(dtype: torch.dtype) -> None:
    x = cp.Variable(1)
    W = np.array([[1.0, -1.0], [0.3, -0.3]])
    atom = recourse([1.0, 1.0], W, cp.hstack([x, 0.3 * x]), "vertices")
    value = torch.linspace(-3, 3, 50, dtype=dtype)[:, None]
    torch.testing.assert_close(evaluate(atom, {x: value}), value[:, 0].abs())
    shifted = recourse([1.0, 1.0], W, cp.hstack([x, 0.3 * x + 1e-3]), "vertices")
    assert torch.isinf(evaluate(shifted, {x: value})).all()


def test_a_part_used_twice_is_computed_once() -> None:
    x = cp.Variable(3)
    shared = cp.exp(A @ x)
    once, twice = TorchCost(cp.sum(shared)), TorchCost(cp.sum(shared) + cp.max(shared))
    assert len(twice._program) == len(once._program) + 2


def test_values_beyond_the_expression_set_the_batch() -> None:
    x, y = cp.Variable(3), cp.Parameter(2)
    result = evaluate(cp.sum(x), {x: torch.ones(4, 1, 3), y: torch.ones(5, 2)})
    assert result.shape == (4, 5)


def test_cvar_with_tau_as_a_decision() -> None:
    x, y = cp.Variable(2), cp.Parameter(2)
    cost = cvar(-y @ x, 0.75)
    (tau,) = [v for v in cost.variables() if v is not x]
    values = {x: torch.tensor([[1.0, 2.0]]), y: torch.tensor([[3.0, -4.0]]), tau: torch.tensor([1.0])}
    assert evaluate(cost, values).item() == pytest.approx(1 + 4 * 4)


def test_pickled_cost_still_works() -> None:
    x = cp.Variable(3)
    cost = pickle.loads(pickle.dumps(TorchCost(cp.sum_squares(A @ x))))
    (again,) = cost.expression.variables()
    value = torch.ones(2, 3, dtype=torch.float64)
    torch.testing.assert_close(cost({again: value}), TorchCost(cp.sum_squares(A @ x))({x: value}))


def test_refused() -> None:
    x = cp.Variable((2, 2), symmetric=True)
    with pytest.raises(ModelError, match=r"cummax.*torch loss of your own"):
        TorchCost(cp.cummax(x))({x: torch.eye(2)})
    v = cp.Variable(3, name="stock")
    cost = TorchCost(cp.sum(v))
    with pytest.raises(ShapeError, match=r"stock.*not \(4, 2\)"):
        cost({v: torch.ones(4, 2)})
    with pytest.raises(ShapeError, match="stock"):
        cost({cp.Variable(2): torch.ones(2)})
    with pytest.raises(ShapeError, match="needs values"):
        cost({})

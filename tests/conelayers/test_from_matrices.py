"""Programs given by their matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from conelayers import ConeLayer
from conelayers.errors import LayerError, ModelError, ShapeError, UnsolvedItemsWarning
from tests.conelayers.checks import assert_gradients

P = np.array([[2.0, 1.0], [1.0, 3.0]])
Q = np.array([1.0, -1.0])
A = np.array([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
B = np.array([1.0, -0.1, 0.0])
CONES = {"zero": 1, "nonneg": 2}


def kkt(P: np.ndarray, q: np.ndarray, A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve  min ½xᵀPx + qᵀx,  Ax = b."""
    rows = len(b)
    point = np.linalg.solve(np.block([[P, A.T], [A, np.zeros((rows, rows))]]), np.concatenate([-q, b]))
    return point[: len(q)], point[len(q) :]


def test_solution_multipliers_and_gradients() -> None:
    layer = ConeLayer.from_matrices(P, Q, A, B, CONES)
    tensors = [torch.tensor(part) for part in (P, Q, A, B)]
    result = layer.solve(*tensors)
    x, z = kkt(P, Q, A[:2], B[:2])
    np.testing.assert_allclose(result["x"], x, atol=1e-7)
    np.testing.assert_allclose(result.dual("z"), [*z, 0.0], atol=1e-6)
    assert result.value.item() == pytest.approx(0.5 * x @ P @ x + Q @ x, abs=1e-7)
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)

    def total(P: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        result = layer.solve((P + P.T) / 2, *rest, solver_args={"eps": 1e-12})
        return result["x"] @ weights + result.value

    assert_gradients(total, tensors, atol=1e-4)


def test_multipliers_are_differentiated() -> None:
    layer = ConeLayer.from_matrices(P, Q, A, B, CONES, ["q", "b"])
    assert_gradients(lambda q, b: layer.solve(q, b).dual("z").sum(), [torch.tensor(Q), torch.tensor(B)])


def test_batches_and_choice_of_parameters() -> None:
    layer = ConeLayer.from_matrices(P, Q, A, B, CONES, parameters=["b", "q"])
    b = torch.tensor(B) * torch.tensor([[1.0], [0.5]])
    (x,) = layer(b, torch.tensor(Q))
    for item in range(2):
        np.testing.assert_allclose(x[item], kkt(P, Q, A[:2], b[item, :2].numpy())[0], atol=1e-7)
    torch.testing.assert_close(layer(q=Q, b=b.numpy())[0], x)


def test_linear_objectives_have_no_parameter_p() -> None:
    layer = ConeLayer.from_matrices(None, np.ones(2), -np.eye(2), np.zeros(2), {"nonneg": 2})
    (x,) = layer(np.ones(2), -np.eye(2), np.array([-1.0, -2.0]))
    torch.testing.assert_close(x, torch.tensor([1.0, 2.0], dtype=torch.float64), atol=1e-6, rtol=0)


def test_sparse_matrices() -> None:
    expected = ConeLayer.from_matrices(P, Q, A, B, CONES)(P, Q, A, B)[0]
    for make in (sp.csr_array, sp.coo_array, sp.csc_array, lambda M: torch.tensor(M).to_sparse()):
        layer = ConeLayer.from_matrices(make(P), Q, make(A), B, CONES)
        assert layer.program.nonzeros == 4
        (x,) = layer(P.ravel(), Q, A[A != 0], B)
        torch.testing.assert_close(x, expected)
        fixed = ConeLayer.from_matrices(make(P), Q, make(A), B, CONES, ["q"])
        torch.testing.assert_close(fixed(Q)[0], expected)
    assert ConeLayer.from_matrices(P, Q, A, B, CONES, ["q"]).program.nonzeros == 4


def test_cones() -> None:
    unbounded = ConeLayer.from_matrices(None, [0.0, 3.0, 4.0], -np.eye(3), np.zeros(3), {"soc": [3]}, ["b"])
    with pytest.warns(UnsolvedItemsWarning):
        assert unbounded.solve(np.zeros(3)).value.isnan()
    rows = np.vstack([[1.0, 0.0, 0.0], -np.eye(3)])
    layer = ConeLayer.from_matrices(None, [0.0, 3.0, 4.0], rows, np.zeros(4), {"zero": 1, "soc": [3]}, ["b"])
    (x,) = layer(np.array([5.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(x, torch.tensor([5.0, -3.0, -4.0], dtype=torch.float64), atol=1e-6, rtol=0)
    # The upper triangle of [[1, x], [x, 2]], off the diagonal times √2: the largest x is √2.
    matrix = np.array([[0.0], [-np.sqrt(2.0)], [0.0]])
    diagonal = np.array([1.0, 0.0, 2.0])
    (x,) = ConeLayer.from_matrices(None, [-1.0], matrix, diagonal, {"psd": [2]}, ["b"])(diagonal)
    assert x.item() == pytest.approx(np.sqrt(2.0), abs=1e-6)
    free = ConeLayer.from_matrices(np.eye(2), Q, np.zeros((0, 2)), np.zeros(0), {}, ["q"])
    torch.testing.assert_close(free(Q)[0], torch.tensor(-Q), atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"P": np.triu(P)}, "P must be symmetric"),
        ({"A": np.eye(3)}, r"`A` must have shape \(3, 2\)"),
        ({"q": 1.0}, "`q` must be a vector"),
        ({"q": ["a", "b"]}, "numbers only"),
        ({"cones": {"nonneg": 2}}, "2 rows in all, but A has 3"),
        ({"cones": {"zero": -1, "nonneg": 4}}, "nonnegative"),
        ({"cones": {"soc": 3}}, "must be a list"),
        ({"cones": {"ball": 3}}, "Unknown cones"),
        ({"cones": [3]}, "must be a dict"),
        ({"cones": {"power": [2.0]}}, "between 0 and 1"),
        ({"parameters": ["c"]}, "must be different names"),
        ({"parameters": ["q", "q"]}, "must be different names"),
        ({"b": [1.0, np.inf, 0.0], "parameters": ["q"]}, "`b` holds NaN or infinity"),
    ],
)
def test_wrong_matrices(changes: dict[str, object], message: str) -> None:
    with pytest.raises((ModelError, ShapeError), match=message):
        ConeLayer.from_matrices(**({"P": P, "q": Q, "A": A, "b": B, "cones": CONES} | changes))


def test_wrong_multipliers() -> None:
    result = ConeLayer.from_matrices(P, Q, A, B, CONES, ["q"]).solve(Q)
    with pytest.raises(LayerError):
        result.dual("y")

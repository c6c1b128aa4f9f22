"""The README of cvxpylayers and its example problems, with an import of ConeLayer in place of its own."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from conelayers import ConeLayer as CvxpyLayer
from tests.conelayers.checks import assert_gradients, solve_with_clarabel

RNG = np.random.default_rng(0)
N, M = 3, 2


def normal(*shape: int) -> np.ndarray:
    """Standard normal numbers."""
    return RNG.standard_normal(shape)


def assert_example(problem: cp.Problem, values: dict[cp.Parameter, np.ndarray], variables: list[cp.Variable]) -> None:
    """Assert solutions and gradients of a layer, of one item and of a batch of two."""
    layer = CvxpyLayer(problem, list(values), variables)
    tensors = [torch.tensor(np.asarray(value, dtype=float)) for value in values.values()]
    solve_with_clarabel(problem, values)
    points = layer(*tensors)
    pairs = layer(*(torch.stack([tensor, tensor]) for tensor in tensors))
    for point, pair, variable in zip(points, pairs, variables, strict=True):
        np.testing.assert_allclose(point.numpy(), variable.value, atol=2e-5)
        torch.testing.assert_close(pair, torch.stack([point, point]), atol=1e-5, rtol=0)
    weights = [torch.tensor(np.random.default_rng(1).standard_normal(point.shape)) for point in points]

    def total(*arguments: torch.Tensor) -> torch.Tensor:
        solutions = layer(*arguments, solver_args={"eps": 1e-12})
        return sum((w * x).sum() for w, x in zip(weights, solutions, strict=True))

    assert_gradients(total, tensors, atol=2e-3)


def test_readme(recwarn: pytest.WarningsRecorder) -> None:
    x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(0.5 * cp.pnorm(A @ x - b, p=1)), [x >= 0])
    for settings in ({}, {"solver": cp.CUCLARABEL}, {"solver": cp.DIFFCP, "solver_args": {"solver": cp.CLARABEL}}):
        layer = CvxpyLayer(problem, parameters=[A, b], variables=[x], **settings).to("cpu")
        A_value, b_value = torch.randn(3, 2, requires_grad=True), torch.randn(3, requires_grad=True)
        (solution,) = layer(A_value, b_value, solver_args={"eps": 1e-8, "max_iters": 10000, "acceleration_lookback": 0})
        (warm,) = layer(A_value, b_value, warm_start=True)
        assert torch.equal(solution, warm)
        solution.sum().backward()
        assert A_value.grad is not None
        assert b_value.grad is not None
        solve_with_clarabel(problem, {A: A_value.detach(), b: b_value.detach()})
        assert layer.solve(A_value, b_value).value.item() == pytest.approx(problem.value, abs=1e-5)
    texts = [str(warning.message) for warning in recwarn]
    for ignored in ("CUCLARABEL", "DIFFCP", "acceleration_lookback"):
        assert any(ignored in text for text in texts)


def test_positional_arguments() -> None:
    x, c = cp.Variable(2), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - c)), [x >= 0])
    with pytest.warns(UserWarning, match="verbose=True, canon_backend='COO'"):
        layer = CvxpyLayer(problem, [c], [x], cp.CLARABEL, False, True, "COO", {"eps": 1e-9})
    assert layer.engine.name == "clarabel"
    torch.testing.assert_close(layer(torch.tensor([1.0, -1.0]))[0], torch.tensor([1.0, 0.0]), atol=1e-6, rtol=0)


def test_least_squares_and_data_poisoning() -> None:
    a, b = cp.Variable((N, 1)), cp.Variable((1, 1))
    X, Y = cp.Parameter((4, N)), np.array([[1.0], [0.0], [1.0], [0.0]])
    score = X @ a + b
    likelihood = cp.sum(cp.multiply(Y, score) - cp.logistic(score)) / 4
    objective = cp.Maximize(likelihood - 0.1 * cp.norm(a, 1) - 0.1 * cp.sum_squares(a))
    assert_example(cp.Problem(objective), {X: normal(4, N)}, [a, b])


def test_elastic_net_of_the_tutorial() -> None:
    a, b = cp.Variable(N), cp.Variable()
    X, Y, lasso, ridge = cp.Parameter((5, N)), cp.Parameter(5), cp.Parameter(nonneg=True), cp.Parameter(nonneg=True)
    loss = cp.sum(cp.square(X @ a + b - Y)) / 5 + lasso * cp.norm1(a) + ridge * cp.sum_squares(a)
    assert_example(cp.Problem(cp.Minimize(loss)), {X: normal(5, N), Y: normal(5), lasso: 0.05, ridge: 0.1}, [a, b])


def test_portfolio_with_transaction_costs() -> None:
    w_next, u, f = cp.Variable(N), cp.Variable(N), cp.Variable(N)
    w, alpha, S = cp.Parameter(N), cp.Parameter(N), cp.Parameter((N, N))
    s, kappa, gamma = (cp.Parameter(1, nonneg=True) for _ in range(3))
    costs = s * cp.sum(cp.neg(w_next)) + kappa * cp.sum(cp.abs(u))
    constraints = [
        cp.sum(w_next) == 1,
        cp.norm(w_next, 1) <= 1.5,
        cp.norm(w_next, "inf") <= 0.7,
        f == S @ w_next,
        u == w_next - w,
    ]
    problem = cp.Problem(cp.Maximize(alpha @ w_next - gamma * cp.sum_squares(f) - costs), constraints)
    values = {w: [0.3, 0.3, 0.4], alpha: [0.5, 0.1, 0.3], S: np.eye(N) + 0.1 * normal(N, N), s: [0.1]}
    assert_example(problem, values | {kappa: [0.02], gamma: [1.0]}, [w_next, u, f])


def test_markowitz_with_self_financing() -> None:
    h_next, u = cp.Variable(N), cp.Variable(N)
    h, root, mu = cp.Parameter(N), cp.Parameter((N, N)), cp.Parameter(N)
    costs = cp.sum(u) + 0.01 * cp.sum(cp.abs(u)) + 0.02 * cp.sum(cp.neg(h_next)) <= 0
    problem = cp.Problem(cp.Maximize(mu @ h_next - cp.sum_squares(root @ h_next)), [costs, h_next == h + u])
    values = {h: [0.3, 0.3, 0.4], root: np.eye(N) + 0.1 * normal(N, N), mu: [0.9, 0.2, 0.6]}
    assert_example(problem, values, [u])


def test_relu() -> None:
    z, Z = cp.Variable(N), cp.Variable((N, M))
    W, b, x = cp.Parameter((N, M)), cp.Parameter(N), cp.Parameter(M)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(z - Z @ x - b)), [z >= 0, Z == W])
    weights, inputs = normal(N, M), normal(M)
    assert_example(problem, {W: weights, b: [0.5, -2.0, 1.0], x: inputs}, [z])


def test_control_policies() -> None:
    A, B = np.eye(N) + 0.1 * normal(N, N), normal(N, M)
    x, root, q = cp.Parameter((N, 1)), cp.Parameter((N, N)), cp.Parameter(N)
    u, x_next = cp.Variable((M, 1)), cp.Variable((N, 1))
    objective = cp.quad_form(u, np.eye(M)) + cp.sum_squares(root @ x_next) + q @ x_next
    for limit in ([], [cp.norm(u, "inf") <= 0.1]):
        problem = cp.Problem(cp.Minimize(objective), [x_next == A @ x + B @ u, *limit])
        assert_example(problem, {x: normal(N, 1), root: np.eye(N), q: normal(N)}, [u])


def test_policy_with_a_maximum_of_quadratics() -> None:
    B = normal(N, M)
    x, u, x_next, t = cp.Parameter(N), cp.Variable(M), cp.Variable(N), cp.Variable(1)
    roots, slopes = [cp.Parameter((N, N), PSD=True) for _ in range(2)], [cp.Parameter(N) for _ in range(2)]
    pieces = [cp.sum_squares(P @ x_next) + q @ x_next <= t for P, q in zip(roots, slopes, strict=True)]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(u) + t), [x_next == x + B @ u, *pieces])
    layer = CvxpyLayer(problem, [x, *roots, *slopes], [u])
    values = {x: normal(N), roots[0]: np.eye(N), roots[1]: 0.5 * np.eye(N), slopes[0]: normal(N), slopes[1]: normal(N)}
    solve_with_clarabel(problem, values)
    (point,) = layer(*values.values())
    np.testing.assert_allclose(point.numpy(), u.value, atol=2e-5)


def test_approximate_dynamic_programming() -> None:
    x, root, cross, q = cp.Parameter((M, 1)), cp.Parameter((N, N)), cp.Parameter((M, N)), cp.Parameter((N, 1))
    u, y = cp.Variable((N, 1)), cp.Variable((M, 1))
    objective = 0.5 * cp.sum_squares(root @ u) + x.T @ y + q.T @ u
    problem = cp.Problem(cp.Minimize(objective), [cp.norm(u) <= 0.5, y == cross @ u])
    assert_example(problem, {x: normal(M, 1), root: np.eye(N), cross: normal(M, N), q: normal(N, 1)}, [u])


def test_model_predictive_control() -> None:
    A, B, horizon = np.eye(N) + 0.1 * normal(N, N), normal(N, M), 4
    x, weights = cp.Parameter(N), cp.Parameter(N, nonneg=True)
    states, controls = ([cp.Variable(n) for _ in range(horizon)] for n in (N, M))
    costs = [
        cp.sum(cp.multiply(weights, cp.square(s))) + cp.sum_squares(u) for s, u in zip(states, controls, strict=True)
    ]
    steps = [states[t] == A @ states[t - 1] + B @ controls[t - 1] for t in range(1, horizon)]
    limits = [cp.norm(u, "inf") <= 0.4 for u in controls]
    problem = cp.Problem(cp.Minimize(sum(costs)), [states[0] == x, *limits, *steps])
    assert_example(problem, {x: normal(N), weights: [1.0, 0.5, 2.0]}, [controls[0]])


def test_monotonic_regression() -> None:
    y, target = cp.Variable(5), cp.Parameter(5)
    problem = cp.Problem(cp.Minimize(cp.norm2(y - target)), [cp.diff(y) >= 0])
    assert_example(problem, {target: [0.1, 0.9, 0.4, 1.5, 1.1]}, [y])


def test_regularised_optimal_transport() -> None:
    C, a, b, eps = cp.Parameter((N, M)), cp.Parameter(N), cp.Parameter(M), cp.Parameter(1, nonneg=True)
    P = cp.Variable((N, M))
    entropy = cp.sum(cp.entr(P)) + cp.sum(P)
    constraints = [P @ np.ones(M) == a, P.T @ np.ones(N) == b, P >= 0]
    problem = cp.Problem(cp.Minimize(cp.trace(P.T @ C) - eps * entropy), constraints)
    cost, sources, targets = normal(N, M), np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.6])
    layer = CvxpyLayer(problem, [C, a, b, eps], [P])
    values = {C: cost, a: sources, b: targets, eps: [0.5]}
    solve_with_clarabel(problem, values)
    np.testing.assert_allclose(layer(*values.values())[0].numpy(), P.value, atol=2e-5)
    # Along directions that keep both totals equal.
    direction = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)

    def total(C_value: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        point = layer(C_value, torch.tensor(sources) + step * direction, targets, [0.5], solver_args={"eps": 1e-12})[0]
        return (point * torch.arange(6.0, dtype=torch.float64).reshape(N, M)).sum()

    assert_gradients(total, [torch.tensor(cost), torch.zeros((), dtype=torch.float64)], atol=2e-3)


def test_stiffness_of_springs() -> None:
    k, x = cp.Parameter(4, nonneg=True), cp.Variable(5)
    gaps = [x[i] - x[i - 1] >= 0.05 for i in range(1, 5)]
    energy = cp.sum(cp.multiply(k, 0.5 * cp.square(cp.diff(x))))
    assert_example(cp.Problem(cp.Minimize(energy), [x[0] == 0, x[-1] == 1, *gaps]), {k: [1.0, 2.0, 30.0, 1.5]}, [x])


def test_resource_allocation() -> None:
    y, units, t = cp.Variable(N), cp.Variable(N), cp.Variable(N)
    alpha, inverse, budget = cp.Parameter(N, nonneg=True), cp.Parameter(N, nonneg=True), cp.Parameter(nonneg=True)
    constraints = [
        cp.sum(y) == budget,
        y >= 0,
        -cp.exp(-cp.multiply(alpha, units)) >= cp.multiply(alpha, t),
        units == cp.multiply(y, inverse),
    ]
    problem = cp.Problem(cp.Maximize(cp.sum(t)), constraints)
    layer = CvxpyLayer(problem, [budget, inverse, alpha], [y])
    values = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (3.0, [1.0, 1.5, 2.0], [0.5, 0.7, 0.9])]
    (solution,) = layer(*values)

    # Where y > 0, all inverse_i exp(-alpha_i inverse_i y_i) are equal, to exp(level).
    widths = 1 / (values[2] * values[1])
    level = ((widths * values[1].log()).sum() - values[0]) / widths.sum()
    expected = widths * (values[1].log() - level)
    torch.testing.assert_close(solution, expected, atol=2e-5, rtol=0)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    gradients = [torch.autograd.grad(point @ weights, values, retain_graph=True) for point in (solution, expected)]
    for ours, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-4, rtol=0)


def test_signal_denoising() -> None:
    y, rest = cp.Variable(4), cp.Variable(4)
    x, theta, lam = cp.Parameter(4), cp.Parameter((4, 4)), cp.Parameter(pos=True)
    objective = cp.sum_squares(theta @ rest) + lam * cp.sum_squares(cp.diff(y))
    problem = cp.Problem(cp.Minimize(objective), [rest == x - y])
    assert_example(problem, {x: normal(4), theta: np.eye(4) + 0.1 * normal(4, 4), lam: 0.5}, [y])


def test_supply_chain() -> None:
    n, k = 2, 2
    root, q, x = cp.Parameter((n, n)), cp.Parameter((n, 1)), cp.Parameter((n + 2 * k, 1))
    stock, prices, demand = x[:n], x[n : n + k], x[n + k :]
    u, stock_next = cp.Variable((2 * k, 1)), cp.Variable((n, 1))
    inflow = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    outflow = np.array([[0, 0, 1.0, 0], [0, 0, 0, 1]])
    costs = cp.vstack([prices, -1.4 * np.ones((k, 1))]).T @ u
    constraints = [
        stock_next == stock + (inflow - outflow) @ u,
        stock_next <= 3,
        u >= 0,
        u <= 2,
        outflow @ u <= stock,
        u[k:] <= demand,
    ]
    objective = cp.Minimize(costs + cp.sum_squares(root @ stock_next) + q.T @ stock_next + 0.1 * cp.sum_squares(u))
    values = {x: np.array([[1.0], [0.5], [0.8], [1.1], [0.6], [0.9]]), root: np.eye(n), q: -normal(n, 1) - 2.0}
    assert_example(cp.Problem(objective, constraints), values, [u])


def test_steering_of_a_vehicle() -> None:
    root, q, f = cp.Parameter((4, 4)), cp.Parameter(4), cp.Parameter(4)
    B, curvature = cp.Parameter((4, 2)), cp.Parameter(1)
    u, y = cp.Variable(2), cp.Variable(4)
    constraints = [y == f + B @ u, cp.abs(u[0]) <= 2, cp.abs(u[1] + 0.5 * curvature) <= 0.68]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(u) + cp.sum_squares(root @ y) + q @ y), constraints)
    values = {root: np.eye(4), q: normal(4), f: 2 * normal(4), B: normal(4, 2), curvature: [0.3]}
    assert_example(problem, values, [u])

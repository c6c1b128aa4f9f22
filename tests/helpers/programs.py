"""Families of random cone programs: every registered engine is held to its contract on each that it declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from conelayers import ConeProgram, compile_program, make_engine
from conelayers.engine.registry import SOLVERS

ENGINES = [engine for engine in SOLVERS if engine != "moreau" or find_spec("moreau")]
"""Those that are installed here: Moreau has no wheel for every platform."""

GENERAL = [engine for engine in ("moreau", "clarabel") if engine in ENGINES]
"""Those that take every cone."""

needs_moreau = pytest.mark.skipif("moreau" not in ENGINES, reason="Moreau is not installed")


@dataclass(frozen=True, eq=False)
class Family:
    """A parametrised problem, its compiled form, and a way to draw well-posed parameters."""

    name: str
    problem: cp.Problem
    parameters: tuple[cp.Parameter, ...]
    program: ConeProgram
    draw: Callable[[np.random.Generator], list[np.ndarray]]

    def theta(self, batch: int, seed: int = 0) -> Tensor:
        """Parameters of a batch, laid out row by row."""
        rng = np.random.default_rng(seed)
        rows = [np.concatenate([np.ravel(v) for v in self.draw(rng)]) for _ in range(batch)]
        return torch.tensor(np.array(rows))


def _build(name: str, objective: cp.Expression, constraints: list, draws: dict) -> Family:
    problem = cp.Problem(cp.Minimize(objective), constraints)
    parameters = tuple(draws)
    program = compile_program(problem, parameters)
    return Family(name, problem, parameters, program, lambda rng: [draw(rng) for draw in draws.values()])


def lp() -> Family:
    """Parameters in the objective and in the right-hand side."""
    rng = np.random.default_rng(10)
    x, c, h = cp.Variable(4), cp.Parameter(4), cp.Parameter(7)
    G = rng.normal(size=(7, 4))
    return _build(
        "lp",
        c @ x + 0.5 * cp.sum(h),
        [G @ x <= h, x <= 3, x >= -3],
        {c: lambda r: r.normal(size=4), h: lambda r: 0.3 + r.random(7)},
    )


def lp_matrix() -> Family:
    """A matrix of parameters, neither square nor symmetric, so that a slip of its order shows."""
    x, c, G, h = cp.Variable(3, nonneg=True), cp.Parameter(3), cp.Parameter((4, 3)), cp.Parameter(4)
    return _build(
        "lp_matrix",
        -c @ x,
        [G @ x <= h, cp.sum(x) <= 4],
        {c: lambda r: 0.2 + r.random(3), G: lambda r: 0.2 + r.random((4, 3)), h: lambda r: 1 + r.random(4)},
    )


def qp() -> Family:
    """A fixed quadratic form, items of different size: what is shared between items must stay shared."""
    rng = np.random.default_rng(11)
    x, c, h = cp.Variable(4), cp.Parameter(4), cp.Parameter()
    L = rng.normal(size=(4, 4)) + 2 * np.eye(4)
    return _build(
        "qp",
        cp.sum_squares(L @ x) + c @ x,
        [cp.sum(x) == h, x >= -1],
        {c: lambda r: r.normal(size=4) * 10 ** r.uniform(-1, 1), h: lambda r: r.uniform(0.5, 2)},
    )


def qp_weights() -> Family:
    """A quadratic form that depends on the parameters, without any constraint."""
    x, w, t = cp.Variable(3), cp.Parameter(3, nonneg=True), cp.Parameter(3)
    rng = np.random.default_rng(12)
    L = rng.normal(size=(4, 3))
    return _build(
        "qp_weights",
        w @ cp.square(x) + cp.sum_squares(L @ x) + t @ x,
        [],
        {w: lambda r: 0.5 + r.random(3), t: lambda r: r.normal(size=3)},
    )


def socp() -> Family:
    """Two second-order cones of different size, parameters in their rows."""
    x, t = cp.Variable(3), cp.Variable()
    c, F, g = cp.Parameter(3), cp.Parameter((2, 3)), cp.Parameter(2)
    return _build(
        "socp",
        c @ x + t,
        [cp.norm(F @ x - g) <= t, cp.norm(x) <= 2],
        {
            c: lambda r: 1.5 * r.normal(size=3),
            F: lambda r: r.normal(size=(2, 3)),
            g: lambda r: 1 + r.normal(size=2),
        },
    )


def portfolio() -> Family:
    """The worst case of a portfolio under one joint bound on the deviation: a kink-free second-order cone program."""
    x, mu, deviation = cp.Variable(5, nonneg=True), cp.Parameter(5), cp.Parameter(5, nonneg=True)
    return _build(
        "portfolio",
        -mu @ x + cp.norm(cp.multiply(deviation, x)),
        [cp.sum(x) == 1],
        {mu: lambda r: 0.2 * r.normal(size=5), deviation: lambda r: 0.5 + r.random(5)},
    )


def entropy() -> Family:
    """Exponential cones."""
    x, c, a = cp.Variable(4), cp.Parameter(4), cp.Parameter()
    return _build(
        "entropy",
        c @ x - cp.sum(cp.entr(x)),
        [cp.sum(x) == a, x[0] <= 0.2],
        {c: lambda r: r.normal(size=4), a: lambda r: r.uniform(0.8, 1.5)},
    )


def power() -> Family:
    """Power cones of two exponents."""
    x, y, c, d = cp.Variable(3), cp.Variable(3), cp.Parameter(3), cp.Parameter(3)
    t = cp.Variable(3)
    return _build(
        "power",
        c @ x + cp.sum(y) + 0.5 * cp.sum(t),
        [
            cp.PowCone3D(y, np.ones(3), x, [1 / 3, 1 / 3, 1 / 3]),
            cp.PowCone3D(t, np.ones(3), x - d, [2 / 3, 2 / 3, 2 / 3]),
        ],
        {c: lambda r: 1.0 + r.random(3), d: lambda r: 0.5 + r.random(3)},
    )


def every_cone() -> Family:
    """All cones at once, bounds of variables in the middle of the rows, a matrix variable, a quadratic objective."""
    X, y = cp.Variable((2, 3), bounds=[0, 1.5]), cp.Variable(2)
    C, k = cp.Parameter((2, 3)), cp.Parameter()
    return _build(
        "every_cone",
        cp.sum(cp.multiply(C, X)) + cp.sum_squares(X) + cp.sum(y),
        [
            cp.sum(X) == 2,
            cp.norm(X[0] - 0.1) <= 1 + k,
            cp.sum(cp.exp(X[1])) <= y[0] + k,
            cp.sum(cp.power(X[0], 1.5, approx=False)) <= y[1] + 1,
        ],
        {C: lambda r: 3 * r.normal(size=(2, 3)), k: lambda r: r.uniform(0.2, 1.0)},
    )


def sdp() -> Family:
    """A semidefinite variable, parameters in the objective, in a row of the matrix and in the right-hand side."""
    X = cp.Variable((3, 3), PSD=True)
    C, A, b = cp.Parameter((3, 3)), cp.Parameter((3, 3)), cp.Parameter(2)
    return _build(
        "sdp",
        cp.sum(cp.multiply(C, X)) + 0.5 * cp.sum_squares(X),
        [cp.trace(X) == b[0], cp.sum(cp.multiply(A, X)) == b[1]],
        {
            C: lambda r: r.normal(size=(3, 3)),
            A: lambda r: traceless(0.5 * r.normal(size=(3, 3))),
            b: lambda r: np.array([r.uniform(2, 3), 0.1 * r.normal()]),
        },
    )


def traceless(M: np.ndarray) -> np.ndarray:
    """Without its trace, so that multiples of the identity are feasible, or nearly."""
    return M - np.trace(M) / len(M) * np.eye(len(M))


def lmi() -> Family:
    """A linear matrix inequality with parameters in its constant and in its slopes; linear, so that X is not in it."""
    rng = np.random.default_rng(13)
    x, c, G, k = cp.Variable(3), cp.Parameter(3), cp.Parameter((4, 4)), cp.Parameter(3)
    F = [0.5 * (M + M.T) for M in rng.normal(size=(3, 4, 4))]
    slopes = sum(x[i] * F[i] for i in range(3)) + cp.sum(cp.multiply(k, x)) * np.diag([1.0, 0, 0, -1])
    return _build(
        "lmi",
        c @ x,
        [G + slopes >> 0],
        {
            c: lambda r: r.normal(size=3),
            G: lambda r: 2 * np.eye(4) + 0.3 * r.normal(size=(4, 4)),
            k: lambda r: 0.3 * r.normal(size=3),
        },
    )


def sdp_mixed() -> Family:
    """Two semidefinite cones of different order with second-order, linear and fixed rows, and a quadratic objective."""
    X, y, t = cp.Variable((2, 2), symmetric=True), cp.Variable(3, bounds=[-1, 2]), cp.Variable()
    C, g, w = cp.Parameter((2, 2)), cp.Parameter(3), cp.Parameter(nonneg=True)
    corner = cp.bmat([[X, y[:2, None]], [y[None, :2], cp.reshape(t, (1, 1), order="F")]])
    return _build(
        "sdp_mixed",
        cp.sum(cp.multiply(C, X)) + g @ y + t + w * cp.sum_squares(y) + 0.5 * cp.sum_squares(X),
        [corner >> 0, X << 2 * np.eye(2), cp.SOC(1 + X[0, 0], y), cp.sum(y) == 1],
        {
            C: lambda r: 1.5 * r.normal(size=(2, 2)),
            g: lambda r: r.normal(size=3),
            w: lambda r: 0.5 + r.random(),
        },
    )


def log_det() -> Family:
    """A semidefinite cone followed by exponential ones, and linear rows before it."""
    X, C, k = cp.Variable((2, 2), PSD=True), cp.Parameter((2, 2)), cp.Parameter()
    return _build(
        "log_det",
        cp.sum(cp.multiply(C, X)) - cp.log_det(X),
        [cp.trace(X) <= 1 + k],
        {C: lambda r: np.eye(2) + 0.3 * r.normal(size=(2, 2)), k: lambda r: 2 * r.random()},
    )


def delage_ye() -> Family:
    """The worst case of a portfolio over all laws whose mean and second moment are near those given.

    y = mu + L ξ with ‖E ξ‖² ≤ 1/4 and E ξξᵀ ⪯ 2 I; the loss is the larger of -xᵀy and -3xᵀy - 1/2.
    """
    x, q, Q, r = cp.Variable(2, nonneg=True), cp.Variable(2), cp.Variable((2, 2), PSD=True), cp.Variable()
    mu, L = cp.Parameter(2), cp.Parameter((2, 2))
    pieces = [(-x, 0.0), (-3 * x, -0.5)]
    return _build(
        "delage_ye",
        r + 2 * cp.trace(Q) + 0.5 * cp.norm(q),
        [moment_block(Q, q, r, mu, L, a, b) >> 0 for a, b in pieces] + [cp.sum(x) == 1],
        {mu: lambda r: 0.3 * r.normal(size=2), L: lambda r: np.eye(2) + 0.3 * r.normal(size=(2, 2))},
    )


def moment_block(
    Q: cp.Expression, q: cp.Expression, r: cp.Expression, mu: cp.Parameter, L: cp.Parameter, a: cp.Expression, b: float
) -> cp.Expression:
    """What must be positive semidefinite if r + qᵀξ + ξᵀQξ ≥ aᵀ(mu + L ξ) + b for all ξ."""
    side = 0.5 * (q - L.T @ a)[:, None]
    return cp.bmat([[Q, side], [side.T, cp.reshape(r - b - mu @ a, (1, 1), order="F")]])


def flat() -> Family:
    """Linear, with parameters in the objective only: the solution map is flat."""
    x, c = cp.Variable(5, nonneg=True), cp.Parameter(5)
    return _build("flat", c @ x, [cp.sum(x) == 1], {c: lambda r: r.normal(size=5)})


def fragile_lp() -> Family:
    """Infeasible where the last parameter is negative, unbounded where the first is."""
    x, c, u = cp.Variable(3, nonneg=True), cp.Parameter(3), cp.Parameter()
    return _build(
        "fragile_lp",
        c @ x,
        [x[0] + 2 * x[1] >= 1, x[1] + x[2] >= 1, x[1] <= u],
        {c: lambda r: 0.5 + r.random(3), u: lambda r: 0.1 + 0.2 * r.random()},
    )


def fragile_socp() -> Family:
    """Likewise, with a second-order cone."""
    x, y, c, r = cp.Variable(2), cp.Variable(), cp.Parameter(3), cp.Parameter()
    return _build(
        "fragile_socp",
        c[0] * y + c[1:] @ x,
        [cp.norm(x - 1) <= r, y >= x[0] + 1],
        {c: lambda r: 0.5 + r.random(3), r: lambda r: 0.5 + r.random()},
    )


def fragile_exp() -> Family:
    """Likewise, with an exponential cone."""
    x, y, c, u = cp.Variable(), cp.Variable(), cp.Parameter(2), cp.Parameter()
    return _build(
        "fragile_exp",
        c[0] * y - c[1] * x,
        [cp.exp(x) <= y, x <= 1, cp.exp(-x) <= u],
        {c: lambda r: np.array([0.5 + r.random(), 3.0 + r.random()]), u: lambda r: 1.5 + r.random()},
    )


def fragile_qp() -> Family:
    """Likewise, with a quadratic objective."""
    x, c, u = cp.Variable(3, nonneg=True), cp.Parameter(2), cp.Parameter()
    return _build(
        "fragile_qp",
        c[0] * x[2] + c[1] * x[0] + cp.sum_squares(x[:2]) + x[0],
        [cp.sum(x) >= 1, x[0] + x[1] <= u],
        {c: lambda r: 0.5 + r.random(2), u: lambda r: 0.3 + r.random()},
    )


def fragile_sdp() -> Family:
    """Likewise, with a semidefinite cone."""
    X, y, c, u = cp.Variable((2, 2), PSD=True), cp.Variable(), cp.Parameter(3), cp.Parameter()
    return _build(
        "fragile_sdp",
        c[0] * y + c[1] * X[0, 0] + c[2] * X[1, 1],
        [X[0, 1] == 1, X[1, 1] <= u, y >= X[0, 0] + 1],
        {c: lambda r: 0.5 + r.random(3), u: lambda r: 0.5 + r.random()},
    )


CURVED = (socp, portfolio, entropy, power, every_cone)
SEMIDEFINITE = (sdp, lmi, sdp_mixed, delage_ye)
REGULAR = (lp, lp_matrix, qp, qp_weights, *CURVED, *SEMIDEFINITE)
FRAGILE = (fragile_lp, fragile_socp, fragile_exp, fragile_qp, fragile_sdp)
BUILDERS = {f.__name__: f for f in (*REGULAR, *FRAGILE, flat, log_det)}
NAMES = [f.__name__ for f in REGULAR]


@cache
def family(name: str) -> Family:
    """A family by name, compiled once."""
    return BUILDERS[name]()


def pairs(names: list[str] | None = None) -> list[tuple[str, str]]:
    """Every engine that is installed with every family that it declares."""
    return [
        (engine, name)
        for engine in ENGINES
        for name in (NAMES if names is None else names)
        if make_engine(engine).supports(family(name).program)
    ]

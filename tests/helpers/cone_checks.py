"""What a solution must satisfy, written without the library's own residuals; test_checks.py sees each of them fail."""

from __future__ import annotations

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from conelayers import ConeProgram, Solution
from conelayers.engine.solvers.clarabel import Clarabel
from tests.helpers.programs import Family


def dense(program: ConeProgram, theta: Tensor, item: int) -> tuple[np.ndarray, ...]:
    """P, A, q, b of one item as dense arrays."""
    values = program.values(theta)

    def matrix(indptr: Tensor, indices: Tensor, data: Tensor) -> np.ndarray:
        full = np.zeros((indptr.numel() - 1, program.columns))
        for row in range(full.shape[0]):
            for k in range(int(indptr[row]), int(indptr[row + 1])):
                full[row, indices[k]] += float(data[k])
        return full

    P = matrix(program.P_indptr, program.P_indices, values.P[item])
    A = matrix(program.A_indptr, program.A_indices, values.A[item])
    return P, A, values.q[item].numpy(), values.b[item].numpy()


def symmetric_matrix(rows: np.ndarray, order: int) -> np.ndarray:
    """The matrix whose upper triangle stands in the first rows, column by column, off the diagonal times √2."""
    full, at = np.zeros((order, order)), 0
    for j in range(order):
        for i in range(j + 1):
            full[i, j] = full[j, i] = rows[at] / (1.0 if i == j else np.sqrt(2.0))
            at += 1
    return full


def violation(program: ConeProgram, s: np.ndarray, dual: bool = False) -> float:
    """How far a point lies outside the cone, or outside its dual."""
    cones, at, worst = program.cones, program.cones.zero, 0.0
    if not dual:
        worst = max(worst, np.abs(s[:at]).max(initial=0.0))
    worst = max(worst, (-s[at : at + cones.nonneg]).max(initial=0.0))
    at += cones.nonneg
    for d in cones.soc:
        worst = max(worst, float(np.linalg.norm(s[at + 1 : at + d])) - s[at])
        at += d
    for order in cones.psd:
        worst = max(worst, -float(np.linalg.eigvalsh(symmetric_matrix(s[at:], order))[0]))
        at += order * (order + 1) // 2
    for _ in range(cones.exp):
        u, v, w = s[at : at + 3]
        if dual:
            # Stated with a logarithm, -u exp(v/u) ≤ e w.
            gap = np.log(max(-u, 1e-12)) + v / min(u, -1e-12) - 1 - np.log(max(w, 1e-12))
        else:
            gap = np.log(max(v, 1e-12)) + u / max(v, 1e-12) - np.log(max(w, 1e-12))
        # Near the edges of the cone the logarithms are meaningless, and so is the test.
        worst = max(worst, gap if min(abs(u) if dual else v, w) > 1e-4 else max(-w, 0.0))
        at += 3
    for alpha in cones.power:
        u, v, w = s[at : at + 3] / (np.array([alpha, 1 - alpha, 1]) if dual else 1.0)
        worst = max(worst, abs(w) - max(u, 0) ** alpha * max(v, 0) ** (1 - alpha), -u, -v)
        at += 3
    return worst


def assert_kkt(family: Family, theta: Tensor, solution: Solution, tolerance: float = 1e-6) -> None:
    """Primal and dual feasibility, cone membership, strong duality; and the objective is what it says."""
    program = family.program
    assert bool(solution.ok.all()), solution
    for item in range(theta.shape[0]):
        P, A, q, b = dense(program, theta, item)
        x, z, s = (t[item].detach().numpy() for t in (solution.primal, solution.dual, solution.slack))
        scale = 1 + max(np.abs(v).max(initial=0.0) for v in (q, b, x, z, s))
        conditions = {
            "primal feasibility": np.abs(A @ x + s - b).max(initial=0.0),
            "dual feasibility": np.abs(P @ x + q + A.T @ z).max(initial=0.0),
            "strong duality": abs(x @ P @ x + q @ x + b @ z),
            "slack in the cone": violation(program, s),
            "multiplier in the dual cone": violation(program, z, dual=True),
            "objective": abs(
                0.5 * x @ P @ x + q @ x + float(program.values(theta).constant[item]) - float(solution.objective[item])
            ),
        }
        broken = {k: v for k, v in conditions.items() if not v <= tolerance * scale}
        assert not broken, f"{family.name}, item {item}: {broken}"


def by_clarabel(family: Family, theta: Tensor) -> tuple[np.ndarray, list[dict[cp.Variable, np.ndarray]]]:
    """The optimal values and decisions of a batch by CVXPY and Clarabel, one item at a time."""
    values, decisions = [], []
    for row in theta.double().numpy():
        offset = 0
        for parameter in family.parameters:
            parameter.value = row[offset : offset + parameter.size].reshape(parameter.shape)
            offset += parameter.size
        family.problem.solve(cp.CLARABEL, tol_feas=1e-9, tol_gap_abs=1e-9, tol_gap_rel=1e-9)
        assert family.problem.status == cp.OPTIMAL
        values.append(family.problem.value)
        decisions.append({v: np.array(v.value) for v in family.problem.variables()})
    return np.array(values), decisions


def assert_agrees(family: Family, theta: Tensor, solution: Solution, tolerance: float = 1e-6) -> None:
    """The same objective and decisions as Clarabel's through CVXPY."""
    values, decisions = by_clarabel(family, theta)
    np.testing.assert_allclose(solution.objective.detach().numpy(), values, rtol=tolerance, atol=tolerance)
    for variable in family.problem.variables():
        expected = np.array([d[variable] for d in decisions])
        found = solution.variable(variable).detach().numpy()
        assert found.shape == expected.shape
        # A curved objective pins its minimiser down to the square root of its own accuracy.
        np.testing.assert_allclose(found, expected, rtol=100 * tolerance, atol=100 * tolerance)


def precise(program: ConeProgram, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Decisions and objectives at tolerance 1e-12, by Clarabel."""
    values = program.values(theta)
    x = Clarabel(tolerance=1e-12).solve(program, values).x if not program.cones.psd else _semidefinite(program, theta)
    solution = (values.q * x).sum(1) + values.constant
    for item in range(len(x)):
        if program.quadratic:
            P, *_ = dense(program, theta[item : item + 1], 0)
            solution[item] += 0.5 * x[item] @ torch.tensor(P) @ x[item]
    return x, solution


def _semidefinite(program: ConeProgram, theta: Tensor) -> Tensor:
    """Decisions over semidefinite cones, by shorter steps; NaN where Clarabel stopped early all the same."""
    settings = clarabel_settings(program, 1e-12)
    rows = []
    for item in range(len(theta)):
        P, A, q, b = dense(program, theta, item)
        upper, A = sp.csc_matrix(np.triu(P)), sp.csc_matrix(A)
        found = clarabel.DefaultSolver(upper, q, A, b, clarabel_cones(program), settings).solve()
        x, z, s = (np.array(v) for v in (found.x, found.z, found.s))
        left = max(np.abs(P @ x + q + A.T @ z).max(), np.abs(A @ x + s - b).max())
        # A minimiser is known to the root of the gap, and to what is left of the rows.
        known = left <= 1e-8 and abs(x @ P @ x + q @ x + b @ z) <= 1e-11
        rows.append(torch.tensor(x if known else np.full_like(x, np.nan)))
    return torch.stack(rows)


def step(program: ConeProgram) -> float:
    """The step of central differences.

    Solved to 1e-12, a vertex is exact to about 1e-12, while the minimiser of a curved problem is exact to 1e-6 at best:
    there the step must be larger, and the differences of fourth order.
    """
    return 1e-3 if program.cones.polyhedral else 1e-2


def central_differences(program: ConeProgram, theta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of ``weight · x*`` and of the optimal value with respect to each entry of theta, item by item."""
    h, theta = step(program), theta.detach().double()
    batch, size = theta.shape
    steps = h * torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=torch.float64)
    moved = steps[:, None, None] * torch.eye(size, dtype=torch.float64)
    x, value = precise(program, (theta[:, None, None] + moved).reshape(-1, size))
    linear = (x.reshape(batch, 4, size, -1) * weight[:, None, None]).sum(-1)

    def derivative(f: Tensor) -> Tensor:
        return (8 * (f[:, 0] - f[:, 1]) - (f[:, 2] - f[:, 3])) / (12 * h)

    return derivative(linear), derivative(value.reshape(batch, 4, size))


def assert_gradient(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative agreement item by item, in the Euclidean norm."""
    assert found.shape == expected.shape
    assert bool(found.isfinite().all())
    error = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-2)
    assert float(error.max()) <= tolerance, f"relative errors of the gradient: {error.tolist()}"


def margin(program: ConeProgram, solution: Solution) -> Tensor:
    """Strict complementarity: zero at a kink of the solution map, where it has no derivative."""
    cones, at = program.cones, program.cones.zero + program.cones.nonneg
    z, s = solution.dual, solution.slack
    parts = [torch.ones(len(z), 1), (z + s)[:, cones.zero : at]]
    for d in cones.soc:
        # On the boundary of both cones s₀ + z₀ > 0, and at the apex the other one is interior.
        interior = [t[:, at] - t[:, at + 1 : at + d].norm(dim=1) for t in (z, s)]
        both = torch.minimum(z[:, at], s[:, at])
        parts.append(torch.stack([*interior, both]).amax(0)[:, None])
        at += d
    for order in cones.psd:
        # z and s commute: every eigenvalue of their sum is one of z or of s, and the other is zero there.
        total = [symmetric_matrix(row[at:], order) for row in (z + s).detach().numpy()]
        parts.append(torch.linalg.eigvalsh(torch.tensor(np.array(total))))
        at += order * (order + 1) // 2
    return torch.cat(parts, 1).amin(1)


def clarabel_cones(program: ConeProgram) -> list:
    """The cones of a program, as Clarabel wants them."""
    cones = program.cones
    return [
        *([clarabel.ZeroConeT(cones.zero)] if cones.zero else []),
        *([clarabel.NonnegativeConeT(cones.nonneg)] if cones.nonneg else []),
        *(clarabel.SecondOrderConeT(d) for d in cones.soc),
        *(clarabel.PSDTriangleConeT(order) for order in cones.psd),
        *(clarabel.ExponentialConeT() for _ in range(cones.exp)),
        *(clarabel.PowerConeT(a) for a in cones.power),
    ]


def clarabel_settings(program: ConeProgram, tolerance: float) -> clarabel.DefaultSettings:
    """How Clarabel is asked for the utmost.

    With its usual steps to 0.99 of the way out of a semidefinite cone it may stop at 1e-8, which leaves 3e-5 of a
    minimiser; with shorter ones it ends near 1e-12.
    """
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = 300
    settings.tol_feas = settings.tol_gap_abs = settings.tol_gap_rel = tolerance
    settings.iterative_refinement_reltol = settings.iterative_refinement_abstol = 1e-14
    settings.iterative_refinement_max_iter = 30
    if program.cones.psd:
        settings.max_step_fraction = 0.5
    return settings

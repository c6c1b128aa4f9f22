"""Programs that nobody wrote for this engine: a battery, a shortest path, appointments, a ball in a box, a newsvendor.

They stand on the public interface alone. The reference is Clarabel, called here and not through the library;
derivatives are central differences of its solutions, and only those count that hold at two steps, on both sides, and
for a solution that is unique in the direction looked at (``stable_differences``). test_strangers.py sees the helpers
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import clarabel
import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import linprog
from torch import Tensor

import drolayers as dro
from conelayers import ConeProgram, Engine, Solution, compile_program, make_engine
from tests.helpers.cone_checks import clarabel_cones, clarabel_settings

HOURS = 24
STEPS = (1e-4, 3e-4, 1e-3)
"""The steps of the differences, relative to the parameters; two neighbours must agree."""


@dataclass(frozen=True, eq=False)
class Stranger:
    """A compiled program, a way to draw a row of leaves, and how leaves become what the library takes.

    Leaves are free: where the library's parameters must obey something (weights that add up to one, two bounds that
    meet), a leaf is what can be moved.
    """

    name: str
    program: ConeProgram
    draw: Callable[[np.random.Generator], np.ndarray]
    variables: tuple[cp.Variable, ...]
    problem: dro.DecisionProblem | None = None
    parameters: Callable[[Tensor], tuple] = lambda leaf: (leaf,)

    def leaves(self, batch: int, seed: int = 0) -> Tensor:
        """A batch of leaves."""
        rng = np.random.default_rng(seed)
        return torch.tensor(np.array([self.draw(rng) for _ in range(batch)]))

    def features(self, leaf: Tensor) -> Tensor:
        """The parameters of the compiled program."""
        parameters = self.parameters(leaf)
        return parameters[0] if self.problem is None else self.problem.features(*parameters)

    def solve(self, leaf: Tensor, engine: Engine | None = None) -> Solution:
        """Solve with the default engine, or with another."""
        if self.problem is None:
            return (engine or make_engine()).solve(self.program, *self.parameters(leaf))
        return self.problem.solve(*self.parameters(leaf), engine=engine)

    def weights(self, batch: int, seed: int = 0) -> Tensor:
        """Random weights on the user's variables; what CVXPY adds need not be unique."""
        return random_weights(self.program, self.variables, batch, np.random.default_rng(seed))


def random_weights(
    program: ConeProgram, variables: tuple[cp.Variable, ...], batch: int, rng: np.random.Generator
) -> Tensor:
    """Normal weights on some variables, zero on all other columns."""
    weight = torch.zeros(batch, program.columns, dtype=torch.float64)
    for slot in program.variables:
        if slot.key in {v.id for v in variables}:
            weight[:, slot.offset : slot.offset + slot.size] = torch.tensor(rng.normal(size=(batch, slot.size)))
    return weight


# --- Problems ---------------------------------------------------------------------------------------------------------


def hourly_prices() -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of an invented price, by hour: low at night, two peaks a day, wild where it is high."""
    hour = np.arange(HOURS)
    mean = 36.0 - 9.0 * np.cos(2 * np.pi * (hour - 6) / 24 + np.pi) - 4.0 * np.cos(4 * np.pi * (hour - 4) / 24)
    return mean, 8.0 + 0.5 * mean + 3.0 * np.sin(2 * np.pi * hour / 12)


def invented_day(rng: np.random.Generator) -> np.ndarray:
    """A standardised day: one level, skewed as prices are, and a slow drift."""
    drift = np.zeros(HOURS)
    for t in range(HOURS):
        drift[t] = 0.8 * drift[t - 1] + 0.6 * rng.normal() if t else rng.normal()
    return rng.gamma(2.0, 0.5) - 1.0 + 0.5 * drift


def forecast(day: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What a model may say of a day: its prices drawn towards the mean, a little off, and hourly spreads.

    Good models leave 0.005 deviations, poor ones 0.6: the narrower, the closer solutions come to the vertices of a
    linear program, and the wider, the less is traded.
    """
    centre = rng.uniform(0.2, 1.0) * day + 0.05 * rng.normal(size=HOURS)
    level = np.exp(rng.uniform(np.log(0.005), np.log(0.6)))
    return centre, level * np.exp(0.3 * rng.normal(size=HOURS))


def battery_problem(
    shape: str, mean: np.ndarray, deviation: np.ndarray
) -> tuple[dro.DecisionProblem, tuple[cp.Variable, ...]]:
    """Charge and discharge a battery over a day, against standardised prices in a box or in an ellipsoid."""
    y = dro.Uncertain(HOURS)
    charge, discharge = cp.Variable(HOURS, nonneg=True, name="in"), cp.Variable(HOURS, nonneg=True, name="out")
    state = cp.Variable(HOURS + 1, nonneg=True, name="state")
    cost = (
        (cp.multiply(deviation, y) + mean) @ (charge - discharge)
        + 0.1 * cp.sum_squares(state - 0.5)
        + 0.05 * cp.sum_squares(charge)
        + 0.05 * cp.sum_squares(discharge)
    )
    constraints = [
        state[0] == 0.5,
        state[1:] == state[:-1] + 0.9 * charge - discharge,
        state <= 1.0,
        charge <= 0.5,
        discharge <= 0.2,
    ]
    if shape == "box":
        ambiguity = dro.MomentSet.grouped(y, 1)
    else:
        ambiguity = dro.MomentSet(y, [dro.moments.Norm(2, A=dro.Learn(HOURS, HOURS))])
    return dro.DecisionProblem(cost, constraints, ambiguity), (charge, discharge, state)


def box_row(centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """θ of the box with this centre and these half widths."""
    return np.concatenate([centre, spread**2])


def ellipse_row(centre: np.ndarray, spread: np.ndarray, correlation: float) -> np.ndarray:
    """θ of the ellipsoid {centre + Lu : ‖u‖ ≤ 1}, LLᵀ a covariance whose correlation falls off hour by hour."""
    hour = np.arange(HOURS)
    covariance = spread[:, None] * spread * correlation ** np.abs(hour[:, None] - hour)
    A = np.linalg.inv(np.linalg.cholesky(covariance))
    return np.concatenate([A.ravel(), A @ centre, [1.0]])


def battery_row(shape: str, day: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """θ of a set around a forecast of a day."""
    centre, spread = forecast(day, rng)
    return box_row(centre, spread) if shape == "box" else ellipse_row(centre, spread, rng.uniform(0.3, 0.9))


def battery(shape: str) -> Stranger:
    """The battery with invented prices, under a box or an ellipse."""
    problem, variables = battery_problem(shape, *hourly_prices())

    def draw(rng: np.random.Generator) -> np.ndarray:
        return battery_row(shape, invented_day(rng), rng)

    return Stranger(f"battery, {shape}", problem.program, draw, variables, problem)


def shortest_path(side: int = 5) -> Stranger:
    """PyEPO's grid: arcs to the right and down, one unit from the first corner to the last; costs as it draws them."""
    node = np.arange(side * side).reshape(side, side)
    arcs = [*zip(node[:, :-1].flat, node[:, 1:].flat, strict=True), *zip(node[:-1].flat, node[1:].flat, strict=True)]
    incidence = np.zeros((side * side, len(arcs)))
    for a, (tail, head) in enumerate(arcs):
        incidence[tail, a], incidence[head, a] = -1.0, 1.0
    supply = np.zeros(side * side)
    supply[0], supply[-1] = -1.0, 1.0
    flow, c = cp.Variable(len(arcs), name="flow"), cp.Parameter(len(arcs), name="c")
    constraints = [incidence @ flow == supply, flow >= 0, flow <= 1]
    program = compile_program(cp.Problem(cp.Minimize(c @ flow), constraints), [c])

    def draw(rng: np.random.Generator) -> np.ndarray:
        hidden = rng.binomial(1, 0.5, (len(arcs), 5)) @ rng.normal(size=5)
        return (((hidden / np.sqrt(5) + 3) / 3.5) ** 4 + 1) * rng.uniform(0.5, 1.5, len(arcs))

    return Stranger("shortest path", program, draw, (flow,))


def appointments(patients: int = 8) -> Stranger:
    """RSOME's medical appointments (Bertsimas, Sim and Zhang 2019): waiting times and overtime by a decision rule.

    Consultation times have known means, bounded variances and a bounded variance of their sum; x are the times between
    appointments. Second stage: w₁ = 0 and w_{j+1} ≥ w_j + y_j - x_j, the last w being overtime, at twice the price.
    Leaves are means and deviations: the mean is an equality, made of two bounds that meet.
    """
    rng = np.random.default_rng(0)
    central = rng.uniform(30.0, 60.0, patients)
    spread = central * rng.uniform(0.05, 0.3, patients)
    total = central.sum() + 0.5 * np.sqrt((spread**2).sum())
    unit = np.eye(patients)
    y = dro.Uncertain(patients, support=dro.support.Nonnegative())
    x = cp.Variable(patients, nonneg=True, name="x")
    # w and slacks: w_{j+1} - w_j - slack_j = y_j - x_j.
    W = np.hstack([unit - np.eye(patients, k=-1), -unit])
    q = np.concatenate([np.ones(patients - 1), [2.0], np.zeros(patients)])
    cost = dro.recourse(q, W, y - x, method="decision_rule")
    moments = [dro.moments.SquaredNorm(j) for j in range(patients)]
    moments += [dro.moments.AbsolutePower(2, mu=np.ones(patients))]
    moments += [dro.moments.Linear(mu=sign * unit[j]) for j in range(patients) for sign in (1.0, -1.0)]
    ambiguity = dro.MomentSet(y, moments)
    problem = dro.DecisionProblem(cost, [cp.sum(x) <= total], ambiguity)

    def parameters(leaf: Tensor) -> tuple[dict[str, Tensor]]:
        mean, deviation = leaf.split(patients, dim=1)
        theta = {f"{j}.mu": mean[:, j : j + 1] for j in range(patients)}
        theta |= {f"{j}.sigma": deviation[:, j] ** 2 for j in range(patients)}
        theta[f"{patients}.h"] = mean.sum(1)
        # The covariances are a quarter of the products of deviations.
        theta[f"{patients}.sigma"] = 0.75 * (deviation**2).sum(1) + 0.25 * deviation.sum(1) ** 2
        for j in range(patients):
            theta[f"{patients + 1 + 2 * j}.sigma"] = mean[:, j]
            theta[f"{patients + 2 + 2 * j}.sigma"] = -mean[:, j]
        return (theta,)

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.concatenate([central * rng.uniform(0.9, 1.1, patients), spread * rng.uniform(0.8, 1.2, patients)])

    return Stranger("appointments", problem.program, draw, (x,), problem, parameters)


def wasserstein_box(atoms: int = 4) -> Stranger:
    """A newsvendor of four goods in a ball of norm 1 and order 2 around contextual atoms, demand in a box."""
    dim = 4
    y = dro.Uncertain(dim, support=dro.support.Box(0.0, 8.0))
    x = cp.Variable(dim, nonneg=True, name="x")
    short, hold = np.array([2.0, 3.0, 1.5, 2.5]), np.array([0.5, 0.8, 0.6, 0.4])
    excess = cp.maximum(cp.multiply(short, y - x), cp.multiply(hold, x - y))
    cost = np.array([0.3, 0.4, 0.2, 0.5]) @ x + cp.sum(excess) + 0.02 * cp.sum_squares(x)
    problem = dro.DecisionProblem(cost, [x <= 8.0], dro.Wasserstein(y, atoms, norm=1, order=2))

    def parameters(leaf: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        radius, points, logits = leaf.split([1, atoms * dim, atoms], dim=1)
        return radius, (points.reshape(-1, atoms, dim), logits.softmax(1))

    def draw(rng: np.random.Generator) -> np.ndarray:
        centre = rng.uniform(2.0, 6.0, dim)
        points = np.clip(centre + rng.normal(size=(atoms, dim)), 0.1, 7.9)
        return np.concatenate([[rng.uniform(0.2, 1.0)], points.ravel(), 0.5 * rng.normal(size=atoms)])

    return Stranger("Wasserstein in a box", problem.program, draw, (x,), problem, parameters)


def newsvendor() -> Stranger:
    """README's newsvendor without its lots: retail alone."""
    price = np.array([0.25, 0.5, 0.75, 1.0])
    short, hold = np.array([2.0, 4.0, 6.0, 8.0]), np.array([0.5, 1.0, 1.5, 2.0])
    y = dro.Uncertain(4, support=dro.support.Nonnegative())
    retail = cp.Variable(4, nonneg=True, name="retail")
    excess = cp.maximum(cp.multiply(short, y - retail), cp.multiply(hold, retail - y))
    ambiguity = dro.MomentSet(y, [dro.moments.Norm(1), dro.moments.SquaredNorm()])
    problem = dro.DecisionProblem(price @ retail + cp.sum(excess), [], ambiguity)

    def draw(rng: np.random.Generator) -> np.ndarray:
        centre = 12.0 + 4.0 * rng.random() + rng.normal(size=4)
        first, second = (centre + 0.3 * rng.normal(size=4) for _ in range(2))
        return np.concatenate([first, [rng.uniform(2.5, 5.0)], second, [rng.uniform(3.0, 8.0)]])

    return Stranger("newsvendor", problem.program, draw, (retail,), problem)


BUILDERS: dict[str, Callable[[], Stranger]] = {
    "box": lambda: battery("box"),
    "ellipse": lambda: battery("ellipse"),
    "newsvendor": newsvendor,
    "wasserstein": wasserstein_box,
    "appointments": appointments,
    "path": shortest_path,
}


@cache
def stranger(name: str) -> Stranger:
    """A stranger by name, compiled once."""
    return BUILDERS[name]()


# --- Reference --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reference:
    """Clarabel's solutions of a batch: points, objectives, what can be relied upon, and what is not proved absent."""

    x: Tensor
    objective: Tensor
    accurate: Tensor
    solvable: Tensor


def reference(
    program: ConeProgram, theta: Tensor, tolerance: float = 1e-12, tilt: Tensor | None = None, residual: float = 1e-8
) -> Reference:
    """Solve item by item with Clarabel.

    Args:
        program: the compiled program.
        theta: its parameters, that is, features of a decision problem.
        tolerance: asked for; what was reached is measured.
        tilt: added to q, item by item.
        residual: relative residuals and gap up to which an answer counts as accurate.
    """
    values = program.values(theta.detach())
    points, objectives, accurate, solvable = [], [], [], []
    for item in range(len(theta)):
        q, b = values.q[item].numpy(), values.b[item].numpy()
        q = q if tilt is None else q + tilt[item].numpy()
        P = _sparse(program.P_indptr, program.P_indices, values.P[item], program.columns)
        A = _sparse(program.A_indptr, program.A_indices, values.A[item], program.columns)
        best, reached = None, np.inf
        # Asked for too much, Clarabel may walk away from a better point: then less is more.
        for asked in (tolerance, 10 * tolerance, 100 * tolerance):
            x, broken = _clarabel(program, P, A, q, b, asked)
            if best is None or broken < reached:
                best, reached = x, broken
            if reached <= 1e-10:
                break
        points.append(torch.tensor(best))
        objectives.append(0.5 * best @ P @ best + q @ best + float(values.constant[item]))
        accurate.append(bool(reached <= residual))
        solvable.append(bool(reached < np.inf))
    objective = torch.tensor(objectives, dtype=torch.float64)
    return Reference(torch.stack(points), objective, torch.tensor(accurate), torch.tensor(solvable))


def _clarabel(
    program: ConeProgram, P: sp.csc_matrix, A: sp.csc_matrix, q: np.ndarray, b: np.ndarray, tolerance: float
) -> tuple[np.ndarray, float]:
    """One solution, and its largest relative residual or gap; infinite where there is none."""
    settings = clarabel_settings(program, tolerance)
    found = clarabel.DefaultSolver(sp.csc_matrix(sp.triu(P)), q, A, b, clarabel_cones(program), settings).solve()
    x, z, s = (np.nan_to_num(np.asarray(v, dtype=float)) for v in (found.x, found.z, found.s))
    if str(found.status) not in ("Solved", "AlmostSolved", "InsufficientProgress", "NumericalError"):
        return x, np.inf
    value, dual = 0.5 * x @ P @ x + q @ x, -0.5 * x @ P @ x - b @ z
    sizes = [1 + np.abs(v).max(initial=0.0) for v in (b, q)]
    broken = (
        np.abs(A @ x + s - b).max(initial=0.0) / sizes[0],
        np.abs(P @ x + q + A.T @ z).max(initial=0.0) / sizes[1],
        abs(value - dual) / (1 + abs(value)),
    )
    return x, float(max(broken))


def _sparse(indptr: Tensor, indices: Tensor, data: Tensor, columns: int) -> sp.csc_matrix:
    shape = (indptr.numel() - 1, columns)
    return sp.csc_matrix(sp.csr_matrix((data.numpy(), indices.numpy(), indptr.numpy()), shape=shape))


@dataclass(frozen=True, eq=False)
class Differences:
    """Derivatives along directions, ``(batch, direction)``, and which items they hold for.

    ``size`` is what a derivative of an item is measured against where it is next to nothing; ``here`` is the solution
    that was not moved.
    """

    decision: Tensor
    value: Tensor
    stable: Tensor
    value_stable: Tensor
    unique: Tensor
    here: Reference
    size: Tensor

    def errors(self, found: Tensor, of: str = "decision") -> Tensor:
        """Relative errors of derivatives along the directions, in the Euclidean norm, one an item."""
        expected = getattr(self, of)
        floor = self.size if of == "decision" else _value_size(self.here)
        return (found - expected).norm(dim=1) / torch.maximum(expected.norm(dim=1), floor).clamp(min=1e-12)


def _value_size(here: Reference) -> Tensor:
    return (1e-2 * here.objective.abs()).clamp(min=1e-4)


def directions(leaf: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Random directions ``(direction, batch, leaf)``, every entry in proportion to its own size."""
    typical = leaf.abs() + 0.1 * leaf.abs().mean(1, keepdim=True)
    return typical * torch.tensor(rng.normal(size=(count, *leaf.shape)))


def stable_differences(
    program: ConeProgram,
    leaf: Tensor,
    weight: Tensor,
    along: Tensor,
    features: Callable[[Tensor], Tensor] = lambda leaf: leaf,
    steps: tuple[float, ...] = STEPS,
    agreement: float = 1e-3,
) -> Differences:
    """Central differences of ``weight · x*`` and of the objective.

    Stable are items whose differences agree at two neighbouring steps and on both sides of the point (at a kink the
    central difference is a mean of two slopes, at every step), where Clarabel was accurate, and whose ``weight · x*``
    is unique: a tilt of the objective by 1e-6 along the weight must not move it (else Clarabel shows the centre of a
    face, and how that moves means nothing).
    """
    leaf, along = leaf.detach().double(), along.double()
    count, batch, size = along.shape
    with torch.no_grad():
        data = features(leaf)
        here, rest = reference(program, data), []
        for h in steps:
            moved = torch.stack([leaf + h * along, leaf - h * along])
            rest.append(reference(program, features(moved.reshape(-1, size))))
    parts = weight * here.x
    scale = 1e-1 * parts.norm(dim=1).clamp(min=1e-9)

    def derivative(at: Tensor, ends: list[Tensor], floor: Tensor) -> tuple[Tensor, Tensor]:
        """At the first two steps that agree, the larger one, which forgives the solver more."""
        found, holds = torch.zeros(batch, count, dtype=torch.float64), torch.zeros(batch, dtype=torch.bool)
        for k in range(1, len(steps)):
            (a, b), (c, d) = (ends[j].reshape(2, count, batch) for j in (k - 1, k))
            near, far = (a - b) / (2 * steps[k - 1]), (c - d) / (2 * steps[k])
            # Right slope less left slope: curvature makes it grow with the step, a kink stays as the step vanishes.
            bends, ratio = [(a + b - 2 * at) / steps[k - 1], (c + d - 2 * at) / steps[k]], steps[k] / steps[k - 1]
            bend = (ratio * bends[0] - bends[1]) / (ratio - 1)
            bound = agreement * torch.maximum(far.norm(dim=0), floor)
            good = here.accurate & torch.stack([rest[j].accurate.reshape(-1, batch).all(0) for j in (k - 1, k)]).all(0)
            good &= ((far - near).norm(dim=0) <= bound) & (bend.norm(dim=0) <= 10 * bound)
            found = torch.where(holds[:, None], found, far.T)
            holds |= good
        return found, holds

    sums = [(r.x.reshape(-1, batch, program.columns) * weight).sum(-1) for r in rest]
    decision, decision_holds = derivative(parts.sum(1), sums, scale)
    value, value_holds = derivative(here.objective, [r.objective for r in rest], _value_size(here))
    price = program.values(data).q.abs().amax(1)
    price = torch.where(price > 0, price, torch.ones_like(price)) / weight.abs().amax(1).clamp(min=1e-12)
    tilt = 1e-6 * price[:, None] * weight
    sides = [(reference(program, data, tilt=sign * tilt).x * weight).sum(1) for sign in (1.0, -1.0)]
    unique = (sides[0] - sides[1]).abs() <= 1e-3 * parts.norm(dim=1).clamp(min=1e-2)
    return Differences(decision, value, decision_holds & unique, value_holds, unique, here, scale)


# --- The barrier problem of a linear program --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Barrier:
    """min qᵀx/κ - level·Σ log(s/β), s = b - Ax on the nonnegative rows, Ex = e on the others; κ = max|q|, β = max|b|.

    Newton's method on the whole, in a basis of the null space of E, from the point with the largest least slack.
    """

    program: ConeProgram
    level: float

    def minimiser(self, theta: Tensor, kappa: float | None = None) -> np.ndarray:
        """x of one row of parameters; ``kappa`` where q moves and its scale does not."""
        A, q, b, E, e = self._data(theta)
        kappa, beta = kappa or self.scale(theta), max(np.abs(b).max(initial=0.0), np.abs(e).max(initial=0.0))
        basis = _null_space(E)
        x = self._interior(A, b, E, e)

        def value(x: np.ndarray) -> float:
            s = b - A @ x
            return q @ x / kappa / beta - self.level * np.log(s).sum() if s.min() > 0 else np.inf

        for _ in range(200):
            s = b - A @ x
            gradient = basis.T @ (q / kappa / beta + self.level * A.T @ (1 / s))
            curvature = basis.T @ (self.level * (A.T / s**2) @ A) @ basis
            step = -basis @ np.linalg.solve(curvature, gradient)
            size, slope = 1.0, (q / kappa / beta + self.level * A.T @ (1 / s)) @ step
            while size > 1e-12 and not value(x + size * step) <= value(x) + 0.1 * size * slope + 1e-14:
                size *= 0.5
            x = x + size * step
            if np.abs(step).max() <= 1e-13 * (1 + np.abs(x).max()):
                break
        return x

    def gradient(self, theta: Tensor, weight: Tensor) -> np.ndarray:
        """Of ``weight · x`` in q, by the implicit function theorem at the minimiser, κ and β held."""
        A, _, b, E, e = self._data(theta)
        kappa, beta = self.scale(theta), max(np.abs(b).max(initial=0.0), np.abs(e).max(initial=0.0))
        basis, s = _null_space(E), b - A @ self.minimiser(theta)
        curvature = basis.T @ (self.level * (A.T / s**2) @ A) @ basis
        return -basis @ np.linalg.solve(curvature, basis.T @ weight.numpy()) / kappa / beta

    def scale(self, theta: Tensor) -> float:
        """max|q|."""
        return float(self.program.values(theta[None]).q.abs().max())

    def _data(self, theta: Tensor) -> tuple[np.ndarray, ...]:
        program, values = self.program, self.program.values(theta[None])
        assert program.cones.polyhedral
        assert not program.quadratic
        whole = _sparse(program.A_indptr, program.A_indices, values.A[0], program.columns).toarray()
        q, b, zero = values.q[0].numpy(), values.b[0].numpy(), program.cones.zero
        return whole[zero:], q, b[zero:], whole[:zero], b[:zero]

    @staticmethod
    def _interior(A: np.ndarray, b: np.ndarray, E: np.ndarray, e: np.ndarray) -> np.ndarray:
        columns = A.shape[1]
        rows, sides = np.hstack([A, np.ones((len(A), 1))]), np.hstack([E, np.zeros((len(E), 1))])
        cost = np.append(np.zeros(columns), -1.0)
        found = linprog(cost, A_ub=rows, b_ub=b, A_eq=sides, b_eq=e, bounds=(None, None), method="highs")
        assert found.status == 0
        assert found.x[-1] > 0
        return found.x[:-1]


def _null_space(E: np.ndarray) -> np.ndarray:
    _, singular, rows = np.linalg.svd(E)
    return rows[int((singular > 1e-10).sum()) :].T

"""One quadratic program of Maros and Meszaros: solve it, measure the answer, and compare gradients with differences.

    python benchmarks/maros_one.py PATH.mat --solver {clarabel,ours} [--seconds 100] [--gigabytes 8]
    python benchmarks/maros_one.py              # a small program made here

``maros.py`` runs this script for every problem, in a separate process, and reads the JSON lines that it prints.

Residuals are measured in numpy from x and the multipliers z of Gx + s = h, relative to the largest term. ``support``
bounds the error of the value at first order: |gap| + |zᵀr_p| + |xᵀr_d|.

Gradients, up to 1,000 columns: the derivative of the value, and of a random weight of x, along three random
directions of q and of h. They are compared with differences of the layer's own solutions at 1e-12. Differences count
if two neighbouring steps agree, and left and right differences too. Directions of h move equality rows within the
range of their matrix, since dependent rows would have no solution otherwise.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

INFINITE_BOUND = 1e19
"""Bounds of this size are absent; the files write 1e20."""

CLARABEL_TOLERANCE = 1e-10
DIFFERENCE_TOLERANCE = 1e-12
LARGEST_GRADIENT = 1000
"""Columns up to which gradients are compared with differences."""

DIRECTIONS = 3
STEPS = (1e-5, 1e-4, 1e-3)
"""Steps of the differences, relative to the parameters."""

STABLE_REL, GRADIENT_REL = 1e-3, 1e-2
"""Largest relative difference between two steps, and between a gradient and a stable difference."""

NOISE_REL = 1e-6
"""Derivatives below this share of the largest one along the other directions count as zero."""


# --- Problems ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class QuadraticProgram:
    """Minimise ½xᵀPx + qᵀx + constant subject to lower <= Ax <= upper; absent bounds are infinite."""

    name: str
    P: sp.csc_array
    q: np.ndarray
    constant: float
    A: sp.csc_array
    lower: np.ndarray
    upper: np.ndarray

    @property
    def nonzeros(self) -> int:
        """Stored entries of P and A."""
        return int(self.P.nnz + self.A.nnz)


@dataclass(frozen=True, eq=False)
class ConeForm:
    """The constraints as Gx + s = h: ``equalities`` rows with s = 0, then rows with s >= 0."""

    G: sp.csc_array
    h: np.ndarray
    equalities: int

    @property
    def cones(self) -> dict[str, int]:
        """The cones by name, as ``ConeLayer.from_matrices`` takes them."""
        return {"zero": self.equalities, "nonneg": self.h.size - self.equalities}


def read_problem(path: Path) -> QuadraticProgram:
    """Read a ``.mat`` file; integer types become floats, and a triangle of P becomes symmetric."""
    data = scipy.io.loadmat(path)
    lower, upper = (np.asarray(data[name], dtype=float).ravel() for name in ("l", "u"))
    return QuadraticProgram(
        name=path.stem,
        P=symmetric(sp.csc_array(data["P"], dtype=float)),
        q=np.asarray(data["q"], dtype=float).ravel(),
        constant=float(np.asarray(data["r"], dtype=float).ravel()[0]),
        A=sp.csc_array(data["A"], dtype=float),
        lower=np.where(lower <= -INFINITE_BOUND, -np.inf, lower),
        upper=np.where(upper >= INFINITE_BOUND, np.inf, upper),
    )


def symmetric(P: sp.csc_array) -> sp.csc_array:
    """Return P with both triangles; a matrix that has only one is completed by its mirror image."""
    below, above = sp.tril(P, -1), sp.triu(P, 1)
    if below.nnz and above.nnz:
        return sp.csc_array((P + P.T) / 2)
    return sp.csc_array(P + sp.csc_array(below + above).T)


def cone_form(problem: QuadraticProgram) -> ConeForm:
    """Write two-sided constraints as equalities and inequalities; rows without a bound disappear."""
    A = sp.csr_array(problem.A)
    equal = problem.lower == problem.upper
    above, below = np.isfinite(problem.upper) & ~equal, np.isfinite(problem.lower) & ~equal
    G = sp.vstack([A[equal], A[above], -A[below]], format="csc")
    h = np.concatenate([problem.upper[equal], problem.upper[above], -problem.lower[below]])
    return ConeForm(sp.csc_array(G), h, int(equal.sum()))


def small_problem() -> QuadraticProgram:
    """Make a program of two columns: minimise ½(x₁² + x₂²) + x₁ - 2x₂ subject to 0 <= x <= 1."""
    identity = sp.csc_array(np.eye(2))
    return QuadraticProgram("small", identity, np.array([1.0, -2.0]), 0.0, identity, np.zeros(2), np.ones(2))


# --- Our own measurement ----------------------------------------------------------------------------------------------


def measure(problem: QuadraticProgram, form: ConeForm, x: np.ndarray, z: np.ndarray) -> dict[str, float]:
    """Return the relative violations of the optimality conditions at a primal-dual point.

    The conditions are l <= Ax <= u;  Px + q + Gᵀz = 0 with z >= 0 on inequality rows;  xᵀPx + qᵀx + hᵀz = 0.

    Args:
        x: ``(columns,)``.
        z: multipliers of Gx + s = h, ``(rows,)``.

    Returns:
        The value with the constant; ``primal``, ``dual`` and ``gap``; and ``support``, absolute.
    """
    Px, Ax, Gx, Gz = problem.P @ x, problem.A @ x, form.G @ x, form.G.T @ z
    primal_residual = np.maximum(Gx - form.h, 0.0)
    primal_residual[: form.equalities] = (Gx - form.h)[: form.equalities]
    dual_residual = Px + problem.q + Gz
    negative = np.maximum(-z[form.equalities :], 0.0)
    violation = np.maximum(np.maximum(problem.lower - Ax, Ax - problem.upper), 0.0)
    value, gap = 0.5 * x @ Px + problem.q @ x, x @ Px + problem.q @ x + form.h @ z
    support = abs(gap) + abs(z @ primal_residual) + abs(x @ dual_residual)
    return {
        "value": float(value + problem.constant),
        "primal": float(largest(violation) / (1.0 + max(largest(Ax), largest(form.h)))),
        "dual": float(
            max(largest(dual_residual), largest(negative)) / (1.0 + max(largest(Px), largest(problem.q), largest(Gz)))
        ),
        "gap": float(abs(gap) / (1.0 + abs(value))),
        "support": float(support),
    }


def largest(vector: np.ndarray) -> float:
    """Return the largest absolute entry, 0 of an empty vector, NaN if an entry is NaN."""
    return float(np.abs(vector).max(initial=0.0))


# --- Solvers ----------------------------------------------------------------------------------------------------------


def solve_with_clarabel(problem: QuadraticProgram, form: ConeForm) -> dict[str, Any]:
    """Solve with Clarabel at 1e-10."""
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = CLARABEL_TOLERANCE
    cones = [clarabel.ZeroConeT(form.equalities), clarabel.NonnegativeConeT(form.h.size - form.equalities)]
    start = time.process_time()
    upper = sp.csc_matrix(sp.triu(problem.P))
    solver = clarabel.DefaultSolver(upper, problem.q, sp.csc_matrix(form.G), form.h, cones, settings)
    solution = solver.solve()
    seconds = time.process_time() - start
    point = measure(problem, form, np.array(solution.x), np.array(solution.z))
    return {"status": str(solution.status), "seconds": seconds, "iterations": solution.iterations, **point}


def solve_with_layer(problem: QuadraticProgram, form: ConeForm) -> dict[str, Any]:
    """Build a layer and solve once, without gradients; the measured point is NaN if the layer failed."""
    import torch

    from conelayers import Status

    start = time.process_time()
    layer = make_layer(problem, form)
    built = time.process_time()
    with torch.no_grad():
        result = layer.solve(*arguments(problem, form))
    seconds = time.process_time() - built
    x, z = result["x"].numpy(), read_multipliers(result)
    point = measure(problem, form, x, z)
    point["value"] = float(result.value) + problem.constant
    return {"status": Status(int(result.status[0])).name, "seconds": seconds, "build_seconds": built - start, **point}


def make_layer(problem: QuadraticProgram, form: ConeForm) -> Any:
    """Make the layer with the parameters q and b."""
    from conelayers import ConeLayer

    return ConeLayer.from_matrices(problem.P, problem.q, form.G, form.h, form.cones, parameters=("q", "b"))


def arguments(problem: QuadraticProgram, form: ConeForm) -> tuple[Any, Any]:
    """Return the parameters of the layer as tensors."""
    import torch

    return torch.from_numpy(problem.q), torch.from_numpy(form.h)


def read_multipliers(result: Any) -> np.ndarray:
    """Return the multipliers of Gx + s = h, ``(rows,)``; a layer made from matrices has no constraints to name."""
    return result.dual("z").detach().numpy()


# --- Gradients --------------------------------------------------------------------------------------------------------


def check_gradients(problem: QuadraticProgram, form: ConeForm, seed: int = 0) -> dict[str, Any]:
    """Compare gradients with differences; see the module's docstring.

    Returns:
        ``derivative``, the code of the decision's derivative; ``outcomes``, counts by target ("value", "decision");
        ``wrong``, the numbers of each wrong or masked derivative.
    """
    import torch

    from conelayers import Derivative

    rng = np.random.default_rng(seed)
    layer = make_layer(problem, form)
    q, b = (t.clone().requires_grad_() for t in arguments(problem, form))
    weight = rng.normal(size=problem.q.size)
    result = layer.solve(q, b)
    if not bool(result.ok[0]):
        return {"skipped": "the layer has no solution"}
    # The value first: the code of the derivative is that of the decision's backward pass.
    slopes = {"value": torch.autograd.grad(result.value, (q, b), retain_graph=True)}
    slopes["decision"] = torch.autograd.grad(result["x"] @ torch.from_numpy(weight), (q, b))
    code = Derivative(int(result.derivative[0]))
    directions = {"q": draw_objectives(problem, rng), "b": draw_right_hand_sides(form, rng)}
    differences = {n: take_differences(problem, form, layer, n, along, weight) for n, along in directions.items()}
    outcomes: dict[str, Counter[str]] = {"value": Counter(), "decision": Counter()}
    details = []
    for target in outcomes:
        for position, name in enumerate(("q", "b")):
            ours = slopes[target][position].numpy() @ directions[name].T
            masked = target == "decision" and not code.ok
            for entry in compare(ours, differences[name][target], masked):
                outcomes[target][entry["outcome"]] += 1
                if entry["outcome"] in ("wrong", "masked"):
                    details.append({"target": target, "parameter": name, **entry})
    return {
        "derivative": code.name,
        "outcomes": {target: dict(counts) for target, counts in outcomes.items()},
        "wrong": details,
    }


def draw_objectives(problem: QuadraticProgram, rng: np.random.Generator) -> np.ndarray:
    """Draw directions of q, ``(direction, columns)``, of the size of its entries."""
    size = np.abs(problem.q) + (np.abs(problem.q).mean() or 1.0)
    return rng.normal(size=(DIRECTIONS, problem.q.size)) * size


def draw_right_hand_sides(form: ConeForm, rng: np.random.Generator) -> np.ndarray:
    """Draw directions of h, ``(direction, rows)``; on equality rows within the range of their matrix."""
    size = np.abs(form.h) + (np.abs(form.h).mean() if form.h.size and form.h.any() else 1.0)
    directions = rng.normal(size=(DIRECTIONS, form.h.size)) * size
    equal = sp.csr_array(form.G)[: form.equalities]
    for direction in directions:
        moved = equal @ rng.normal(size=form.G.shape[1])
        if largest(moved):
            direction[: form.equalities] = moved * (size[: form.equalities].max() / largest(moved))
    return directions


@dataclass(frozen=True, eq=False)
class Differences:
    """Right differences, then left ones, ``(2, step, direction)``, NaN if unsolved; ``noise`` does not count."""

    sides: np.ndarray
    noise: float

    @classmethod
    def from_values(cls, values: np.ndarray) -> Differences:
        """Make differences from values at the point itself and at moves of :func:`list_moves`, ``(1 + moves,)``."""
        steps = np.array(STEPS)
        sides = (values[1:].reshape(2, steps.size, -1) - values[0]) / np.stack([steps, -steps])[:, :, None]
        slopes = np.abs(sides[np.isfinite(sides)]).max(initial=0.0)
        # A value that is right to 1e-12 of one plus itself; and slopes that vanish beside those of other directions.
        rounding = DIFFERENCE_TOLERANCE / STEPS[0] * (1.0 + abs(np.nan_to_num(values[0])))
        return cls(sides, float(rounding + NOISE_REL * slopes))


def list_moves(directions: np.ndarray) -> np.ndarray:
    """Return no move, then every step along every direction, then the opposite ones; ``(1 + moves, entry)``."""
    offsets = (np.array(STEPS)[:, None, None] * directions).reshape(-1, directions.shape[1])
    return np.concatenate([np.zeros((1, directions.shape[1])), offsets, -offsets])


def take_differences(
    problem: QuadraticProgram, form: ConeForm, layer: Any, name: str, directions: np.ndarray, weight: np.ndarray
) -> dict[str, Differences]:
    """Solve at every move of a parameter, and return differences of the value and of the weight of x, by target."""
    import torch

    parameters = dict(zip(("q", "b"), arguments(problem, form), strict=True))
    parameters[name] = parameters[name] + torch.from_numpy(list_moves(directions))
    with torch.no_grad():
        result = layer.solve(*parameters.values(), solver_args={"eps": DIFFERENCE_TOLERANCE})
    return {
        "value": Differences.from_values(result.value.numpy()),
        "decision": Differences.from_values(result["x"].numpy() @ weight),
    }


def compare(ours: np.ndarray, differences: Differences, masked: bool) -> Iterator[dict[str, Any]]:
    """Compare derivatives along directions, ``(direction,)``, with differences.

    Yields:
        For each direction the outcome: "right", "wrong", "masked" (stable, but the layer gives none) or "unstable".
    """
    for k, slope in enumerate(ours):
        sides = differences.sides[:, :, k]
        reference = stable_difference(sides, differences.noise)
        outcome = "masked" if masked else "wrong"
        if reference is None:
            outcome = "unstable"
        elif not masked and close(slope, reference, GRADIENT_REL, differences.noise):
            outcome = "right"
        yield {"outcome": outcome, "ours": float(slope), "differences": sides.mean(0).tolist()}


def stable_difference(differences: np.ndarray, noise: float) -> float | None:
    """Return the central difference that neighbouring steps and both sides agree on, or None.

    Args:
        differences: right and left differences, ``(2, step)``.
        noise: absolute difference that does not count.
    """
    central = differences.mean(0)
    for step in range(len(central) - 1):
        right, left = differences[:, step]
        # One-sided differences have an error of first order in the step, so that they agree less than central ones.
        if close(central[step], central[step + 1], STABLE_REL, noise) and close(right, left, GRADIENT_REL, noise):
            return float(central[step])
    return None


def close(first: float, second: float, relative: float, noise: float) -> bool:
    """Return whether two numbers agree; NaN agrees with nothing."""
    return bool(abs(first - second) <= relative * max(abs(first), abs(second)) + noise)


# --- Command line -----------------------------------------------------------------------------------------------------


def run_solver(solver: str, problem: QuadraticProgram, seconds: float, gigabytes: float) -> None:
    """Run one solver within the limits, and print a JSON line for each result as soon as it is known."""
    form = cone_form(problem)
    warnings.simplefilter("ignore")
    if solver == "ours":
        # Loading and compiling the engine is no part of a solve.
        check_gradients(*(small := small_problem(), cone_form(small)))
    limit_resources(seconds, gigabytes)
    if solver == "clarabel":
        print_result("clarabel", solve_with_clarabel(problem, form))
        return
    print_result("ours", {**solve_with_layer(problem, form), "megabytes": peak_megabytes()})
    if problem.q.size <= LARGEST_GRADIENT:
        limit_resources(seconds, gigabytes)
        print_result("gradients", check_gradients(problem, form))


def print_result(key: str, result: Mapping[str, Any]) -> None:
    """Print one JSON line at once, so that a process that is stopped later has reported it."""
    print(json.dumps({key: result}), flush=True)


def limit_resources(seconds: float, gigabytes: float) -> None:
    """Limit this process to ``seconds`` more of processor time, and to an address space of ``gigabytes``."""
    used = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + int(seconds), resource.RLIM_INFINITY))
    space = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def peak_megabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run one solver on one problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", help="a .mat file")
    parser.add_argument("--solver", choices=("clarabel", "ours"), default="ours")
    parser.add_argument("--seconds", type=float, default=100.0, help="processor seconds to solve, and for gradients")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="address space")
    options = parser.parse_args()
    problem = read_problem(options.path) if options.path else small_problem()
    run_solver(options.solver, problem, options.seconds, options.gigabytes)


if __name__ == "__main__":
    main()

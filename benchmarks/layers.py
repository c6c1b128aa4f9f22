"""Differentiable layers beside each other: cvxpylayers with three solvers, Moreau, and ``ConeLayer``.

    python benchmarks/layers.py [--seconds 60] [--only lp qp socp] [--sizes 4 20] [--batches 1 10] [--print]
                                [--methods conelayers "cvxpylayers + Moreau"]

Programs of n variables, each with a vector of parameters that is differentiated:

* lp: minimise cᵀx subject to Ax >= b, x >= -1e-9, with n/2 sparse rows; differentiated in b, since its
  solution map is flat in c.
* qp: minimise ½‖Fᵀx‖² + ½‖Dx‖² + pᵀx subject to 1ᵀx = 1, x >= -1e-9; differentiated in p.
* socp: the portfolio  minimise -μᵀx + ‖(Fᵀx, Dx)‖  under the same constraints; differentiated in μ.

Every peer gets the same problem. cvxpylayers 1.2 with Moreau 0.4.1 drops plain nonnegativity, since CVXPY moves
identity rows aside; all problems state x >= -1e-9 in its place. Each layer gets a CVXPY problem that was never compiled
before: a second layer of cvxpylayers with Moreau from the same problem returned wrong values. Moreau alone gets the
matrices of our compiled program.

A time is the median of repeated calls, up to a second in all, after one call that is not counted. It is
processor time of the process with all of its threads (``time.process_time``), at each package's default
tolerance: forward alone, without gradients; and forward with backward, of a random weight of x.

Beside it are errors on the first ten items. "value": the objective at the returned x, relative to Clarabel's at 1e-11.
"gradient": relative to ours, in the Euclidean norm over the items whose derivative is verified; for ours, to central
differences along a random direction if n is at most 20.

Each column of batches runs in a separate process. A cell whose time, estimated from the cell before, exceeds
``--seconds`` is "-". The log is ``benchmarks/figures/layers.jsonl``; a cell in it is not run again. Needs
``pip install cvxpylayers diffcp``; peers that are not installed are left out of the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from conelayers import ConeLayer, Derivative

LOG = Path(__file__).resolve().parent / "figures" / "layers.jsonl"

FAMILIES = ("lp", "qp", "socp")
SIZES = (4, 20, 100, 300, 800)
BATCHES = (1, 10, 100, 1000)
METHODS = ("conelayers", "cvxpylayers", "cvxpylayers + Clarabel", "cvxpylayers + Moreau", "Moreau")

LOWER_BOUND = -1e-9
"""In place of zero: see the module's docstring."""

REFERENCE_ITEMS = 10
"""Items on which values and gradients are compared."""

LARGEST_DIFFERENCE = 20
"""Variables up to which our gradient is compared with differences."""

DIFFERENCE_STEP = 1e-4
GIGABYTES = 24.0
"""Address space of a process."""

GROWTH = 10.0
"""By how much a cell may take longer than the one before: ten times the items, or the next larger program."""


# --- Programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Family:
    """A parametrised problem.

    Attributes:
        draw: makes a batch of parameters, ``(batch, parameters)``.
        objective: takes parameters ``(batch, parameters)`` and x ``(batch, n)``, and returns ``(batch,)``.
    """

    problem: cp.Problem
    variable: cp.Variable
    parameter: cp.Parameter
    draw: Callable[[int], np.ndarray]
    objective: Callable[[np.ndarray, np.ndarray], np.ndarray]


def make_family(name: str, n: int) -> Family:
    """Make the program of a family with n variables; its data depend on the name and on n alone."""
    return {"lp": make_linear, "qp": make_quadratic, "socp": make_portfolio}[name](n, np.random.default_rng(n))


def make_linear(n: int, rng: np.random.Generator) -> Family:
    """Make a covering linear program with n // 2 rows of at most eight entries."""
    rows = n // 2
    A = np.zeros((rows, n))
    for row in A:
        row[rng.choice(n, min(n, 8), replace=False)] = rng.uniform(0.5, 1.5, min(n, 8))
    cost = rng.uniform(1.0, 2.0, n)
    x, b = cp.Variable(n), cp.Parameter(rows)
    problem = cp.Problem(cp.Minimize(cost @ x), [A @ x >= b, x >= LOWER_BOUND])
    return Family(problem, x, b, lambda batch: rng.uniform(1.0, 2.0, (batch, rows)), lambda _, x: x @ cost)


def make_risk(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the root of a covariance of n / 10 factors and noise, ``(factors + n, n)``."""
    factors = max(1, n // 10)
    return np.vstack([rng.normal(size=(factors, n)) / np.sqrt(factors), np.diag(rng.uniform(0.5, 1.0, n))])


def make_quadratic(n: int, rng: np.random.Generator) -> Family:
    """Make a quadratic program on the simplex."""
    root, (x, p) = make_risk(n, rng), (cp.Variable(n), cp.Parameter(n))
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(root @ x) + p @ x), [cp.sum(x) == 1, x >= LOWER_BOUND])
    return Family(
        problem,
        x,
        p,
        lambda batch: 0.3 * rng.normal(size=(batch, n)),
        lambda p, x: 0.5 * ((x @ root.T) ** 2).sum(1) + (p * x).sum(1),
    )


def make_portfolio(n: int, rng: np.random.Generator) -> Family:
    """Make a portfolio of n assets with a penalty on its standard deviation."""
    root, (x, mu) = make_risk(n, rng), (cp.Variable(n), cp.Parameter(n))
    problem = cp.Problem(cp.Minimize(-mu @ x + cp.norm(root @ x, 2)), [cp.sum(x) == 1, x >= LOWER_BOUND])
    return Family(
        problem,
        x,
        mu,
        lambda batch: 0.1 * rng.normal(size=(batch, n)),
        lambda mu, x: np.linalg.norm(x @ root.T, axis=1) - (mu * x).sum(1),
    )


# --- Layers -----------------------------------------------------------------------------------------------------------

Layer = Callable[[Tensor], Tensor]
"""Takes parameters ``(batch, parameters)`` and returns x ``(batch, n)``."""


def make_layer(method: str, family: Family, batch: int) -> Layer:
    """Make the layer of a method.

    Raises:
        ImportError: its package is not installed.
    """
    if method == "conelayers":
        ours = make_ours(family)
        return lambda parameters: ours(parameters)[0]
    if method == "Moreau":
        return make_moreau(family, batch)
    from cvxpylayers.torch import CvxpyLayer

    settings: dict[str, dict[str, Any]] = {
        "cvxpylayers": {},
        "cvxpylayers + Clarabel": {"solver_args": {"solve_method": "Clarabel"}},
        "cvxpylayers + Moreau": {"solver": "MOREAU"},
    }
    peer = CvxpyLayer(family.problem, parameters=[family.parameter], variables=[family.variable], **settings[method])
    return lambda parameters: peer(parameters)[0]


def make_ours(family: Family) -> ConeLayer:
    """Make our layer."""
    return ConeLayer(family.problem, parameters=[family.parameter], variables=[family.variable])


def make_moreau(family: Family, batch: int) -> Layer:
    """Make Moreau's own differentiable solver for the matrices of our compiled program, which items share."""
    import moreau
    from moreau.torch import Solver

    program = make_ours(family).program
    cones = moreau.Cones(
        num_zero_cones=program.cones.zero, num_nonneg_cones=program.cones.nonneg, so_cone_dims=list(program.cones.soc)
    )
    settings = moreau.Settings(solver="ipm", device="cpu", batch_size=batch, enable_grad=True)
    pattern = (program.P_indptr, program.P_indices, program.A_indptr, program.A_indices)
    solver = Solver(program.columns, program.rows, *pattern, cones, settings)
    slot = next(slot for slot in program.variables if slot.key == family.variable.id)

    def solve(parameters: Tensor) -> Tensor:
        values = program.values(parameters)
        solution = solver.solve(values.P[0], values.A[0], values.q.contiguous(), values.b.contiguous())
        return torch.atleast_2d(solution.x)[:, slot.offset : slot.offset + slot.size]

    return solve


# --- Times and errors -------------------------------------------------------------------------------------------------


def time_calls(call: Callable[[], Any]) -> float:
    """Return the median processor seconds of calls, up to a second in all, after one that is not counted."""
    call()
    seconds: list[float] = []
    while not seconds or sum(seconds) < 1.0:
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return median(seconds)


def differentiate(layer: Layer, parameters: Tensor, weight: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return x ``(batch, n)`` and the gradient of its weight in the parameters."""
    leaf = parameters.clone().requires_grad_()
    x = layer(leaf)
    (gradient,) = torch.autograd.grad((x * weight).sum(), leaf)
    return x.detach().numpy(), gradient.numpy()


@dataclass(frozen=True, eq=False)
class Reference:
    """Optimal values of Clarabel and our gradients, of the first items; ``verified`` says which have one."""

    values: np.ndarray
    gradient: np.ndarray
    verified: np.ndarray
    difference_error: float | None


def make_reference(family: Family, parameters: Tensor, weight: Tensor, n: int) -> Reference:
    """Solve the items by Clarabel at 1e-11, and differentiate them by our layer."""
    values, tolerances = [], dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    for row in parameters.numpy():
        family.parameter.value = row
        values.append(family.problem.solve(solver=cp.CLARABEL, **tolerances))
    layer, leaf = make_ours(family), parameters.clone().requires_grad_()
    result = layer.solve(leaf)
    (gradient,) = torch.autograd.grad((result[family.variable] * weight).sum(), leaf)
    verified = np.array([Derivative(int(code)).ok for code in result.derivative])
    error = None
    if n <= LARGEST_DIFFERENCE:
        direction = torch.from_numpy(np.random.default_rng(2).normal(size=parameters.shape))
        accurate = {"eps": 1e-12}
        ahead, behind = (
            (layer(parameters + step * direction, solver_args=accurate)[0] * weight).sum(1).numpy()
            for step in (DIFFERENCE_STEP, -DIFFERENCE_STEP)
        )
        slopes = (ahead - behind) / (2 * DIFFERENCE_STEP)
        error = relative_error((gradient * direction).sum(1).numpy()[verified], slopes[verified])
    return Reference(np.array(values), gradient.numpy(), verified, error)


def relative_error(ours: np.ndarray, reference: np.ndarray) -> float | None:
    """Return ‖ours - reference‖ / ‖reference‖, or None if there is nothing to compare."""
    size = float(np.linalg.norm(reference))
    return float(np.linalg.norm(ours - reference)) / size if size else None


def run_column(name: str, n: int, method: str, batches: list[int], first_estimate: float, budget: float) -> None:
    """Run the batches of one method, smallest first, and print each cell as a JSON line."""
    family = make_family(name, n)
    everything = torch.from_numpy(family.draw(max(BATCHES)))
    weights = torch.from_numpy(np.random.default_rng(1).normal(size=(max(BATCHES), n)))
    compared = make_reference(family, everything[:REFERENCE_ITEMS], weights[:REFERENCE_ITEMS], n)
    estimate = first_estimate
    for batch in batches:
        cell: dict[str, Any] = {"family": name, "n": n, "method": method, "batch": batch}
        if estimate > budget:
            print(json.dumps({**cell, "skipped": f"estimated {estimate:.0f} s"}), flush=True)
            continue
        # A new problem for each layer: see the module's docstring.
        cell |= run_cell(make_family(name, n), method, everything[:batch], weights[:batch], compared)
        print(json.dumps(cell), flush=True)
        estimate = GROWTH * cell["step"]


def run_cell(family: Family, method: str, parameters: Tensor, weight: Tensor, compared: Reference) -> dict[str, Any]:
    """Time one layer on one batch, and compare its first items with the reference."""
    layer = make_layer(method, family, len(parameters))
    x, gradient = differentiate(layer, parameters, weight)
    items = min(len(parameters), REFERENCE_ITEMS)
    values, reference = family.objective(parameters.numpy()[:items], x[:items]), compared.values[:items]
    verified = compared.verified[:items]
    gradient_error = relative_error(gradient[:items][verified], compared.gradient[:items][verified])
    return {
        "forward": time_calls(lambda: forward_only(layer, parameters)),
        "step": time_calls(lambda: differentiate(layer, parameters, weight)),
        "value_error": float(np.max(np.abs(values - reference) / np.abs(reference))),
        "gradient_error": compared.difference_error if method == "conelayers" else gradient_error,
        "verified": int(verified.sum()),
        "items": items,
    }


def forward_only(layer: Layer, parameters: Tensor) -> Tensor:
    """Solve without gradients."""
    with torch.no_grad():
        return layer(parameters)


# --- One process a column, tables -------------------------------------------------------------------------------------


def read_log(path: Path) -> dict[tuple[str, int, str, int], dict[str, Any]]:
    """Read the cells of the log by family, n, method and batch."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    cells = [json.loads(line) for line in lines if line.strip()]
    return {(cell["family"], cell["n"], cell["method"], cell["batch"]): cell for cell in cells}


def run_all(options: argparse.Namespace) -> None:
    """Run the cells that the log lacks."""
    for name in options.only:
        for method in options.methods:
            for n in sorted(options.sizes):
                cells = read_log(options.log)
                missing = [batch for batch in sorted(options.batches) if (name, n, method, batch) not in cells]
                if missing:
                    run_process(name, n, method, missing, estimate_cell(cells, name, n, method, missing[0]), options)


def estimate_cell(cells: dict[Any, dict[str, Any]], name: str, n: int, method: str, batch: int) -> float:
    """Estimate the seconds of a cell from the next smaller batch or the next smaller program; 0 if there is neither."""
    smaller = [(n, b) for b in BATCHES if b < batch][-1:] + [(size, batch) for size in SIZES if size < n][-1:]
    known = [cells[name, size, method, b] for size, b in smaller if (name, size, method, b) in cells]
    return max((GROWTH * cell.get("step", np.inf) for cell in known), default=0.0)


def run_process(
    name: str, n: int, method: str, batches: list[int], estimate: float, options: argparse.Namespace
) -> None:
    """Run a column in a separate process and append its cells to the log, with an error for those that are lost."""
    column = json.dumps([name, n, method, batches, min(estimate, 1e9)])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--seconds", str(options.seconds), "--column", column]
    timeout = 300 + 10 * options.seconds
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | threads
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += f"\nstopped after {timeout:.0f} s"
    cells = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if process.returncode and "ModuleNotFoundError" in errors:
        print(f"{method} is not installed: pip install cvxpylayers diffcp moreau")
        return
    if process.returncode and len(cells) < len(batches):
        message = (errors.strip().splitlines() or [f"signal {-process.returncode}"])[-1][:200]
        lost = {"family": name, "n": n, "method": method}
        cells += [{**lost, "batch": batch, "error": message} for batch in batches[len(cells) :]]
    with options.log.open("a", encoding="utf-8") as log:
        log.writelines(json.dumps(cell) + "\n" for cell in cells)
    done = ", ".join(f"{cell['batch']}: {describe_cell(cell)}" for cell in cells)
    print(f"{name} n={n} {method}: {done}", flush=True)


def describe_cell(cell: dict[str, Any] | None) -> str:
    """Return milliseconds forward / forward + backward, and the errors of value and gradient."""
    if cell is None or "skipped" in cell:
        return "-"
    if "error" in cell:
        return "error"
    gradient = "" if cell["gradient_error"] is None else f"{cell['gradient_error']:.0e}"
    return f"{1e3 * cell['forward']:.3g} / {1e3 * cell['step']:.3g} ({cell['value_error']:.0e}, {gradient})"


def print_tables(options: argparse.Namespace) -> None:
    """Print one table for each family, a row for each size and batch."""
    cells = read_log(options.log)
    print("\nProcessor milliseconds, all threads: forward / forward + backward (error of value, of gradient).")
    print("x >= -1e-9 stands for x >= 0 in all problems, since cvxpylayers 1.2 with Moreau 0.4.1 drops x >= 0.")
    for name in FAMILIES:
        rows = sorted({(n, batch) for family, n, _, batch in cells if family == name})
        if not rows:
            continue
        print(f"\n{name}\n\n| n | batch | " + " | ".join(METHODS) + " |\n" + "|---" * (2 + len(METHODS)) + "|")
        for n, batch in rows:
            texts = [describe_cell(cells.get((name, n, method, batch))) for method in METHODS]
            print(f"| {n} | {batch} | " + " | ".join(texts) + " |")
    errors = sorted({(key[2], cell["error"]) for key, cell in cells.items() if "error" in cell})
    for method, message in errors:
        print(f"error of {method}: {message}")


def main() -> None:
    """Run what the log lacks, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="estimated seconds beyond which a cell is skipped")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--print", action="store_true", help="print the tables of the log without running anything")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--column", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.column:
        warnings.simplefilter("ignore")
        space = int(GIGABYTES * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        name, n, method, batches, estimate = json.loads(options.column)
        run_column(name, n, method, batches, estimate, options.seconds)
        return
    if not options.print:
        run_all(options)
    print_tables(options)


if __name__ == "__main__":
    main()

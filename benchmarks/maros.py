"""The quadratic programs of Maros and Meszaros: values, statuses and gradients of ``ConeLayer``, beside Clarabel.

    python benchmarks/maros.py FOLDER [--only NAME ...] [--largest NONZEROS] [--seconds 100] [--gigabytes 8]
    python benchmarks/maros.py                      # print the tables of the log again

FOLDER holds the ``.mat`` files of the public repository qpsolvers/maros_meszaros_qpbenchmark (fields P, q, r, A, l, u:
minimise ½xᵀPx + qᵀx + r subject to l <= Ax <= u). Every problem runs in a separate process, smallest first, within
``--seconds`` of processor time (solve and gradients each) and ``--gigabytes`` of memory. The log is
``benchmarks/figures/maros.jsonl``, one line a problem; a problem in the log is not run again: delete its line first.

Outcomes, of a value v with the optimum v*, both with the constant r:

* right: |v - v*| <= 1e-6 (1 + |v*|).
* reported: not right, but within what the status promises. OPTIMAL promises 1e-7 and INACCURATE 1e-4 of v* - r, since
  the layer solves the problem without r.
* WRONG: beyond what the status promises; INFEASIBLE and UNBOUNDED are wrong, since every problem has an optimum.
* FAILED: no value, or stopped by the limits.
* disputed: Clarabel is solved and agrees with the layer to 1e-6 (1 + |v|), but the published optimum does not.

v* is the published optimum (``maros_optima.csv``). The files round r to six digits in 14 problems, and the optimum with
it. There v* is Clarabel's value if Clarabel is solved and rounding explains the difference to the published value.

Residuals and gradients are described in ``maros_one.py``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.maros_one import read_problem

HERE = Path(__file__).resolve().parent
LOG = HERE / "figures" / "maros.jsonl"
OPTIMA = HERE / "maros_optima.csv"

RIGHT_REL = 1e-6
"""Error of a right value, relative to one plus the optimum."""

PROMISES = {"OPTIMAL": 1e-7, "INACCURATE": 1e-4}
"""Relative error that a status promises at most; the advice of ``conelayers.Status`` states both."""


# --- One process a problem --------------------------------------------------------------------------------------------


def read_optima() -> dict[str, float]:
    """Read the published optimal values by name."""
    lines = [line for line in OPTIMA.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {row["name"]: float(row["optimum"]) for row in csv.DictReader(lines)}


def run_problem(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run each solver in a separate process; return the line of the log."""
    problem = read_problem(path)
    record: dict[str, Any] = {
        "name": problem.name,
        "columns": problem.q.size,
        "rows": problem.A.shape[0],
        "nonzeros": problem.nonzeros,
        "constant": problem.constant,
        "optimum": read_optima().get(problem.name),
    }
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    for solver in ("clarabel", "ours"):
        command = [sys.executable, str(HERE / "maros_one.py"), str(path), "--solver", solver]
        command += ["--seconds", str(options.seconds), "--gigabytes", str(options.gigabytes)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | threads
        )
        stopped = None
        try:
            # Processor time is limited by the process itself; this stops one that waits.
            output, errors = process.communicate(timeout=10 * options.seconds + 300)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            stopped = "waits"
        for line in output.splitlines():
            if line.startswith("{"):
                record |= json.loads(line)
        if process.returncode:
            record.setdefault("stopped", {})[solver] = stopped or describe_end(process.returncode, errors)
    return record


def describe_end(returncode: int, errors: str) -> str:
    """Say in a few words why a process ended early."""
    if returncode == -signal.SIGXCPU:
        return "time"
    if "MemoryError" in errors or "memory" in errors.lower() or "alloc" in errors.lower():
        return "memory"
    return errors.strip().splitlines()[-1][:200] if errors.strip() else f"signal {-returncode}"


# --- Tables -----------------------------------------------------------------------------------------------------------


def constant_rounding(constant: float) -> float:
    """Return half a unit of the sixth digit, if the constant has six: the files round to so many."""
    digits = f"{abs(constant):.15g}".replace(".", "").strip("0")
    if constant == int(constant) or len(digits) < 6:
        return 0.0
    return 0.5 * 10.0 ** (np.floor(np.log10(abs(constant))) - 5)


def solved_by_clarabel(record: Mapping[str, Any]) -> bool:
    """Return whether Clarabel reports that it reached its tolerance."""
    return record.get("clarabel", {}).get("status") == "Solved"


def reference_value(record: Mapping[str, Any]) -> tuple[float, str]:
    """Return the optimum that values are compared with, and its source."""
    published, rounding = record["optimum"], constant_rounding(record["constant"])
    if rounding and solved_by_clarabel(record):
        value = record["clarabel"]["value"]
        if abs(value - published) <= rounding + RIGHT_REL * (1 + abs(published)):
            return value, "Clarabel"
    return published, "published"


def judge(record: Mapping[str, Any]) -> str:
    """Return the outcome of a record; see the module's docstring."""
    ours = record.get("ours", {})
    status, value = ours.get("status", "FAILED"), ours.get("value", np.nan)
    if status not in PROMISES:
        return "FAILED" if status == "FAILED" else "WRONG"
    optimum, _ = reference_value(record)
    margin = RIGHT_REL * (1 + abs(optimum))
    error = abs(value - optimum)
    if error <= margin:
        return "right"
    if error <= PROMISES[status] * abs(optimum - record["constant"]):
        return "reported"
    agree = solved_by_clarabel(record) and abs(value - record["clarabel"]["value"]) <= RIGHT_REL * (1 + abs(value))
    return "disputed" if agree else "WRONG"


def print_tables(records: list[dict[str, Any]]) -> None:
    """Print counts and a table of every problem that is not right."""
    outcomes = {record["name"]: judge(record) for record in records}
    total = Counter(outcomes.values())
    statuses = Counter(r["ours"]["status"] for r in records if outcomes[r["name"]] == "reported")
    failed_alone = sum(outcomes[r["name"]] == "FAILED" and solved_by_clarabel(r) for r in records)
    print(
        f"\n{len(records)} problems: "
        + ", ".join(f"{total[o]} {o}" for o in ("right", "reported", "WRONG", "FAILED", "disputed"))
    )
    print("reported by status: " + (", ".join(f"{n} {s}" for s, n in statuses.items()) or "none"))
    print(f"FAILED where Clarabel is solved: {failed_alone}")
    print_seconds(records)
    print_gradients(records)
    rows = [[outcomes[record["name"]], *describe(record)] for record in records if outcomes[record["name"]] != "right"]
    if rows:
        head = ["outcome", "problem", "status", "ours", "Clarabel", "its status", "published", "reference", "error"]
        print_table([*head, "primal", "dual", "gap", "support", "stopped"], rows)


def print_seconds(records: list[dict[str, Any]]) -> None:
    """Print processor seconds of the problems that both solvers solved."""
    both = [r for r in records if judge(r) == "right" and solved_by_clarabel(r)]
    for name, part in (
        ("below 10,000 nonzeros", [r for r in both if r["nonzeros"] < 10_000]),
        ("from 10,000 nonzeros", [r for r in both if r["nonzeros"] >= 10_000]),
    ):
        if part:
            ours, theirs = (sum(r[key]["seconds"] for r in part) for key in ("ours", "clarabel"))
            print(f"seconds, {len(part)} right ones {name}: ours {ours:.2f}, Clarabel {theirs:.2f}")


def print_gradients(records: list[dict[str, Any]]) -> None:
    """Print counts of derivatives along directions, and every wrong or masked one."""
    names = ("right", "wrong", "masked", "unstable")
    examined = [r for r in records if "outcomes" in r.get("gradients", {})]
    for target in ("value", "decision"):
        counts = sum((Counter(r["gradients"]["outcomes"][target]) for r in examined), Counter())
        print(f"gradients of the {target}: " + ", ".join(f"{counts[n]} {n}" for n in names))
    rows = [
        [
            *(r["name"], r["gradients"]["derivative"], e["outcome"], e["target"], e["parameter"], f"{e['ours']:.6g}"),
            " ".join(f"{d:.6g}" for d in e["differences"]),
        ]
        for r in examined
        for e in r["gradients"]["wrong"]
    ]
    if rows:
        print_table(["problem", "derivative", "outcome", "of", "along", "ours", "differences by step"], rows)


def describe(record: Mapping[str, Any]) -> list[str]:
    """Return the cells of a problem that is not right."""
    ours, peer = record.get("ours", {}), record.get("clarabel", {})
    optimum, source = reference_value(record)
    error = abs(ours.get("value", np.nan) - optimum) / (1 + abs(optimum))
    stopped = ", ".join(f"{solver}: {why}" for solver, why in record.get("stopped", {}).items())
    return [
        record["name"],
        ours.get("status", "-"),
        *(f"{v:.9g}" for v in (ours.get("value", np.nan), peer.get("value", np.nan))),
        peer.get("status", "-"),
        f"{record['optimum']:.9g}",
        source,
        f"{error:.1e}",
        *(f"{ours.get(key, np.nan):.1e}" for key in ("primal", "dual", "gap", "support")),
        stopped,
    ]


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print()
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")
    print()


# --- Command line -----------------------------------------------------------------------------------------------------


def read_log(path: Path = LOG) -> list[dict[str, Any]]:
    """Read the records of the log, smallest problem first."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return sorted((json.loads(line) for line in lines if line.strip()), key=lambda record: record["nonzeros"])


def run_folder(options: argparse.Namespace) -> None:
    """Run every problem of the folder that is not in the log."""
    done = {record["name"] for record in read_log(options.log)}
    paths = [path for path in options.folder.glob("*.mat") if not options.only or path.stem in options.only]
    sizes = {path: read_problem(path).nonzeros for path in paths if path.stem not in done}
    for path in sorted(sizes, key=lambda path: (sizes[path], path.stem)):
        if sizes[path] > options.largest:
            continue
        record = run_problem(path, options)
        with options.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
        ours, peer = record.get("ours", {}), record.get("clarabel", {})
        print(
            f"{record['name']:10} {record['nonzeros']:8,} {judge(record):8} {ours.get('status', '-'):10} "
            f"{ours.get('seconds', np.nan):8.2f} s, Clarabel {peer.get('seconds', np.nan):8.2f} s "
            f"{record.get('stopped', '')}",
            flush=True,
        )


def main() -> None:
    """Run what the log lacks, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="the .mat files; without it the log is printed")
    parser.add_argument("--only", nargs="+", default=[], help="names of problems")
    parser.add_argument("--largest", type=int, default=sys.maxsize, help="nonzeros of P and A up to which to run")
    parser.add_argument("--seconds", type=float, default=100.0, help="processor seconds a problem and solver")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="address space a problem and solver")
    parser.add_argument("--log", type=Path, default=LOG)
    options = parser.parse_args()
    if options.folder:
        run_folder(options)
    print_tables(read_log(options.log))


if __name__ == "__main__":
    main()

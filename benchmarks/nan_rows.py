"""Rows of later data that default learners leave without a decision, on real demand.

    python benchmarks/nan_rows.py DATA_FOLDER      36 fits, 9 to 60 s each on one core

DATA_FOLDER holds ``yaz.csv.gz`` and ``bakery.csv.gz`` (from the package ddop). A newsvendor orders one product: steak
of the restaurant, product 101 of five bakery stores. Its learner has default settings, and is trained on the first 100
or 300 days. It decides for the next 300 days, at critical ratios of 0.75, 0.9 and 0.95. The year and the demand of a
week before are covariates, so that later contexts leave the range seen in training.

Every fit is one line of ``benchmarks/figures/nan_rows.csv``; fits that are there already are not repeated.
"""

from __future__ import annotations

import csv
import gzip
import sys
import time
import warnings
from pathlib import Path

import cvxpy as cp
import numpy as np

import drolayers as dro

LOG = Path(__file__).parent / "figures" / "nan_rows.csv"
FIELDS = ("data", "rows", "ratio", "undecided", "clipped", "cost", "seconds")
RATIOS = (0.75, 0.9, 0.95)
COUNTS = (100, 300)
LATER = 300
"""Days to decide for, after those of training."""
STORES = 5
WEEK = 7

Series = tuple[np.ndarray, np.ndarray]


def read(path: Path) -> list[dict[str, str]]:
    """Read a table, a dict a row."""
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def series(table: list[dict[str, str]], target: str) -> Series:
    """Make covariates ``(day, column)`` and demand ``(day, 1)``: calendar, weather, and demand a week before."""
    demand = np.array([float(row[target]) for row in table])
    columns = []
    for name in table[0]:
        values = [row[name] for row in table]
        if name in ("weekday", "month"):
            columns += [[float(value == one) for value in values] for one in sorted(set(values))]
        elif name.startswith(("is_", "promotion")) or name in (
            "year",
            "weekend",
            "wind",
            "clouds",
            "rain",
            "sunshine",
            "temperature",
        ):
            columns.append([float(value) for value in values])
    Z = np.column_stack([np.array(columns).T[WEEK:], demand[:-WEEK]])
    return Z, demand[WEEK:, None]


def demands(folder: Path) -> dict[str, Series]:
    """Read all series by name."""
    found = {"yaz steak": series(read(folder / "yaz.csv.gz"), "steak")}
    bakery = read(folder / "bakery.csv.gz")
    for store in sorted({row["store"] for row in bakery}, key=int)[:STORES]:
        table = sorted((row for row in bakery if row["store"] == store), key=lambda row: row["date"])
        found[f"bakery {store}"] = series(table, "demand_101")
    return found


def fit(data: Series, rows: int, ratio: float) -> dict[str, float]:
    """Fit a default learner and count later rows without a decision."""
    Z, Y = data
    y, order = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(1, nonneg=True)
    cost = cp.sum(ratio * cp.pos(y - order) + (1.0 - ratio) * cp.pos(order - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    start = time.perf_counter()
    learner = dro.DecisionFocusedLearner(problem, trainer=dro.Trainer(progress=False)).fit(Z[:rows], Y[:rows])
    seconds, later = time.perf_counter() - start, slice(rows, rows + LATER)
    decision = learner.decision(Z[later])
    outside = (Z[later] < Z[:rows].min(0)) | (Z[later] > Z[:rows].max(0))
    return {
        "undecided": int((~decision.ok).sum()),
        "clipped": round(float(outside.any(1).mean()), 3),
        "cost": round(learner.loss(Z[later], Y[later]), 4),
        "seconds": round(seconds, 1),
    }


def main(folder: Path) -> None:
    """Run the fits that are missing and print all of them."""
    done = []
    if LOG.exists():
        with LOG.open() as file:
            done = list(csv.DictReader(file))
    seen = {(row["data"], int(row["rows"]), float(row["ratio"])) for row in done}
    for name, data in demands(folder).items():
        for rows in COUNTS:
            for ratio in RATIOS:
                if (name, rows, ratio) in seen:
                    continue
                line = {"data": name, "rows": rows, "ratio": ratio} | fit(data, rows, ratio)
                new = not LOG.exists()
                with LOG.open("a", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    if new:
                        writer.writeheader()
                    writer.writerow(line)
                print(line, flush=True)
                done.append({key: str(value) for key, value in line.items()})
    print(f"{'data':<12}{'rows':>6}{'ratio':>7}{'undecided':>11}{'clipped':>9}{'cost':>10}{'seconds':>9}")
    for row in done:
        print(
            f"{row['data']:<12}{row['rows']:>6}{row['ratio']:>7}{row['undecided']:>11}"
            f"{float(row['clipped']):>9.1%}{float(row['cost']):>10.3f}{float(row['seconds']):>9.1f}"
        )
    print(f"Rows without a decision, all fits: {sum(int(row['undecided']) for row in done)}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))

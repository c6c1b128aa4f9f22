"""Known data over all sets, supports and costs of the tests, or every k-th triple: values and gradients.

    python benchmarks/sweep_known.py [--every 40] [--seed 0]

Each triple is checked as in tests/test_known.py: the value of every item against a problem that was built with its
numbers as constants, the worst-case cost and distribution, and gradients in known data against central differences.
Failures are printed with their names; all triples take about two hours on one core. Decision rules under balls on
unbounded supports are UNBOUNDED, with constants too.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ambiguity.sets import SETS
from tests.known import COSTS, fits
from tests.reformulation.problems import SUPPORTS
from tests.test_known import check_gradients, name, test_the_same_as_with_constants


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="which of the triples come first")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for row in product(SETS, SUPPORTS, COSTS) if fits(row[1], row[2])][
        options.seed % options.every :: options.every
    ]
    start, failed = time.perf_counter(), 0
    for row in rows:
        for check in (test_the_same_as_with_constants, check_gradients):
            try:
                check(row)
            except Exception as error:
                failed += 1
                print(f"{check.__name__}: {name(row)}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print(f"{len(rows)} triples, {failed} failures, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

"""Every set, support and cost of the tests in other units: how many answers follow, are flagged, or are silently wrong.

    python benchmarks/units.py                                  # one problem in 29, at four sizes: 3 minutes
    python benchmarks/units.py --every 1 --powers $(seq -6 6)   # the whole product: hours

The reference is the same item in the units of the tables, where the certificates of the tests prove it. An item is
right (value to 1e-6, gradients to 1e-4), failed (it says so), inaccurate within its promise (value to 1e-4), or wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import drolayers as dro
from tests.ambiguity.sets import SETS
from tests.reformulation.problems import COSTS, SUPPORTS, fits
from tests.units import CHANGES, compare, reference, rescaled

OUTCOMES = {
    "right": "right",
    "flagged: failed": "failed",
    "flagged: inaccurate": "inaccurate",
    "wrong value": "value",
    "wrong status": "status",
    "wrong gradient of the value": "value grad",
    "wrong gradient of the decision": "decision grad",
    "refused": "refused",
}


def table(title: str, counts: dict[str, Counter[str]]) -> None:
    """One line a kind; what is wrong stands behind the bar."""
    heads = [f"{head:>14}" + (" |" if head == "inaccurate" else "") for head in OUTCOMES.values()]
    print(f"\n{title:<34}" + "".join(heads))
    for kind, count in counts.items():
        cells = [f"{count[name]:14d}" + (" |" if name == "flagged: inaccurate" else "") for name in OUTCOMES]
        print(f"{kind:<34}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--powers", type=float, nargs="+", default=[-6, -3, 3, 6])
    parser.add_argument("--changes", nargs="+", choices=list(CHANGES), default=list(CHANGES))
    parser.add_argument("--every", type=int, default=29, help="take every n-th problem of the product")
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem")
    parser.add_argument("--items", type=int, default=2, help="items of each problem")
    parser.add_argument("--quiet", action="store_true", help="do not list what is wrong")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # flat and masked gradients
    problems = [(a, b, c) for a in SETS for b in SUPPORTS for c in COSTS if fits(b, c)]
    chosen = problems[options.first :: options.every]
    axes = ("set", "support", "cost", "change and power")
    counts: dict[str, dict[str, Counter[str]]] = {axis: {} for axis in axes}
    total: Counter[str] = Counter()
    start, clock = time.process_time(), time.perf_counter()
    for done, row in enumerate(chosen, 1):
        known = reference(*row, options.items)
        for change in options.changes:
            for k in options.powers:
                try:
                    found = rescaled(*row, CHANGES[change](k)).answer(options.items)
                    verdicts = [(v.outcome, v) for v in compare(found, known)]
                except dro.DROError as error:
                    verdicts = [("refused", error)] * options.items
                where = f"{change} 1e{k:+g}"
                for outcome, verdict in verdicts:
                    total[outcome] += 1
                    for axis, kind in zip(axes, (*(part.name for part in row), where), strict=True):
                        counts[axis].setdefault(kind, Counter())[outcome] += 1
                    if not options.quiet and (outcome.startswith("wrong") or outcome == "refused"):
                        print(f"{' | '.join(part.name for part in row)} | {where}: {verdict}", flush=True)
        left = (time.perf_counter() - clock) / done * (len(chosen) - done)
        print(f"\r{done} of {len(chosen)} problems, {left:.0f} s left   ", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    for axis, kinds in counts.items():
        table(axis, kinds)
    table("all", {"all": total})
    wrong = sum(count for outcome, count in total.items() if outcome.startswith("wrong"))
    print(
        f"\n{len(chosen)} of {len(problems)} problems, {sum(total.values())} items, {wrong} of them wrong without "
        f"saying so; {time.process_time() - start:.0f} processor seconds"
    )


if __name__ == "__main__":
    main()

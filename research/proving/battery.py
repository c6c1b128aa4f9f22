"""The battery of Yeh et al.: calibrated sets on real prices, beside the published figures.

    python -m research prove battery --data path/to/battery.npz --jobs 2 --out runs/battery

Their protocol: prices standardised by all days, the last fifth of the days for the test, a fifth of the others for
calibration, ten draws of that; "no shift" permutes the days first, "shifted" keeps them in time. Methods are those of
``calibrated.py``.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from research.experiments.task import Outcome, Task
from research.problems.battery import Battery, days, prices
from research.proving import calibrated
from research.proving.yeh import BATTERY, published

SPLITS = ("no shift", "shifted")
PUBLISHED = published(BATTERY)
OWN = calibrated.OWN


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every method, split and level."""
    return calibrated.tasks("battery", [(("split", split),) for split in SPLITS], seeds, quick)


def run(task: Task, work: Path, data: Path) -> Outcome:
    """One method on one draw."""
    warnings.simplefilter("ignore")
    X, Y, mean, deviation = prices(data)
    split = days(X, Y, task.columns["split"] == "shifted", task.seed)
    build = lambda ambiguity: Battery(mean, deviation, ambiguity).problem  # noqa: E731
    return calibrated.run(task, build, split, work.parent.parent / "fitted")

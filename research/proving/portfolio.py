"""The synthetic portfolio of Yeh et al.: calibrated sets on their draws, beside the published figures.

    python -m research prove portfolio --jobs 2 --out runs/portfolio

Their protocol: 600 points for training, 400 for calibration, 1,000 for the test, returns standardised by all of them,
seeds 0 to 9 (``research/problems/mixture.py`` has the data). They stop training by the loss on the points for
calibration; here these see nothing but the calibration. Methods are those of ``calibrated.py``; "true mean" knows the
distribution, and no policy has a smaller expected loss.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from research.experiments.task import Outcome, Task
from research.problems import mixture
from research.proving import calibrated
from research.proving.yeh import PORTFOLIO, published

TRUTH = "true mean"
PUBLISHED = published(PORTFOLIO)
OWN = calibrated.OWN


def tasks(seeds: int, quick: bool = False) -> list[Task]:
    """Every method and level."""
    known = [Task("portfolio", "published", TRUTH, (), seed) for seed in range(seeds)]
    return known + calibrated.tasks("portfolio", [()], seeds, quick)


def run(task: Task, work: Path) -> Outcome:
    """One method on one draw."""
    warnings.simplefilter("ignore")
    split, mean, deviation = mixture.returns(task.seed)
    if task.method != TRUTH:
        build = lambda ambiguity: mixture.investing(mean, deviation, ambiguity)  # noqa: E731
        return calibrated.run(task, build, split, work.parent.parent / "fitted")
    Z, Y = split.test
    chosen = mixture.conditional_mean(Z).argmax(1)
    return Outcome(calibrated.judged(TRUTH, -(Y * deviation + mean)[range(len(Z)), chosen]))

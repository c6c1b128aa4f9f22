"""Tables 1 and 2: the mixed-integer portfolio by number of assets, and by number of deviation bounds.

A fifth of the assets, the first, are bought in lots of 1/n or not at all. Table 2 has 60 assets, whose squared
deviations are bounded in groups of 4, 2 and 1: 15, 30 and 60 bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from research.experiments.learn import Policy, fit_both, known, reference_protocol, seed_range, settings_of, trained
from research.experiments.portfolio import BASELINES, SIZES, baseline, reference, score_rows
from research.experiments.protocols import PROTOCOLS as SETTINGS
from research.experiments.task import Outcome, Task
from research.problems import Portfolio, PortfolioData

PROBLEMS = ((20, 1), (40, 1), (60, 1), (60, 2), (60, 4))
"""Assets, and how many of them share a bound."""
PAPER = {
    (20, 1): {"decision-focused": 0.1561, "prediction-focused": 0.0583},
    (40, 1): {"decision-focused": 0.1763, "prediction-focused": 0.0634},
    (60, 1): {"decision-focused": 0.2145, "prediction-focused": 0.0479},
    (60, 2): {"decision-focused": 0.1349, "prediction-focused": 0.0491},
    (60, 4): {"decision-focused": 0.0762, "prediction-focused": 0.0357},
}
REFERENCES = ("equal weights", "Bayes-optimal", "hindsight")


def tasks(quick: bool, seeds: int | range, protocols: Sequence[str]) -> list[Task]:
    """Sets for every problem; mean prediction and references for every number of assets."""
    problems = ((20, 1), (20, 4)) if quick else PROBLEMS
    settings = {problem: (("assets", problem[0]), ("group", problem[1])) for problem in problems}
    # What has no set does not depend on the group.
    alone = [setting for (_, group), setting in settings.items() if group == 1]
    found = [Task("mixed", reference_protocol(quick), "references", setting, 0, "1") for setting in alone]
    for protocol in known("mixed", quick, protocols):
        means = SETTINGS["mixed"][protocol].baselines
        every = [("sets", setting) for setting in settings.values()]
        every += [(name, setting) for name in means for setting in alone]
        found += [
            trained("mixed", protocol, method, setting, seed) for method, setting in every for seed in seed_range(seeds)
        ]
    return found


def run(task: Task, work: Path) -> Outcome:
    """Train one family of methods and score it."""
    assets, group = int(task.columns["assets"]), int(task.columns["group"])
    built = Portfolio(assets, assets // 5, group)
    training, validation, test = PortfolioData.generate(assets).split(*SIZES)
    if task.method == "references":
        return Outcome([r for n in REFERENCES for r in score_rows(n, reference(n, built, test), test.Y)])
    settings, data = settings_of(task), ((training.Z, training.Y), (validation.Z, validation.Y))
    if task.method == "sets":
        policies: dict[str, Policy] = dict(fit_both(built.problem, *data, settings, task.seed, work))
    else:
        policy = baseline(task.method, built, settings, task.seed)
        policies = {BASELINES[task.method]: policy.fit(*data[0], validation=data[1])}
    return Outcome(
        [r for name, p in policies.items() for r in score_rows(name, built.weights(p.decide(test.Z)), test.Y)]
    )

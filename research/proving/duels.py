"""Who wins: one method against the others, paired by seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from research.experiments.task import Row
from research.proving.figures import SCORES, columns

Seeds = dict[int, float]
"""Figures by seed."""
WORDS = ("won", "tied", "lost")


class Duel(NamedTuple):
    """A difference, paired by seeds; less is better.

    Args:
        seeds: how many both have.
        mean: of the differences.
        error: its standard error.
    """

    seeds: int
    mean: float
    error: float

    @property
    def word(self) -> str:
        """Tied within two standard errors."""
        return WORDS[1 if abs(self.mean) <= 2 * self.error else 0 if self.mean < 0 else 2]


def duel(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Duel | None:
    """One setting's; none where fewer than two seeds are common."""
    gaps = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    return Duel(len(gaps), fmean(gaps), stdev(gaps) / sqrt(len(gaps))) if len(gaps) > 1 else None


def duels(rows: Sequence[Row], reference: str, own: Sequence[str] = ()) -> str:
    """In how many settings the reference wins, ties and loses against every other method; nothing without one.

    Methods of its own are also counted together: against the one of them that is the best in a setting.
    """
    parts = []
    for metric, found in by_metric(rows).items():
        ours, lines = found.get(reference, {}), []
        rivals = {name: theirs for name, theirs in found.items() if name != reference}
        several = [name for name in own if name in rivals]
        if len(several) > 1:
            rivals["the best of " + ", ".join(several)] = best_of(found, several, reference)
        for method, theirs in rivals.items():
            gaps = [duel(ours[setting], theirs[setting]) for setting in ours.keys() & theirs.keys()]
            words = [gap.word for gap in gaps if gap]
            if words:
                lines.append(" | ".join(["", method, *(str(words.count(word)) for word in WORDS), ""]).strip())
        if lines:
            counted = f"**Settings that {reference} wins, ties and loses by {metric}**"
            told = f"{counted} (ties: paired differences within two standard errors)"
            parts.append("\n".join([told, "", "| against | wins | ties | losses |", "|---|---|---|---|", *lines]))
    return "\n\n".join(parts)


def by_setting(rows: Sequence[Row], reference: str, own: Sequence[str]) -> str:
    """The reference beside methods of its own, setting by setting, and its difference from the best of them."""
    parts = []
    for metric, found in by_metric(rows).items():
        several = [name for name in own if name in found]
        if reference not in found or not several:
            continue
        best, names = best_of(found, several, reference), columns(rows)
        lines = [" | ".join(["", *names, reference, *several, "draws", "less the best of them", "", ""]).strip()]
        lines.append("|" + "---|" * (len(names) + len(several) + 4))
        for setting, theirs in sorted(best.items()):
            if gap := duel(found[reference][setting], theirs):
                # All on the draws of the difference.
                figures = [found[name].get(setting) for name in (reference, *several)]
                told = ["" if one is None else f"{fmean(one[seed] for seed in theirs):.3g}" for one in figures]
                cells = [*setting, *told, str(gap.seeds), f"{gap.mean:+.1e} ± {gap.error:.0e}", gap.word]
                lines.append(" | ".join(["", *cells, ""]).strip())
        parts.append("\n".join([f"**{metric}, setting by setting**", "", *lines]))
    return "\n\n".join(parts)


def by_metric(rows: Sequence[Row]) -> dict[str, dict[str, dict[tuple[str, ...], Seeds]]]:
    """Figures that are scored, by metric, method, setting and seed."""
    names = columns(rows)
    found: dict[str, dict[str, dict[tuple[str, ...], Seeds]]] = {}
    for r in (r for r in rows if r["metric"] in SCORES):
        setting = tuple(str(r[name]) for name in names)
        methods = found.setdefault(str(r["metric"]), {})
        methods.setdefault(str(r["method"]), {}).setdefault(setting, {})[int(r["seed"])] = float(r["value"])
    return found


def best_of(
    found: Mapping[str, Mapping[tuple[str, ...], Seeds]], names: Sequence[str], reference: str
) -> dict[tuple[str, ...], Seeds]:
    """Of some methods the best one's figures in every setting, on draws that all of them and the reference have.

    Other draws are easier or harder.
    """
    best = {}
    for setting, ours in found.get(reference, {}).items():
        several = [found[name][setting] for name in names if setting in found[name]]
        common = set(ours).intersection(*several)
        if several and common:
            best[setting] = min(({seed: one[seed] for seed in common} for one in several), key=_mean)
    return best


def _mean(figures: Seeds) -> float:
    """Of figures by seed."""
    return fmean(figures.values())

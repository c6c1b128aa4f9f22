"""Who wins: one method against the others, paired by seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from research.experiments.task import Row
from research.proving.figures import SCORES, columns


def duels(rows: Sequence[Row], reference: str, own: Sequence[str] = ()) -> str:
    """In how many settings the reference wins, ties and loses against every other method; nothing without one.

    A setting is a tie where the difference, paired by seeds, is within two of its standard errors. Settings that have
    fewer than two seeds in common are left out. Some methods may also be counted together: against the one of them that
    is the best in a setting.
    """
    names, parts = columns(rows), []
    for metric in (m for m in SCORES if any(r["metric"] == m for r in rows)):
        found: dict[str, dict[tuple[str, ...], dict[Any, float]]] = {}
        for r in (r for r in rows if r["metric"] == metric):
            setting = tuple(str(r[name]) for name in names)
            found.setdefault(str(r["method"]), {}).setdefault(setting, {})[r["seed"]] = float(r["value"])
        ours, lines = found.pop(reference, {}), []
        rivals = dict(found)
        if all(name in found for name in own) and own:
            together = {setting for name in own for setting in found[name]}
            best: dict[tuple[str, ...], dict[Any, float]] = {}
            for setting in together & ours.keys():
                several = [found[name][setting] for name in own if setting in found[name]]
                # On draws that all of them have: others are easier or harder.
                common = set(ours[setting]).intersection(*several)
                figures = [{seed: one[seed] for seed in common} for one in several]
                best[setting] = min(figures, key=_mean) if common else {}
            rivals["the best of " + ", ".join(own)] = best
        for method, theirs in rivals.items():
            counts = [0, 0, 0]
            for setting in ours.keys() & theirs.keys():
                mine, other = ours[setting], theirs[setting]
                gaps = [mine[seed] - other[seed] for seed in mine.keys() & other.keys()]
                if len(gaps) > 1:
                    error = stdev(gaps) / sqrt(len(gaps))
                    counts[1 if abs(fmean(gaps)) <= 2 * error else 0 if fmean(gaps) < 0 else 2] += 1
            if any(counts):
                lines.append(f"| {method} | {counts[0]} | {counts[1]} | {counts[2]} |")
        if lines:
            told = (
                f"**Settings that {reference} wins, ties and loses by {metric}** (ties: paired differences within two"
            )
            header = ["| against | wins | ties | losses |", "|---|---|---|---|"]
            parts.append("\n".join([f"{told} standard errors)", "", *header, *lines]))
    return "\n\n".join(parts)


def _mean(values: dict[Any, float]) -> float:
    """Of figures by seed."""
    return fmean(values.values())

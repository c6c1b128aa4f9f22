"""Who is better than whom over a whole grid: means by part of it, and wins, ties and losses of one and the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev

from research.experiments.task import Row

Draws = dict[tuple[str, ...], dict[int, dict[str, float]]]


def verdicts(rows: Sequence[Row], names: Sequence[str], part: Sequence[str], ours: Iterable[str]) -> str:
    """Means over settings with errors over draws, by part; then wins, ties and losses of ours, setting by setting.

    A win or a loss is a mean difference over the same draws of more than two standard errors, and 1e-4 of regret; with
    a single draw all are ties.

    Args:
        rows: of one metric, of which less is better.
        names: columns of a setting.
        part: those columns by which means are taken.
        ours: methods to be compared with all others.
    """
    found: Draws = {}
    for r in rows:
        setting = tuple(str(r[name]) for name in names)
        found.setdefault(setting, {}).setdefault(int(r["seed"]), {})[str(r["method"])] = float(r["value"])
    methods = list(dict.fromkeys(str(r["method"]) for r in rows))
    blocks = [_means(found, methods, [names.index(name) for name in part], part)]
    blocks += [_counts(found, methods, mine) for mine in ours if mine in methods]
    return "\n\n".join(blocks)


def _means(found: Draws, methods: Sequence[str], columns: Sequence[int], part: Sequence[str]) -> str:
    """Of draws on which all settings and methods of a part are there."""
    lines = [f"| method | {' | '.join(' '.join(p) for p in _parts(found, columns))} |"]
    lines.append("|---" * (1 + len(_parts(found, columns))) + "|")
    for method in methods:
        cells = []
        for wanted in _parts(found, columns):
            draws: dict[int, list[float]] = {}
            for setting, seeds in found.items():
                if tuple(setting[c] for c in columns) == wanted:
                    for seed, values in seeds.items():
                        if method in values:
                            draws.setdefault(seed, []).append(values[method])
            whole = max((len(values) for values in draws.values()), default=0)
            means = [fmean(values) for values in draws.values() if len(values) == whole]
            error = f" ± {stdev(means) / sqrt(len(means)):.1g}" if len(means) > 1 else ""
            cells.append(f"{fmean(means):.4f}{error} ({len(means)})" if means else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return f"**Means by {', '.join(part)}** (draws in brackets)\n\n" + "\n".join(lines)


def _parts(found: Draws, columns: Sequence[int]) -> list[tuple[str, ...]]:
    """The parts of a grid."""
    return list(dict.fromkeys(tuple(setting[c] for c in columns) for setting in found))


def _counts(found: Draws, methods: Sequence[str], mine: str) -> str:
    """Settings in which one method is better, as good, and worse than each other."""
    lines = [f"| {mine} against | wins | ties | losses | mean difference |", "|---|---|---|---|---|"]
    for other in methods:
        counts, means = [0, 0, 0], []
        for seeds in found.values():
            both = [values[mine] - values[other] for values in seeds.values() if mine in values and other in values]
            if not both or other == mine:
                continue
            error = stdev(both) / sqrt(len(both)) if len(both) > 1 else float("inf")
            means.append(fmean(both))
            counts[1 + (means[-1] > max(2 * error, 1e-4)) - (means[-1] < -max(2 * error, 1e-4))] += 1
        if means:
            lines.append(f"| {other} | {counts[0]} | {counts[1]} | {counts[2]} | {fmean(means):+.4f} |")
    return "\n".join(lines)

"""Means and standard errors of tidy rows, and tables and figures as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from research.experiments.task import REFERENCE, Row

COLOURS = {
    "decision-focused": "#1b9e77",
    "decision-focused, exact gradient": "#66c2a5",
    "decision-focused, CVaR": "#7570b3",
    "decision-focused, no set": "#e7298a",
    "prediction-focused": "#d95f02",
    "Costa-Iyengar": "#a6761d",
    "mean prediction": "#666666",
    "mean prediction, network": "#cccccc",
    "SPO+": "#1f78b4",
    "perturbed": "#a6cee3",
    "benchmark (true moments)": "#7570b3",
    "weighted sample average": "#1f78b4",
    "sample average": "#a6cee3",
    "Bayes-optimal": "#222222",
    "true distribution of training": "#222222",
    "hindsight": "#bbbbbb",
    "equal weights": "#999999",
}


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error (NaN for a single run) and the number of runs."""

    value: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean | None:
        """The mean of some runs; None of none."""
        found = [float(value) for value in values]
        if not found:
            return None
        error = stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
        return cls(fmean(found), error, len(found))

    def text(self, digits: int) -> str:
        """Such as "0.853 ± 0.004 (10)"."""
        if self.count == 1:
            return f"{self.value:.{digits}f} (1)"
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f} ({self.count})"


@dataclass(frozen=True)
class Table:
    """Texts, cell by cell."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """A figure and what it shows."""

    caption: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """What the report says about one experiment."""

    title: str
    paragraphs: Sequence[str]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = field(default_factory=tuple)


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows whose columns have these values, as text or as numbers."""
    return [r for r in rows if all(str(r.get(name, "")) == str(value) for name, value in wanted.items())]


def mean_of(rows: Iterable[Row], **wanted: Any) -> Mean | None:
    """The mean of the values of some rows."""
    return Mean.of(float(r["value"]) for r in select(rows, **wanted))


def under(rows: Iterable[Row], protocol: str) -> list[Row]:
    """Rows of a protocol, and of what is the same under any."""
    return [r for r in rows if r["protocol"] in (protocol, REFERENCE)]


def cell(mean: Mean | None, digits: int = 3) -> str:
    """A mean as text, or a dash."""
    return "–" if mean is None else mean.text(digits)


def present(rows: Iterable[Row], column: str, order: Sequence[Any] = ()) -> list[Any]:
    """The values of a column that occur: in the given order first, then any other as met."""
    met = list(dict.fromkeys(r[column] for r in rows if r.get(column, "") != ""))
    rank: Callable[[Any], int] = lambda value: order.index(value) if value in order else len(order)  # noqa: E731
    return sorted(met, key=rank)


def error_bars(axes: Any, x: Sequence[float], means: Sequence[Mean | None], label: str, **style: Any) -> None:
    """One line with error bars, over the points that there are."""
    points = [(at, mean) for at, mean in zip(x, means, strict=True) if mean is not None]
    if not points:
        return
    errors = [0.0 if math.isnan(mean.error) else mean.error for _, mean in points]
    colour = COLOURS.get(label)
    axes.errorbar(
        [at for at, _ in points], [mean.value for _, mean in points], errors,
        label=label, color=colour, marker="o", ms=3, lw=1.2, capsize=2, **style,
    )  # fmt: skip

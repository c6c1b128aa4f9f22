"""The tables and figures of every experiment, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from research.experiments import mixed, newsvendor, portfolio, robustness, timing
from research.experiments.registry import EXPERIMENTS
from research.experiments.runner import curves
from research.experiments.summary import (
    COLOURS,
    Mean,
    Plot,
    Section,
    Table,
    cell,
    error_bars,
    mean_of,
    present,
    select,
    under,
)
from research.experiments.task import REFERENCE, Row

PROTOCOLS = ("paper", "paper-published-weights", "strong", "quick")
PUBLISHED = "published"
"""Heading of the paper's own numbers."""
SIZE = (6.2, 3.2)
"""Inches: narrow, so that letters can still be read where a phone shrinks the image."""
LEARNT = ("decision-focused", "prediction-focused")


def all_sections(rows: Sequence[Row], folder: Path) -> list[Section]:
    """What there is to say about the experiments that were run."""
    makers = {
        "newsvendor": newsvendor_section,
        "portfolio": lambda own: portfolio_section(own, folder),
        "mixed": mixed_section,
        "robustness": robustness_section,
        "time": time_section,
    }
    return [maker(own) for name, maker in makers.items() if (own := select(rows, experiment=name))]


def _protocols(rows: Sequence[Row]) -> list[str]:
    """Those that train something."""
    return [name for name in present(rows, "protocol", PROTOCOLS) if name != REFERENCE]


def improvements(rows: Sequence[Row], protocol: str, name: str, metric: str = "gap") -> Mean | None:
    """Improvement over the benchmark in percent: its mean over N for each seed, then over seeds.

    Seeds that lack a number of points that others have are left out.
    """
    own = select(under(rows, protocol), set=name, metric=metric)
    learnt = select(own, method="decision-focused")
    points = {r["points"] for r in learnt}
    values = []
    for seed in present(learnt, "seed"):
        mine = select(learnt, seed=seed)
        benchmark = mean_of(own, method=newsvendor.BENCHMARK, seed=seed)
        if benchmark is not None and {r["points"] for r in mine} == points:
            values.append(fmean(newsvendor.improvement(benchmark.value, float(r["value"])) for r in mine))
    return Mean.of(values)


def newsvendor_section(rows: Sequence[Row]) -> Section:
    """Figure 3."""
    protocols = _protocols(rows)
    gains = [
        [name, f"{newsvendor.PAPER_IMPROVEMENT[name]}"]
        + [cell(improvements(rows, p, name, metric), 1) for p in protocols for metric in ("gap", "sampled_gap")]
        for name in present(rows, "set", newsvendor.SETS)
    ]
    header = ["set", PUBLISHED, *(f"{p}, {kind}" for p in protocols for kind in ("exact", "sampled"))]
    tables = [Table("Improvement of decision-focused learning over the benchmark, %, mean over N", header, gains)]
    for p in protocols:
        lines = []
        for name in present(rows, "set", newsvendor.SETS):
            own = select(under(rows, p), set=name)
            for points in present(own, "points", newsvendor.POINTS):
                for metric, kind in (("gap", "exact"), ("sampled_gap", "sampled")):
                    found = [mean_of(own, points=points, metric=metric, method=m) for m in LEARNT]
                    benchmark = mean_of(own, metric=metric, method=newsvendor.BENCHMARK)
                    lines.append([name, str(points), kind, *(cell(m, 3) for m in (*found, benchmark))])
        tables.append(Table(f"Optimality gap, %, protocol {p}", ["set", "N", "gap", *LEARNT, "benchmark"], lines))
    plots = [Plot(f"Exact optimality gap by number of points, protocol {p}.", _gaps(rows, p)) for p in protocols]
    text = (
        "The benchmark knows the true conditional mean and moments: it is the best that fitting sets to data can do. "
        "Exact gaps integrate demands in closed form and contexts by the midpoint rule; sampled ones are the paper's, "
        "with 1e5 test pairs (2,000 contexts with 50 demands each) against an optimum of 400 contexts with 200 demands."
    )
    return Section(EXPERIMENTS["newsvendor"].title, [text], tables, plots)


def _gaps(rows: Sequence[Row], protocol: str) -> Figure:
    """Gap by number of points, one panel a set."""
    figure = Figure(figsize=SIZE, layout="constrained")
    names = present(rows, "set", newsvendor.SETS)
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        own = select(under(rows, protocol), set=name, metric="gap")
        points = sorted(present(own, "points"))
        for method in LEARNT:
            error_bars(axes, points, [mean_of(own, method=method, points=n) for n in points], method)
        if (benchmark := mean_of(own, method=newsvendor.BENCHMARK)) is not None:
            axes.axhline(benchmark.value, color=COLOURS[newsvendor.BENCHMARK], ls="--", lw=1.2, label="benchmark")
        axes.set(xlabel="training points", ylim=(0, None), xscale="log")
        axes.set_title(name, fontsize=9)
        axes.set_xticks(points, [str(n) for n in points])
        axes.minorticks_off()
        axes.tick_params(labelsize=8)
    figure.axes[0].set_ylabel("optimality gap, %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def portfolio_section(rows: Sequence[Row], folder: Path) -> Section:
    """The continuous portfolio."""
    protocols = _protocols(rows)
    order = (*LEARNT, portfolio.EXACT, *portfolio.BASELINES.values(), *portfolio.REFERENCES)
    lines = [
        [method, str(portfolio.PAPER.get(method, "–"))]
        + [cell(mean_of(under(rows, p), method=method, metric="score")) for p in protocols]
        for method in present(rows, "method", order)
    ]
    plots = []
    for p in protocols:
        if found := [(m, curve) for q, m, _, curve in curves(folder, "portfolio") if q in (p, REFERENCE)]:
            plots.append(Plot(f"Wealth from 100, protocol {p}; the geometric mean over seeds.", _wealth(found, order)))
    text = (
        "Score: ten times the mean return on the 1,000 test points. Bayes-optimal puts everything on the asset with "
        "the largest true conditional mean; hindsight knows the returns."
    )
    return Section(
        EXPERIMENTS["portfolio"].title, [text], [Table("Scores", ["method", PUBLISHED, *protocols], lines)], plots
    )


def _wealth(found: Sequence[tuple[str, list[float]]], order: Sequence[str]) -> Figure:
    """Wealth by day, on a logarithmic axis."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for method in [m for m in order if m in {name for name, _ in found}]:
        logs = np.log([curve for name, curve in found if name == method]).mean(0)
        axes.plot(np.exp(logs), label=method, color=COLOURS.get(method), lw=1.3)
    axes.set(yscale="log", xlabel="test day", ylabel="wealth")
    axes.legend(frameon=False, fontsize=8)
    return figure


def mixed_section(rows: Sequence[Row]) -> Section:
    """Tables 1 and 2."""
    problems = sorted({(int(r["assets"]), int(r["group"])) for r in rows})
    largest = max(assets for assets, _ in problems)
    chosen = {
        "Table 1: by number of assets, one bound each": [(n, group) for n, group in problems if group == 1],
        "Table 2: by number of bounds": sorted(((n, g) for n, g in problems if n == largest), reverse=True),
    }
    protocols = _protocols(rows)
    header = ["assets", "bounds", "method", PUBLISHED, *protocols]
    tables = [
        Table(f"{caption}; scores and shares of Bayes-optimal", header, _mixed(rows, some, protocols))
        for caption, some in chosen.items()
    ]
    text = (
        "Score: ten times the mean return on the 1,000 test points. A fifth of the assets are bought in lots of 1/n or "
        "not at all. The Bayes-optimal policy knows the true conditional means."
    )
    return Section(EXPERIMENTS["mixed"].title, [text], tables)


def _mixed(rows: Sequence[Row], problems: Sequence[tuple[int, int]], protocols: Sequence[str]) -> list[list[str]]:
    """One line a problem and method."""
    lines = []
    for assets, group in problems:
        same = select(rows, assets=assets, metric="score")
        # Policies without a set are the same for every set, and run once.
        own = select(same, group=group) + [r for r in same if int(r["group"]) != group and r["method"] not in LEARNT]
        for method in present(own, "method", (*LEARNT, *portfolio.BASELINES.values(), *mixed.REFERENCES)):
            published = mixed.PAPER.get((assets, group), {}).get(method)
            line = [str(assets), str(assets // group), method, "–" if published is None else str(published)]
            for p in protocols:
                found = mean_of(under(own, p), method=method)
                best = mean_of(under(own, p), method="Bayes-optimal")
                share = f", {100 * found.value / best.value:.1f} %" if found and best else ""
                line.append(cell(found) + share)
            lines.append(line)
    return lines


def robustness_section(rows: Sequence[Row]) -> Section:
    """Our own experiment."""
    tables, plots = [], []
    for p in _protocols(rows):
        for problem in present(rows, "problem", robustness.PROBLEMS):
            own = select(rows, protocol=p, problem=problem)
            shifts = present(own, "shift", robustness.SHIFTS)
            lines = [
                [str(points), method]
                + [
                    cell(mean_of(own, points=points, method=method, shift=shift, metric=metric))
                    for shift in shifts
                    for metric in ("mean", "cvar95")
                ]
                for points in sorted(present(own, "points"))
                for method in present(own, "method", robustness.METHODS)
            ]
            header = ["N", "method", *(f"{s}: {m}" for s in shifts for m in ("mean", "CVaR"))]
            tables.append(Table(f"Loss on test data, {problem}, protocol {p}; smaller is better", header, lines))
            plots.append(Plot(f"Mean and 95 % CVaR of the loss, {problem}, protocol {p}.", _losses(own, shifts)))
    text = (
        "Learnt from N points in all, judged on a large test sample from the distribution of training, with noise 1.5 "
        "times as large, and with means moved. The loss of the portfolio is minus ten times the return. All methods "
        "minimise the expected loss but for the one named CVaR, whose sets are trained on the 95 % CVaR and whose "
        "decisions minimise its worst case."
    )
    return Section(EXPERIMENTS["robustness"].title, [text], tables, plots)


def _losses(rows: Sequence[Row], shifts: Sequence[str]) -> Figure:
    """Mean above, CVaR below; one column a shift."""
    figure = Figure(figsize=(SIZE[0], 5.4), layout="constrained")
    grid = figure.subplots(2, len(shifts), sharex=True, squeeze=False)
    points = sorted(present(rows, "points"))
    for line, metric, label in zip(grid, ("mean", "cvar95"), ("mean loss", "95 % CVaR"), strict=True):
        for axes, shift in zip(line, shifts, strict=True):
            for method in present(rows, "method", robustness.METHODS):
                means = [mean_of(rows, points=n, method=method, shift=shift, metric=metric) for n in points]
                error_bars(axes, points, means, method)
            axes.set_title(shift, fontsize=9)
            axes.set_xticks(points, [str(n) for n in points])
            axes.tick_params(labelsize=8)
        line[0].set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("training points", fontsize=9)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def time_section(rows: Sequence[Row]) -> Section:
    """Table 3."""
    lines = []
    for assets in sorted(int(n) for n in present(rows, "assets")):
        theirs = dict(zip(timing.STAGES, timing.PAPER.get(assets, ()), strict=False))
        for stage in (*timing.STAGES, "all"):
            ours = mean_of(rows, assets=assets, metric=stage)
            paper = sum(theirs.values()) if stage == "all" else theirs.get(stage, 0.0)
            ratio = f"{paper / ours.value:,.0f}" if ours and paper and stage != "learning" else "–"
            below = "< 0.001" if stage == "learning" else f"{paper:.1f}"
            lines.append([str(assets), stage, below, cell(ours, 4), ratio])
    text = (
        "Wall seconds of one step for a batch of 100 with T = S = 1, the median of five steps, on one core; a fifth of "
        "the assets in lots. The paper's seconds are from its own machine (an i7 laptop)."
    )
    header = ["assets", "stage", "published, s", "here, s", "ratio"]
    return Section(EXPERIMENTS["time"].title, [text], [Table("Time by stage", header, lines)])

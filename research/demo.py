"""Learn to stock four items from data: the newsvendor of the paper with the set SOC-III and 400 points.

Trains a prediction-focused and a decision-focused model, compares their decisions with the benchmark that knows the
true conditional moments and with the true optimum, and writes plots and a page, index.html, into runs/demo.
"""

from __future__ import annotations

import base64
import html
import json
import time
from io import BytesIO
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import drolayers as dro
from research.problems import Newsvendor

POINTS = 400
GRID = (np.arange(1000)[:, None] + 0.5) / 1000
COLOURS = {
    "prediction-focused": "#d95f02",
    "decision-focused": "#1b9e77",
    "benchmark": "#7570b3",
    "true optimum": "#444444",
}

Strategy = Literal["prediction", "decision"]
Policy = tuple[np.ndarray, np.ndarray]


def train(newsvendor: Newsvendor, strategy: Strategy, seed: int, folder: Path) -> dro.DecisionFocusedLearner:
    """A learner on 400 points, its best epoch chosen on 80 others; the second goes on from the first."""
    rng = np.random.default_rng(seed)
    (Z, Y), held_out = newsvendor.draw(POINTS, rng), newsvendor.draw(POINTS // 5, rng)
    trainer = dro.Trainer(folder, resume=strategy == "decision", budget=0.0)
    # A third of the usual epochs: enough here, and a newcomer waits for half a minute.
    training = dro.Stage(epochs=10) if strategy == "decision" else None
    learner = dro.DecisionFocusedLearner(newsvendor.problem, training=training, trainer=trainer, seed=seed)
    return learner.fit(Z, Y, validation=held_out)


def policies(newsvendor: Newsvendor, learners: dict[str, dro.DecisionFocusedLearner]) -> dict[str, Policy]:
    """What everyone buys, at retail and in lots, for a grid of contexts."""
    found: dict[str, Policy] = {}
    for name, learner in learners.items():
        decision = learner.decide(GRID)
        found[name] = decision[newsvendor.retail], decision[newsvendor.wholesale]
    return found | {"benchmark": newsvendor.benchmark(GRID), "true optimum": newsvendor.optimal(GRID)}


def compare(newsvendor: Newsvendor, chosen: dict[str, Policy]) -> list[dict[str, str | float]]:
    """Expected costs, and how far they lie above the optimum; demands are integrated out in closed form."""
    costs = {name: float(newsvendor.expected_cost(GRID, *policy).mean()) for name, policy in chosen.items()}
    best = costs["true optimum"]
    return [{"method": name, "cost": cost, "gap": 100 * (cost / best - 1)} for name, cost in costs.items()]


def plot_gaps(newsvendor: Newsvendor, chosen: dict[str, Policy]) -> Figure:
    """Cost above the optimum by context."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    best = newsvendor.expected_cost(GRID, *chosen["true optimum"])
    for name, policy in chosen.items():
        if name != "true optimum":
            cost = newsvendor.expected_cost(GRID, *policy)
            axes.plot(GRID[:, 0], 100 * (cost / best - 1), color=COLOURS[name], label=name, lw=1.2)
    axes.set(xlabel="context z", ylabel="cost above the optimum, %", ylim=(0, None), xlim=(0, 1))
    axes.legend(frameon=False)
    return figure


def plot_stock(newsvendor: Newsvendor, chosen: dict[str, Policy]) -> Figure:
    """Stock of every item by context, over the distribution of demand."""
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    mean, deviation = newsvendor.conditional(GRID)
    for item, axes in enumerate(figure.subplots(2, 2, sharex=True).flat):
        low, high = mean[:, item] - 1.64 * deviation[:, item], mean[:, item] + 1.64 * deviation[:, item]
        axes.fill_between(GRID[:, 0], low, high, color="#dddddd", label="demand, 90 %")
        for name, (retail, wholesale) in chosen.items():
            stock = (retail + newsvendor.lot * wholesale)[:, item]
            axes.plot(GRID[:, 0], stock, color=COLOURS[name], label=name, lw=1.0)
        axes.set(title=f"item {item + 1}", xlim=(0, 1))
    figure.axes[0].legend(frameon=False, fontsize=7)
    figure.supxlabel("context z")
    figure.supylabel("stock")
    return figure


def plot_training(learner: dro.DecisionFocusedLearner) -> Figure:
    """Both trainings by epoch."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, stage in ((left, "prediction"), (right, "decision")):
        rows = learner.history_[stage]
        epochs = [row["epoch"] + 1 for row in rows]
        for key, label in ((f"{stage}_loss", "training"), (f"val_{stage}_loss", "validation")):
            axes.plot(epochs, [row[key] for row in rows], label=label)
        axes.set(title=f"{stage}-focused training", xlabel="epoch", ylabel="loss")
    right.legend(frameon=False)
    return figure


def page(rows: list[dict[str, str | float]], figures: dict[str, Figure], seconds: float, seed: int) -> str:
    """One self-contained HTML page."""
    lines = "".join(
        f"<tr><td>{html.escape(str(row['method']))}</td><td>{row['cost']:.4f}</td><td>{row['gap']:.3f} %</td></tr>"
        for row in rows
    )
    images = ""
    for caption, figure in figures.items():
        data = BytesIO()
        figure.savefig(data, format="png", dpi=130)
        code = base64.b64encode(data.getvalue()).decode()
        images += f'<figure><img alt="" src="data:image/png;base64,{code}"><figcaption>{caption}</figcaption></figure>'
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Four-item newsvendor</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse }} 
td, th {{ padding: .25rem 1rem; border-bottom: 1px solid #ddd; text-align: right }}
td:first-child, th:first-child {{ text-align: left }} img {{ max-width: 100% }} figure {{ margin: 2rem 0 }}
figcaption {{ color: #555 }}
</style>
<h1>Four-item newsvendor, SOC-III, {POINTS} points</h1>
<p>Costs are expectations under the true distribution: demands in closed form, contexts by the midpoint rule on
{len(GRID)} points. The benchmark's set has the true conditional moments: the best that fitting sets to data can do.
Seed {seed}; {seconds:.0f} s.</p>
<table><tr><th>method</th><th>expected cost</th><th>above the optimum</th></tr>{lines}</table>
{images}
</html>
"""


def run(seed: int, out: Path) -> None:
    """Train, compare, draw."""
    mpl.rcParams["axes.spines.top"] = mpl.rcParams["axes.spines.right"] = False
    # The networks are small, and the solver has threads of its own.
    torch.set_num_threads(1)
    start, processor = time.perf_counter(), time.process_time()

    newsvendor, console = Newsvendor("SOC-III"), Console()
    learners = {}
    strategies: tuple[Strategy, ...] = ("prediction", "decision")
    for strategy in strategies:
        console.print(f"{strategy}-focused training …")
        learners[f"{strategy}-focused"] = train(newsvendor, strategy, seed, out / "training")
    chosen = policies(newsvendor, learners)
    rows = compare(newsvendor, chosen)
    seconds = time.perf_counter() - start

    figures = {
        "Expected cost above that of the optimum.": plot_gaps(newsvendor, chosen),
        "Stock (retail and wholesale together).": plot_stock(newsvendor, chosen),
        "Training of the decision-focused model.": plot_training(learners["decision-focused"]),
    }
    for name, figure in zip(("gaps", "stock", "training"), figures.values(), strict=True):
        figure.savefig(out / f"{name}.png", dpi=130)
    (out / "index.html").write_text(page(rows, figures, seconds, seed), encoding="utf-8")
    (out / "results.json").write_text(json.dumps({"seed": seed, "rows": rows}, indent=2) + "\n")

    table = Table(title=f"Four-item newsvendor, SOC-III, {POINTS} points")
    for column in ("method", "expected cost", "above the optimum"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        table.add_row(str(row["method"]), f"{row['cost']:.4f}", f"{row['gap']:.3f} %")
    console.print(table)
    used = time.process_time() - processor
    console.print(f"{seconds:.0f} s ({used:.0f} s of processor time); {out / 'index.html'}", highlight=False)

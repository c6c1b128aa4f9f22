"""Draws the figures of the documentation into docs/assets/figures; `python docs/figures.py` draws all of them anew."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).with_name("assets") / "figures"
LIBRARY = Path(__file__).parents[1] / "packages" / "drolayers" / "src" / "drolayers"
SOURCES = (Path(__file__), LIBRARY / "plot.py", LIBRARY / "plot_promises.py")
RED, GREY, INK = "#c0392b", "#7f8c8d", "#2c3e50"


def figure(*shape: int, size: tuple[float, float], **settings: Any) -> tuple[Figure, Any]:
    """A figure and its axes, all in one look."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "svg.hashsalt": "docs"})
    made = Figure(figsize=size, layout="constrained")
    return made, made.subplots(*shape, **settings)


def stall() -> tuple[Any, Any, Any]:
    """One product: a unit costs 1, demand that is missed costs 4."""
    import cvxpy as cp

    import drolayers as dro

    y = dro.Uncertain(1, support=dro.support.Nonnegative())
    stock = cp.Variable(nonneg=True, name="stock")
    problem = dro.DecisionProblem(stock + 4.0 * cp.pos(y[0] - stock), [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    return problem, stock, dro


def sample() -> Any:
    """Forty demands, as atoms and weights of a batch of one."""
    import numpy as np
    import torch

    atoms = np.random.default_rng(0).gamma(9.0, 0.6, (1, 40, 1))
    return torch.as_tensor(atoms), torch.full((1, 40), 1 / 40, dtype=torch.float64)


def moments_1d(parameter: str) -> Figure:
    """The worst case of a decision for three values of σ or μ."""
    import torch

    problem, stock, dro = stall()
    values = {"sigma": (1.0, 4.0, 12.0), "mu": (4.0, 5.5, 7.0)}[parameter]
    made, row = figure(1, 3, size=(7.6, 2.5), sharex=True, sharey=True)
    for axes, value in zip(row, values, strict=True):
        mu, sigma = (5.5, value) if parameter == "sigma" else (value, 4.0)
        theta = torch.tensor([[mu, sigma]], dtype=torch.float64)
        best = dro.DROLayer(problem)(theta).best
        from drolayers import plot

        plot.worst_case(problem, best, theta, sample(), axes=axes)
        axes.axvline(float(best[stock]), color=INK, ls=":", lw=1.2)
        axes.set(
            title=f"{'σ' if parameter == 'sigma' else 'μ'} = {value:g}", xlabel="demand y", ylabel="", xlim=(0, 17)
        )
        if axes is not row[0]:
            axes.get_legend().remove()
    row[0].set(ylabel="probability")
    row[0].legend(frameon=False, loc="upper right")
    return made


def sigma() -> Figure:
    """A larger bound moves the second atom further out."""
    return moments_1d("sigma")


def mu() -> Figure:
    """The centre moves everything."""
    return moments_1d("mu")


def radius() -> Figure:
    """Balls around twelve atoms: how far the mass goes."""
    import cvxpy as cp
    import numpy as np
    import torch

    import drolayers as dro
    from drolayers import plot

    atoms = torch.as_tensor(np.random.default_rng(3).uniform(1, 5, (1, 12, 2)))
    nominal = atoms, torch.full((1, 12), 1 / 12, dtype=torch.float64)
    made, row = figure(1, 4, size=(9.6, 2.9), sharex=True, sharey=True)
    for axes, (size, order) in zip(row, ((0.3, 2), (1.0, 2), (1.0, 1), (1.0, np.inf)), strict=True):
        y = dro.Uncertain(2, support=dro.support.Box(0.0, 8.0))
        x = cp.Variable(2, nonneg=True)
        # A far miss is dearer than a near one, so that the worst case is unique for order 1 as well.
        cost = cp.sum(x) + cp.sum(cp.maximum(4.0 * (y - x), 10.0 * (y - x) - 9.0, 0.0))
        problem = dro.DecisionProblem(cost, [], dro.Wasserstein(y, 12, norm=1 if order == 1 else 2, order=order))
        theta = torch.tensor([[size]], dtype=torch.float64)
        best = dro.DROLayer(problem)(theta, nominal).best
        plot.worst_case(problem, best, theta, nominal, axes=axes)
        stock = best[x][0]
        axes.axvline(float(stock[0]), color=INK, ls=":", lw=1.0)
        axes.axhline(float(stock[1]), color=INK, ls=":", lw=1.0)
        axes.set(
            title=f"order {'∞' if order > 2 else order}, radius {size:g}",
            xlim=(-0.5, 8.5),
            ylim=(-0.5, 8.5),
            xlabel="y₁",
            ylabel="",
        )
        if axes is not row[0]:
            axes.get_legend().remove()
    row[0].set(ylabel="y₂")
    row[0].legend(frameon=False, loc="upper left", markerscale=0.6)
    return made


def events() -> Figure:
    """One set for all days, and a mixture of rainy and dry ones."""
    import cvxpy as cp
    import numpy as np
    import torch

    import drolayers as dro
    from drolayers import plot

    rng = np.random.default_rng(0)
    days = np.concatenate([rng.gamma(16.0, 0.15, 40), rng.gamma(40.0, 0.2, 20)])
    nominal = torch.as_tensor(days.reshape(1, 60, 1)), torch.full((1, 60), 1 / 60, dtype=torch.float64)
    y, stock = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable(nonneg=True)
    moments = [dro.moments.Mean(), dro.moments.Variance()]

    def fitted(some: np.ndarray) -> np.ndarray:
        return np.array([some.mean(), some.mean(), some.var()])

    rainy, dry = days[days < 4.5], days[days >= 4.5]
    below, above = y.within(dro.support.Box(hi=4.5)), y.within(dro.support.Box(lo=4.5))
    mixture = dro.Mixture([dro.MomentSet(below, moments), dro.MomentSet(above, moments)])
    sets = {
        "one set": (dro.MomentSet(y, moments), fitted(days)),
        "a mixture of two": (mixture, np.concatenate([[len(rainy), len(dry)], fitted(rainy), fitted(dry)])),
    }
    made, row = figure(1, 2, size=(7.6, 2.6), sharex=True, sharey=True)
    for axes, (title, (ambiguity, values)) in zip(row, sets.items(), strict=True):
        problem = dro.DecisionProblem(stock + 4.0 * cp.pos(y[0] - stock), [], ambiguity)
        theta = torch.as_tensor(values)[None]
        decision = dro.DROLayer(problem)(theta)
        plot.worst_case(problem, decision.best, theta, nominal, axes=axes)
        axes.axvline(float(decision.best[stock]), color=INK, ls=":", lw=1.2)
        axes.set(title=f"{title}: worst case {float(decision.value):.1f}", xlabel="demand y", ylabel="")
    row[1].get_legend().remove()
    row[0].set(ylabel="probability")
    return made


def shapes() -> Figure:
    """The worst outcomes of a robust stock of two products in three shapes."""
    import cvxpy as cp
    import torch

    import drolayers as dro
    from drolayers import plot

    made, row = figure(1, 3, size=(7.6, 2.9), sharex=True, sharey=True)
    centre, radius = torch.tensor([[4.0, 3.5]]).double(), torch.tensor([[2.0, 1.5]]).double()
    tilted = torch.tensor([[[2.0, 0.0], [-0.9, 1.2]]]).double()
    sizes = {"box": {"radius": radius}, "ellipsoid": {"factor": tilted}, "budget": {"radius": radius}}
    for axes, (kind, size) in zip(row, sizes.items(), strict=True):
        y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
        problem = dro.DecisionProblem(cp.sum(cp.maximum(4.0 * (y - x), x - y)), [], dro.Outcomes(y, kind))
        best = dro.DROLayer(problem)({"centre": centre, **size}).best
        plot.worst_case(problem, best, {"centre": centre, **size}, axes=axes)
        axes.axvline(float(best[x][0, 0]), color=INK, ls=":", lw=1.0)
        axes.axhline(float(best[x][0, 1]), color=INK, ls=":", lw=1.0)
        axes.set(title=kind, xlim=(1.5, 6.5), ylim=(1.5, 5.5), xlabel="y₁", ylabel="")
        if axes is not row[0]:
            axes.get_legend().remove()
    row[0].set(ylabel="y₂")
    row[0].legend(frameon=False, loc="center left", markerscale=0.6)
    return made


def price() -> Figure:
    """Worst-case and nominal cost, and the decision, as σ grows."""
    import numpy as np
    import torch

    from drolayers import plot

    problem = stall()[0]
    theta = torch.tensor([[5.5, 1.0]], dtype=torch.float64)
    made, row = figure(1, 2, size=(7.6, 2.8))
    steps = np.linspace(0.03, 3.5, 50) ** 2
    plot.price_of_robustness(problem, theta, "0.sigma", steps, row[0], nominal=sample())
    plot.price_of_robustness(problem, theta, "0.sigma", steps, row[1], show="decision")
    for axes in row:
        axes.set(xlabel="σ")
    return made


def lots() -> tuple[Any, Any, Any]:
    """Four binaries without continuous decisions: a small problem with sixteen points."""
    import cvxpy as cp
    import torch

    import drolayers as dro

    y = dro.Uncertain(1)
    take = cp.Variable(4, boolean=True, name="take")
    amount = take @ [1.0, 2.1, 3.4, 4.8]
    cost = 0.7 * amount + 2.0 * cp.pos(y[0] - amount) + 0.2 * cp.pos(amount - y[0])
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    return problem, torch.tensor([[5.0, 1.0]], dtype=torch.float64), dro


def temperature() -> Figure:
    """The probabilities of sixteen integer points at three temperatures."""
    from drolayers import plot

    problem, theta, dro = lots()
    made, row = figure(1, 3, size=(7.6, 2.7), sharex=True)
    for axes, factor in zip(row, (0.1, 0.5, 5.0), strict=True):
        decision = dro.DROLayer(problem, samples="all", temperature=dro.RelativeTemperature(factor))(theta)
        plot.candidates(decision, axes=axes)
        size = float(decision.effective_sample_size[0])
        axes.set(title=f"factor {factor:g}: sample size {size:.1f}", xlabel="worst-case cost f")
        for text in list(axes.texts)[1:]:
            text.remove()
        if axes is not row[0]:
            axes.set(ylabel="")
            axes.get_legend().remove()
    return made


def surrogate() -> Figure:
    """The loss of an integer decision jumps in θ; the surrogate does not."""
    import numpy as np
    import torch

    problem, _, dro = lots()
    grid = np.linspace(1.0, 10.0, 300)
    theta = torch.as_tensor(np.stack([grid, np.full_like(grid, 0.5)], 1))
    outcome = torch.full((len(grid), 1), 5.3, dtype=torch.float64)
    made, axes = figure(size=(6.2, 3.0))
    layer = dro.DROLayer(problem, samples="all")
    with torch.no_grad():
        best = layer.eval()(theta).best
        axes.plot(grid, problem.loss(best, outcome), color=INK, lw=1.4, label="loss of the best decision")
        for value, colour in ((0.05, "#e67e22"), (0.3, RED), (2.0, "#8e44ad")):
            layer.train().temperature = value
            curve = layer(theta).expected(lambda x: problem.loss(x, outcome))
            axes.plot(grid, curve, color=colour, lw=1.2, label=f"surrogate, λ = {value:g}")
    axes.set(xlabel="predicted μ", ylabel="loss for the outcome y = 5.3")
    axes.legend(frameon=False)
    return made


def gradients() -> Figure:
    """A flat solution map, and its derivative at three levels of smoothing."""
    import cvxpy as cp
    import numpy as np
    import torch

    import drolayers as dro
    from conelayers.engine.engine import FlatGradientWarning

    y, x = dro.Uncertain(2), cp.Variable(2, nonneg=True)
    problem = dro.DecisionProblem(-(y @ x), [cp.sum(x) == 1], dro.MomentSet.grouped(y, 1))
    grid = np.linspace(-0.5, 0.5, 201)
    made, (left, right) = figure(1, 2, size=(7.6, 2.8), sharex=True)
    for rule, colour in (("exact", INK), (1e-3, "#e67e22"), (1e-2, RED), (1e-1, "#8e44ad")):
        gap = torch.as_tensor(grid).requires_grad_()
        one = torch.ones_like(gap)
        theta = torch.stack([1.0 + gap, one, 0.01 * one, 0.01 * one], 1)
        layer = dro.DROLayer(problem, gradient="exact" if rule == "exact" else dro.Smoothed(rule))
        first = layer(theta).best[x][:, 0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FlatGradientWarning)
            (slope,) = torch.autograd.grad(first.sum(), gap)
        if rule == "exact":
            left.plot(grid, first.detach(), color=colour)
        label = "exact" if rule == "exact" else f"smoothed, level {rule:g}"
        right.plot(grid, slope.numpy(), color=colour, lw=1.2, label=label)
    left.set(xlabel="predicted μ₁ - μ₂", ylabel="share of asset 1")
    right.set(xlabel="predicted μ₁ - μ₂", ylabel="derivative of that share", ylim=(-1e-4, 3e4))
    right.set_yscale("symlog", linthresh=1e-3)
    right.legend(frameon=False, fontsize=8, loc="upper left")
    return made


def chance() -> Figure:
    """What a chance constraint promises, and how often it does not hold on fresh data."""
    import cvxpy as cp
    import numpy as np
    import torch

    import drolayers as dro

    (atoms, _), fresh = sample(), np.random.default_rng(1).gamma(9.0, 0.6, 100_000)
    theta = torch.stack([atoms.mean(), atoms.var()])[None]
    asked, missed = np.linspace(0.5, 0.98, 17), []
    for probability in asked:
        y, stock = dro.Uncertain(1, support=dro.support.Nonnegative()), cp.Variable()
        ambiguity = dro.MomentSet(y, [dro.moments.SquaredNorm()])
        problem = dro.DecisionProblem(stock, [dro.chance(y[0] <= stock, probability)], ambiguity)
        missed.append(float((fresh > float(problem.solve(theta).objective)).mean()))
    made, axes = figure(size=(4.2, 2.6))
    axes.plot(asked, 1.0 - asked, color=GREY, ls="--", label="allowed: at most")
    axes.plot(asked, missed, color=RED, label="on fresh data")
    axes.set(xlabel="probability asked for", ylabel="demand above the order")
    axes.legend(frameon=False)
    return made


def adapt() -> Figure:
    """What is bought once demand is seen: rules under a moment set and around data."""
    import cvxpy as cp
    import torch

    import drolayers as dro

    made, row = figure(1, 2, size=(7.6, 2.6), sharex=True, sharey=True)
    atoms = torch.tensor([[[2.0], [3.5], [6.0]]], dtype=torch.float64)
    weights = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    demand = torch.linspace(0.0, 10.0, 201, dtype=torch.float64)[:, None]
    for axes, name in zip(row, ("MomentSet, Norm(1)", "Wasserstein, three atoms"), strict=True):
        y = dro.Uncertain(1, support=dro.support.Box(0.0, 10.0))
        stock, buy = cp.Variable(nonneg=True), dro.Adaptive(1, to=y, nonneg=True)
        ball = name.startswith("W")
        ambiguity = dro.Wasserstein(y, 3) if ball else dro.MomentSet(y, [dro.moments.Norm(1)])
        problem = dro.DecisionProblem(stock + 2.5 * cp.sum(buy), [dro.always(stock + buy >= y)], ambiguity)
        theta = torch.tensor([[0.3]] if ball else [[4.0, 1.2]], dtype=torch.float64)
        decision = dro.DROLayer(problem)(theta, (atoms, weights) if ball else None)
        level = float(decision.best[stock])
        axes.plot(demand[:, 0], (demand[:, 0] - level).clamp(min=0), color=GREY, ls="--", label="what is missing")
        axes.plot(demand[:, 0], decision.rule[buy](demand)[:, 0], color=RED, label="the rule")
        axes.set(xlabel="demand", title=name)
        if ball:
            axes.plot(atoms[0, :, 0], torch.zeros(3), "o", color=INK, ms=4, label="atoms")
    row[0].set(ylabel="bought")
    row[1].legend(frameon=False)
    return made


def calibrated() -> tuple[Any, Any]:
    """A shop whose sets were scaled on rows that were held out, and fresh data."""
    import cvxpy as cp
    import numpy as np

    import drolayers as dro

    def draw(count: int, seed: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(seed)
        Z = rng.uniform(size=(count, 2))
        return Z, 4 + 2 * Z + (0.5 + Z) * rng.normal(size=(count, 2)).clip(-4, 4)

    y, x = dro.Uncertain(2, support=dro.support.Nonnegative()), cp.Variable(2, nonneg=True)
    cost = cp.sum(x) + cp.sum(cp.maximum(4 * (y - x), x - y))
    problem = dro.DecisionProblem(cost, [], dro.MomentSet(y, [dro.moments.SquaredNorm()]))
    learner = dro.DecisionFocusedLearner(
        problem,
        dro.Network(hidden=(8,)),
        projection=None,
        pretraining=dro.Stage(epochs=10),
        training=dro.Stage(epochs=12, rate=5e-2),
        trainer=dro.Trainer(progress=False),
    )
    return learner.fit(*draw(200, 0), calibration_share=0.3), draw(1000, 1)


def worst_case_costs() -> Figure:
    """Worst-case costs before and after calibration."""
    from drolayers import plot

    learner, fresh = calibrated()
    made, row = figure(1, 2, size=(7.6, 3.0), sharex=True, sharey=True)
    plot.worst_case_costs(learner, *fresh, axes=row[0])
    learner.calibrate(disappointment=0.1)
    plot.worst_case_costs(learner, *fresh, axes=row[1])
    for axes, title in zip(row, ("as trained", "calibrated"), strict=True):
        axes.set(title=title)
    row[1].set(ylabel="")
    return made


def coverage() -> Figure:
    """Coverage against level."""
    from drolayers import plot

    learner, fresh = calibrated()
    learner.calibrate(coverage=0.9)
    made, axes = figure(size=(4.2, 2.8))
    plot.coverage(learner, *fresh, axes=axes)
    return made


def sets() -> Figure:
    """Calibrated sets over a feature."""
    from drolayers import plot

    learner, (Z, Y) = calibrated()
    learner.calibrate(coverage=0.9)
    made, axes = figure(size=(5.6, 3.0))
    plot.sets(learner, Z[:250], Y[:250], axes)
    return made


FIGURES: dict[str, Callable[[], Figure]] = {
    "adapt": adapt,
    "sigma": sigma,
    "mu": mu,
    "radius": radius,
    "shapes": shapes,
    "events": events,
    "price": price,
    "temperature": temperature,
    "surrogate": surrogate,
    "gradients": gradients,
    "chance": chance,
    "worst_case_costs": worst_case_costs,
    "coverage": coverage,
    "sets": sets,
}


def make(anew: bool = False) -> list[Path]:
    """Draw the figures that are missing or older than what draws them; returns those drawn."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    changed = max(source.stat().st_mtime for source in SOURCES)
    drawn = []
    for name, draw in FIGURES.items():
        path = FOLDER / f"{name}.svg"
        if anew or not path.exists() or path.stat().st_mtime < changed:
            draw().savefig(path, metadata={"Date": None})
            drawn.append(path)
    return drawn


if __name__ == "__main__":
    for made in make(anew=True):
        print(made)

"""Pictures of what a layer does: axes in, axes out; Matplotlib is imported when a picture is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from conelayers.internals import whole
from drolayers.ambiguity.centred import Centred
from drolayers.ambiguity.nominal import Nominal, Pair
from drolayers.errors import ModelError, ShapeError
from drolayers.evaluations import Chosen
from drolayers.known import Known
from drolayers.layer import Decision, DROLayer
from drolayers.panels import NOMINAL, PLAIN, WORST, entry
from drolayers.panels import panels as _panels
from drolayers.plot_promises import coverage, sets, violations, worst_case_costs
from drolayers.problem import DecisionProblem, Theta
from drolayers.reformulation.worst_distribution import WorstCaseDistribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from drolayers.learning import DecisionFocusedLearner

__all__ = [
    "candidates",
    "coverage",
    "price_of_robustness",
    "sets",
    "training",
    "violations",
    "worst_case",
    "worst_case_costs",
]


def __dir__() -> list[str]:
    return sorted(__all__)


LABELLED = 8
"""Points that are labelled at most: the likeliest."""


def worst_case(
    problem: DecisionProblem,
    decision: Decision | Chosen,
    theta: Theta,
    nominal: Pair | None = None,
    item: int = 0,
    axes: Axes | Sequence[Axes] | None = None,
    *,
    coordinates: Sequence[int] | None = None,
    known: Known | None = None,
) -> Axes | list[Axes]:
    """The worst-case distribution of a decision, beside the nominal one where that is given.

    Two coordinates make a scatter plot in which areas are probabilities; any other number makes one panel of stems for
    each. Mass that escapes to infinity is drawn as arrows. Of ``Outcomes`` the edge of the shape is drawn as well, of
    ``MeanCovariance`` one standard deviation.

    Args:
        problem: the decision problem.
        decision: what a layer returned, or tensors ``(batch, *shape)`` by CVXPY variable.
        theta: ``(batch, problem.size)``, or a dict by name.
        nominal: atoms and weights of the batch; a moment set does not need them, but they are then drawn as well.
        item: which item of the batch.
        axes: where to draw; one for a scatter plot or a single coordinate, else one a coordinate.
        coordinates: those of ``y`` to show; all unless given.
        known: values of ``problem.known`` of the batch.

    Returns:
        The axes, as they came or newly made.
    """
    flat, found = problem.flat(theta).detach(), _best(decision)
    item = _position(item, len(flat))
    one = {v: value.detach()[item : item + 1] for v, value in found.items()}
    beside = None if nominal is None else problem.sets.around(nominal, flat).at([item])
    told = _told(problem, known, len(flat), item)
    worst = problem.worst_case_distribution(one, flat[item : item + 1], beside, told)
    if not bool(worst.probabilities.isfinite().all()):
        raise ModelError(
            f"Item {item} has no worst-case distribution: its set is empty, its worst case infinite, or x is NaN."
        )
    shown = list(range(problem.ambiguity.y.dim)) if coordinates is None else [int(c) for c in coordinates]
    if not shown or not all(0 <= c < problem.ambiguity.y.dim for c in shown):
        raise ModelError(f"coordinates must name some of the {problem.ambiguity.y.dim} coordinates of y, not {shown}.")
    panels = _panels(axes, 1 if len(shown) == 2 else len(shown))
    if len(shown) == 2:
        if isinstance(problem.ambiguity, Centred):
            edge = problem.ambiguity.outline(problem.sets.parts(flat[item : item + 1])[0], shown)[0].numpy(force=True)
            panels[0].plot(edge[:, 0], edge[:, 1], color=PLAIN, lw=1.0, label="set", zorder=1)
        _scatter(panels[0], worst, beside, shown)
    else:
        for panel, coordinate in zip(panels, shown, strict=True):
            _stems(panel, worst, beside, coordinate)
    panels[0].legend(frameon=False)
    return panels[0] if len(panels) == 1 else panels


def candidates(decision: Decision, item: int = 0, axes: Axes | None = None) -> Axes:
    """The points of the surrogate of one item: worst-case cost to the right, probability upwards.

    The likeliest are labelled with their integer values; a point that was drawn twice is shown once, with the sum of
    its probabilities. A layer has several candidates only in training mode.

    Args:
        decision: what a layer returned.
        item: which item of the batch.
        axes: where to draw.
    """
    if not isinstance(decision, Decision):
        raise ModelError(f"candidates needs what a DROLayer returned, not {type(decision).__name__}.")
    item = _position(item, len(decision.status))
    if not bool(decision.ok[item]):
        raise ModelError(f"Item {item} has no candidates: {decision.statuses[item].advice}")
    p, f = decision.probabilities[item].detach().numpy(force=True), decision.objective[item].detach().numpy(force=True)
    integers = [v for v in decision.candidates if v.attributes.get("boolean") or v.attributes.get("integer")]
    names = [_named(decision, integers, item, k) for k in range(p.size)]
    merged: dict[str, tuple[float, float]] = {}
    for name, probability, cost in zip(names, p, f, strict=True):
        if probability > 0:
            merged[name] = cost, merged.get(name, (0.0, 0.0))[1] + probability
    panel = _panels(axes, 1)[0]
    cost, probability = (np.array(part) for part in zip(*merged.values(), strict=True))
    best = cost <= cost.min()
    panel.vlines(cost, 0.0, probability, color=PLAIN, lw=1.0)
    panel.scatter(cost[~best], probability[~best], color=PLAIN, zorder=3, s=24)
    panel.scatter(cost[best], probability[best], color=WORST, zorder=3, s=36, label="best")
    for k in np.argsort(-probability)[:LABELLED] if integers else []:
        panel.annotate(
            list(merged)[k], (cost[k], probability[k]), (3, 4), textcoords="offset points", fontsize=8, rotation=35
        )
    panel.set(xlabel="worst-case expected cost f", ylabel="probability", ylim=(0.0, 1.25 * probability.max()))
    panel.legend(frameon=False)
    return panel


def price_of_robustness(
    problem: DecisionProblem,
    theta: Theta,
    parameter: str,
    values: ArrayLike,
    axes: Axes | None = None,
    *,
    nominal: Pair | None = None,
    item: int = 0,
    show: Literal["value", "decision"] = "value",
    known: Known | None = None,
) -> Axes:
    """What happens as a set grows: the problem is solved for every value of one parameter of θ.

    Shown are the worst-case expected cost of the best decision, together with its mean cost under the nominal
    distribution where that is given (the distance is the price of robustness); or the decision itself.

    Args:
        problem: the decision problem.
        theta: ``(batch, problem.size)``, or a dict by name; the other parameters are taken from it.
        parameter: a name in ``problem.parameters``, such as "0.sigma" or "radius".
        values: numbers that all entries of the parameter take in turn.
        axes: where to draw.
        nominal: atoms and weights of the batch; needed by a Wasserstein ball.
        item: which item of the batch.
        show: "value" or "decision".
        known: values of ``problem.known`` of the batch.
    """
    if parameter not in problem.parameters:
        raise ModelError(f"There is no parameter {parameter!r}: choose one of {list(problem.parameters)}.")
    if show not in ("value", "decision"):
        raise ModelError(f"show must be 'value' or 'decision', not {show!r}.")
    steps = np.asarray(values, dtype=float)
    if steps.ndim != 1 or not steps.size:
        raise ShapeError(f"values must be a non-empty list of numbers, not of shape {steps.shape}.")
    flat = problem.flat(theta).detach()
    item, count = _position(item, len(flat)), steps.size
    parts = {name: part.clone() for name, part in problem.unpack(flat[item : item + 1].repeat(count, 1)).items()}
    wanted = torch.as_tensor(steps).to(flat).reshape(count, *[1] * len(problem.parameters[parameter]))
    parts[parameter] = wanted.expand_as(parts[parameter])
    around = None if nominal is None else problem.sets.around(nominal, flat).at([item] * count)
    told = _told(problem, known, len(flat), item)
    with torch.no_grad():
        decision = DROLayer(problem).eval()(problem.pack(parts), around, told)
    panel = _panels(axes, 1)[0]
    if show == "decision":
        _lines(panel, steps, {v: decision.best[v] for v in problem.variables})
    else:
        panel.plot(steps, decision.value.numpy(force=True), color=WORST, label="worst-case expected cost")
        if around is not None:
            mean = _nominal_cost(problem, decision.best, around, told)
            panel.plot(steps, mean, color=PLAIN, ls="--", label="cost under the nominal distribution")
        panel.set(ylabel="cost")
        panel.legend(frameon=False)
    panel.set(xlabel=parameter)
    return panel


def training(
    learner: DecisionFocusedLearner,
    axes: Axes | None = None,
    *,
    stage: str | None = None,
    show: Literal["loss", "violations"] = "loss",
) -> Axes:
    """The training curves of a learner, with the epoch that was kept.

    Args:
        learner: a fitted learner; one that was loaded has no history.
        axes: where to draw.
        stage: "prediction" or "decision"; the last that was run unless given.
        show: "loss", or "violations" of the constraints with worst cases, one line a constraint.
    """
    history = getattr(learner, "history_", None)
    if not history:
        raise ModelError("This learner has no training history: fit it first (a loaded one has none).")
    stage = list(history)[-1] if stage is None else stage
    if stage not in history:
        raise ModelError(f"There is no stage {stage!r} in the history: choose one of {list(history)}.")
    if show not in ("loss", "violations"):
        raise ModelError(f"show must be 'loss' or 'violations', not {show!r}.")
    rows = history[stage]
    count = len(learner.problem.rules) if show == "violations" and stage == "decision" else 0
    if show == "violations" and not count:
        raise ModelError("Violations are known of the decision stage of problems whose constraints hold worst cases.")
    of = [f"violations/{k}" for k in range(count)] or [f"{stage}_loss"]
    panel = _panels(axes, 1)[0]
    best = _curve(rows, f"val_{stage}_loss")
    kept = best[0][int(np.argmin(best[1]))] if best[0] else None
    for name in of:
        for key, colour, label in ((name, PLAIN, "training"), (f"val_{name}", WORST, "validation")):
            epochs, values = _curve(rows, key)
            if not values:
                continue
            panel.plot(epochs, values, color=colour, marker=".", label=label if name is of[0] else None)
            if key.startswith("val_") and kept in epochs:
                at = values[epochs.index(kept)]
                told = "kept" if name is of[0] else None
                panel.scatter([kept], [at], s=70, facecolor="none", edgecolor=colour, label=told)
    panel.set(xlabel="epoch", ylabel=f"{stage} loss" if show == "loss" else "violations")
    panel.legend(frameon=False)
    return panel


def _curve(rows: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of what was logged, where it is a number."""
    found = [(row["epoch"] + 1, row[key]) for row in rows if np.isfinite(row.get(key, np.nan))]
    return [epoch for epoch, _ in found], [value for _, value in found]


def _best(decision: Decision | Chosen) -> dict[cp.Variable, Tensor]:
    """A decision by variable."""
    found = decision.best if isinstance(decision, Decision) else decision
    if not isinstance(found, Mapping):
        raise ModelError(f"A decision is what a layer returned, or a dict by variable, not {type(decision).__name__}.")
    return {v: torch.as_tensor(value) for v, value in found.items()}


def _position(item: int, batch: int) -> int:
    """An item of the batch."""
    item = whole("item", item, 0)
    if item >= batch:
        raise ModelError(f"There is no item {item} in a batch of {batch}.")
    return item


def _scatter(
    panel: Axes, worst: WorstCaseDistribution, nominal: Nominal | None, shown: Sequence[int], area: float = 500.0
) -> None:
    """Two coordinates; areas are probabilities."""
    if nominal is not None:
        atoms, mass = _solid(nominal)
        at = atoms[:, shown]
        panel.scatter(at[:, 0], at[:, 1], s=area * mass, color=NOMINAL, alpha=0.6, label="nominal", lw=0)
    atoms, mass = _solid(worst)
    at = atoms[:, shown]
    panel.scatter(at[:, 0], at[:, 1], s=area * mass, color=WORST, alpha=0.75, label="worst case", lw=0)
    panel.set(xlabel=entry(worst.shape, shown[0]), ylabel=entry(worst.shape, shown[1]))
    heaviest = at[int(np.argmax(mass))]
    width = max(np.ptp(panel.get_xlim()), np.ptp(panel.get_ylim()))
    for direction in worst.mass.directions[0].numpy(force=True)[:, shown]:
        length = float(np.linalg.norm(direction))
        if length > 0:
            tip = heaviest + 0.3 * width * direction / length
            panel.annotate("", tip, heaviest, arrowprops={"arrowstyle": "->", "color": WORST, "ls": "--"})


def _stems(panel: Axes, worst: WorstCaseDistribution, nominal: Nominal | None, coordinate: int) -> None:
    """One coordinate: mass at each place, atoms at one place added up."""
    parts = []
    if nominal is not None:
        parts.append((*_solid(nominal), NOMINAL, "nominal", 4.0))
    parts.append((*_solid(worst), WORST, "worst case", 1.8))
    for atoms, mass, colour, label, width in parts:
        places, inverse = np.unique(np.round(atoms[:, coordinate], 9), return_inverse=True)
        heights = np.bincount(inverse.ravel(), mass)
        panel.vlines(places, 0.0, heights, color=colour, lw=width, label=label, alpha=0.85)
    panel.set(xlabel=entry(worst.shape, coordinate), ylabel="probability", ylim=(0.0, None))
    reach = worst.mass.directions[0].numpy(force=True)[:, coordinate]
    for sign, end in ((1.0, 0.98), (-1.0, 0.02)):
        if (sign * reach > 0).any():
            style = {"arrowstyle": "->", "color": WORST, "ls": "--"}
            start = (end - 0.25 * sign, 0.5)
            panel.annotate("", (end, 0.5), start, "axes fraction", "axes fraction", arrowprops=style)


def _solid(distribution: Nominal | WorstCaseDistribution) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first item's atoms that have mass, and their mass."""
    atoms, mass = (part[0].numpy(force=True) for part in distribution)
    return atoms.reshape(len(atoms), -1)[mass > 0], mass[mass > 0]


def _named(decision: Decision, integers: Sequence[cp.Variable], item: int, slot: int) -> str:
    """The integer values of a candidate as text; its number where there are none."""
    if not integers:
        return str(slot)
    words = []
    for variable in integers:
        numbers = [round(float(v)) for v in decision.candidates[variable][item, slot].reshape(-1)]
        words.append(("" if set(numbers) <= {0, 1} else ",").join(str(n) for n in numbers))
    return " ".join(words)


def _lines(panel: Axes, steps: NDArray[np.float64], best: Chosen) -> None:
    """Every entry of every variable."""
    count = 0
    for variable, value in best.items():
        entries = value.reshape(len(steps), -1).numpy(force=True)
        for k in range(entries.shape[1]):
            name = f"{variable.name()}[{k}]" if variable.ndim else variable.name()
            panel.plot(steps, entries[:, k], label=name)
            count += 1
    panel.set(ylabel="decision")
    if count <= LABELLED:
        panel.legend(frameon=False)


def _told(problem: DecisionProblem, known: Known | None, batch: int, item: int) -> Known:
    """The known data of one item."""
    return {p: value[item : item + 1].detach() for p, value in problem.known_data.given(known, batch).items()}


def _nominal_cost(problem: DecisionProblem, best: Chosen, nominal: Nominal, known: Known) -> NDArray[np.float64]:
    """The mean cost of each decision under the nominal distribution."""
    atoms, weights = nominal
    batch, count = weights.shape
    repeated = {v: value.repeat_interleave(count, 0) for v, value in best.items()}
    losses = problem.loss(repeated, atoms.reshape(batch * count, -1), known).reshape(batch, count)
    return (weights * losses).sum(1).numpy(force=True)

"""Pictures of decisions on data: coverage, sets over contexts, worst-case costs and constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.errors import ModelError
from drolayers.known import Known, supported
from drolayers.panels import NOMINAL, PLAIN, WORST, entry, panels
from drolayers.problem import DecisionProblem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from drolayers.learning import DecisionFocusedLearner

Array = np.ndarray


def coverage(
    learner: DecisionFocusedLearner,
    Z: Any,
    Y: Any,
    levels: ArrayLike | None = None,
    axes: Axes | None = None,
    *,
    known: Known | None = None,
) -> Axes:
    """The share of outcomes in their sets against the level, with intervals, for the calibration of every level.

    Args:
        learner: one that was calibrated with ``coverage=``; the scores of its calibration rows give the scales.
        Z: contexts that it has not seen.
        Y: their outcomes.
        levels: those to show; from 0.5 up to what the number of calibration rows allows unless given.
        axes: where to draw.
        known: values of ``problem.known``.
    """
    from drolayers.learning.calibration import HELD, Share, conformal, rank, scores

    told = getattr(learner, "scores_", None)
    if told is None or not len(told):
        raise ModelError("This learner was not calibrated by coverage: call calibrate(Z, Y, coverage=0.9) first.")
    wanted = np.linspace(0.5, 0.98, 13) if levels is None else np.atleast_1d(np.asarray(levels, dtype=float))
    # Some outcomes may be in no set, however large.
    held = int(told.isfinite().sum())
    wanted = wanted[[0.0 < level < 1.0 and rank(len(told), level) <= held for level in wanted]]
    if not wanted.size:
        raise ModelError(f"None of the levels can be had from {len(told)} calibration rows: give smaller ones.")
    found = scores(learner.pipeline_, learner.rows(Z, Y, known)) * learner.pipeline_.scale
    shares = [Share.of(int((found <= HELD * conformal(told, level)).sum()), len(found)) for level in wanted]
    panel = panels(axes, 1)[0]
    panel.plot(wanted, wanted, color=NOMINAL, ls="--", label="promised")
    _points(panel, wanted, shares, "on these data")
    panel.set(xlabel="level", ylabel="share of outcomes in their sets")
    panel.legend(frameon=False)
    return panel


def sets(
    learner: DecisionFocusedLearner,
    Z: Any,
    Y: Any,
    axes: Axes | None = None,
    *,
    coordinate: int = 0,
    feature: int | str = 0,
    known: Known | None = None,
) -> Axes:
    """What the predicted sets allow of one coordinate of ``y``, over one feature of the contexts, with the outcomes.

    A line is the interval of the outcomes that a set holds by themselves, as ``learner.coverage`` counts them: those of
    the shape of ``Outcomes``, and those whose moments a moment set allows, such as μ ± √σ, within the support. An
    outcome that is not in its set may lie in the interval all the same, where another coordinate is too far away.

    Args:
        learner: a fitted learner.
        Z: contexts.
        Y: their outcomes.
        axes: where to draw.
        coordinate: that of ``y``, by its place.
        feature: a column of ``Z``, by its place or name.
        known: values of ``problem.known``.
    """
    from drolayers.learning.calibration import HELD

    problem, data = learner.problem, learner.rows(Z, Y, known)
    column, name = _column(learner.feature_names_in_, data.Z.shape[1], feature)
    dim = problem.ambiguity.y.dim
    if not isinstance(coordinate, int | np.integer) or not 0 <= coordinate < dim:
        raise ModelError(f"coordinate must be one of the {dim} coordinates of y, by its place, not {coordinate!r}.")
    shown = entry(problem.ambiguity.y.shape, coordinate)
    theta = problem.pack({key: torch.as_tensor(value) for key, value in learner.predict_set(Z, known).items()})
    own = problem.sets.parts(theta)[0]
    told_of_support = supported(problem.ambiguity.y, known, len(own))
    try:
        inside = (problem.ambiguity.scores(own, data.Y.to(own), told_of_support) <= HELD).numpy(force=True)
    except ModelError as error:
        said = f"{problem.ambiguity!r} holds no outcomes by itself: there is no interval of {shown} to draw."
        raise ModelError(said) from error
    low, high = _interval(problem.ambiguity, own, coordinate, known)
    for side, end in (("below", low), ("above", high)):
        if count := int(np.isinf(end).sum()):
            raise ModelError(
                f"The sets leave no interval of {shown}: it is unbounded {side} in {count} of {len(end)} rows."
            )
    there = ~np.isnan(low) & ~np.isnan(high)
    z, y = data.Z[:, column].numpy(force=True), data.Y[:, coordinate].numpy(force=True)
    panel, empty = panels(axes, 1)[0], int((~there).sum())
    told = "sets" if not empty else f"sets, of which {empty} are empty or failed"
    panel.vlines(z[there], low[there], high[there], color=NOMINAL, lw=1.2, alpha=0.45, label=told)
    panel.scatter(z[inside], y[inside], s=10, color=PLAIN, lw=0, label=f"in their sets: {inside.mean():.0%}", zorder=3)
    panel.scatter(z[~inside], y[~inside], s=14, color=WORST, lw=0, label="outside", zorder=3)
    panel.set(xlabel=name, ylabel=shown)
    panel.legend(frameon=False)
    return panel


def _interval(ambiguity: AmbiguitySet, theta: Tensor, coordinate: int, known: Known | None) -> tuple[Array, Array]:
    """The least and the largest mean of a coordinate: infinite without an end, NaN where the set is empty.

    Moments are convex, so that a set that holds a distribution holds its mean by itself as well.
    """
    y, nothing, ends = ambiguity.y, cp.Variable(), []
    told, zeros = supported(y, known, len(theta)), torch.zeros(len(theta), dtype=torch.float64)
    for sign in (-1.0, 1.0):
        cost = sign * cp.vec(y, order="C")[coordinate] + nothing
        mean = DecisionProblem(cost, [nothing == 0], ambiguity)
        ends.append(sign * mean.worst_case_cost({nothing: zeros}, theta, known=told).numpy(force=True))
    return ends[0], ends[1]


def _column(names: list[str] | None, width: int, feature: int | str) -> tuple[int, str]:
    """A feature's place among the columns of contexts, and what it is called."""
    known = names or [f"z[{k}]" for k in range(width)]
    if feature in known:
        return known.index(str(feature)), str(feature)
    if not isinstance(feature, int | np.integer) or not 0 <= feature < width:
        raise ModelError(f"feature must be one of the columns {known}, or its place, not {feature!r}.")
    return int(feature), known[feature]


def worst_case_costs(
    learner: DecisionFocusedLearner, Z: Any, Y: Any, axes: Axes | None = None, *, known: Known | None = None
) -> Axes:
    """Draw the realised cost of every decision against its worst-case cost, with their means.

    Args:
        learner: a fitted learner.
        Z: contexts that it has not seen.
        Y: their outcomes.
        axes: where to draw.
        known: values of ``problem.known``.
    """
    if not hasattr(learner, "disappointment"):
        raise ModelError(
            f"A {type(learner).__name__} has no worst-case costs: give a fitted dro.DecisionFocusedLearner."
        )
    decision, told = learner.decision(Z, known), learner.disappointment(Z, Y, known)
    ok = decision.ok
    if not bool(ok.any()):
        raise ModelError("No row has a decision: see learner.decision(Z).statuses.")
    cost = learner.costs(Z, Y, known)[ok].numpy()
    value = decision.value[ok].numpy()
    panel = panels(axes, 1)[0]
    finite = np.isfinite(cost)
    ends = [min(value.min(), cost[finite].min(initial=np.inf)), max(value.max(), cost[finite].max(initial=-np.inf))]
    panel.plot(ends, ends, color=NOMINAL, ls="--", label="equal")
    label = f"rows, {told.share.rate:.0%} above" + (f", {told.infinite} infinitely far" if told.infinite else "")
    label += f", {told.undecided} without a decision not shown" if told.undecided else ""
    panel.scatter(value[finite], cost[finite], s=10, alpha=0.5, color=PLAIN, lw=0, label=label)
    if np.isfinite(told.realised):
        panel.scatter(
            [told.worst_case_cost], [told.realised], marker="X", s=80, color=WORST, label="their means", zorder=3
        )
    panel.set(xlabel="worst-case expected cost", ylabel="realised cost")
    panel.legend(frameon=False)
    return panel


def violations(
    learner: DecisionFocusedLearner | Sequence[DecisionFocusedLearner],
    Z: Any,
    Y: Any,
    axes: Axes | None = None,
    *,
    known: Known | None = None,
) -> Axes:
    """How often ``dro.always`` and ``dro.chance`` fail on data against how often they may, with intervals.

    Args:
        learner: a fitted learner, or several, for other levels.
        Z: contexts that they have not seen.
        Y: their outcomes.
        axes: where to draw.
        known: values of ``problem.known``.
    """
    allowed: list[float] = []
    shares: list[Any] = []
    learners: Any = learner if isinstance(learner, list | tuple) else [learner]
    for one in learners:
        told = one.report(Z, Y, known).violations
        for rule in one.problem.rules:
            if rule.counted and rule.constraint in told:
                allowed.append(1.0 - rule.level if rule.level else 0.0)
                shares.append(told[rule.constraint])
    if not shares:
        raise ModelError("There is no dro.always and no dro.chance among the constraints, or no decision.")
    panel = panels(axes, 1)[0]
    top = max(*allowed, *(share.high for share in shares))
    panel.plot([0.0, top], [0.0, top], color=NOMINAL, ls="--", label="allowed: at most")
    _points(panel, allowed, shares, "on these data")
    panel.set(xlabel="share of outcomes at which it may fail", ylabel="share at which it fails")
    panel.legend(frameon=False)
    return panel


def _points(panel: Axes, at: Any, shares: Sequence[Any], label: str) -> None:
    """Shares with their intervals."""
    rate = np.array([share.rate for share in shares])
    reach = np.array([[share.rate - share.low for share in shares], [share.high - share.rate for share in shares]])
    panel.errorbar(at, rate, reach.clip(min=0.0), color=WORST, fmt="o", ms=4, capsize=2, lw=1, label=label)

"""Pictures of promises on data: coverage, certificates and constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from drolayers.errors import ModelError
from drolayers.known import Known
from drolayers.panels import NOMINAL, PLAIN, WORST, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from drolayers.learning import DecisionFocusedLearner


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
    from drolayers.learning.data import examples

    told = getattr(learner, "scores_", None)
    if told is None or not len(told):
        raise ModelError("This learner was not calibrated by coverage: call calibrate(Z, Y, coverage=0.9) first.")
    wanted = np.linspace(0.5, 0.98, 13) if levels is None else np.atleast_1d(np.asarray(levels, dtype=float))
    wanted = wanted[[0.0 < level < 1.0 and rank(len(told), level) <= len(told) for level in wanted]]
    if not wanted.size:
        raise ModelError(f"None of the levels can be had from {len(told)} calibration rows: give smaller ones.")
    found = scores(learner.pipeline_, examples(learner.problem, Z, Y, known)) * learner.pipeline_.scale
    shares = [Share.of(int((found <= HELD * conformal(told, level)).sum()), len(found)) for level in wanted]
    panel = panels(axes, 1)[0]
    panel.plot(wanted, wanted, color=NOMINAL, ls="--", label="promised")
    _points(panel, wanted, shares, "on these data")
    panel.set(xlabel="level", ylabel="share of outcomes in their sets")
    panel.legend(frameon=False)
    return panel


def certified(
    learner: DecisionFocusedLearner, Z: Any, Y: Any, axes: Axes | None = None, *, known: Known | None = None
) -> Axes:
    """What every decision cost against what was certified, with their means; above the line it cost more.

    Args:
        learner: a fitted learner.
        Z: contexts that it has not seen.
        Y: their outcomes.
        axes: where to draw.
        known: values of ``problem.known``.
    """
    decision, told = learner.decision(Z, known), learner.disappointment(Z, Y, known)
    ok = decision.ok
    if not bool(ok.any()):
        raise ModelError("No row has a decision: see learner.decision(Z).statuses.")
    cost = learner.costs(Z, Y, known)[ok].numpy()
    value = decision.value[ok].numpy()
    panel = panels(axes, 1)[0]
    ends = [min(value.min(), cost.min()), max(value.max(), cost.max())]
    panel.plot(ends, ends, color=NOMINAL, ls="--", label="as certified")
    panel.scatter(value, cost, s=10, alpha=0.5, color=PLAIN, lw=0, label=f"rows, {told.share.rate:.0%} above")
    panel.scatter([told.certified], [told.realised], marker="X", s=80, color=WORST, label="their means", zorder=3)
    panel.set(xlabel="certified: worst-case expected cost", ylabel="cost")
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
    panel.plot([0.0, top], [0.0, top], color=NOMINAL, ls="--", label="promised: at most")
    _points(panel, allowed, shares, "on these data")
    panel.set(xlabel="share of outcomes at which it may fail", ylabel="share at which it fails")
    panel.legend(frameon=False)
    return panel


def _points(panel: Axes, at: Any, shares: Sequence[Any], label: str) -> None:
    """Shares with their intervals."""
    rate = np.array([share.rate for share in shares])
    reach = np.array([[share.rate - share.low for share in shares], [share.high - share.rate for share in shares]])
    panel.errorbar(at, rate, reach.clip(min=0.0), color=WORST, fmt="o", ms=4, capsize=2, lw=1, label=label)

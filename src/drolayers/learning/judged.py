"""What a fitted learner says of its decisions on data, and the scale of its sets that it takes from data."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isinf
from typing import Any

import cvxpy as cp
import torch
from torch import Tensor

from drolayers.errors import ModelError, ShapeError
from drolayers.known import Known
from drolayers.layer import Decision
from drolayers.learning.calibration import (
    HELD,
    Calibration,
    Disappointment,
    Report,
    Share,
    by_coverage,
    by_disappointment,
    check_unseen,
    disappointed,
    scores,
)
from drolayers.learning.data import Examples, examples, matrix, same_columns
from drolayers.learning.objectives import certifies, check_certified
from drolayers.learning.pipeline import Pipeline
from drolayers.learning.settings import Stage
from drolayers.numbering import RULES, Keyed, keyed_as
from drolayers.problem import DecisionProblem

UNDECIDED = 0.5
"""Share of training rows without a decision from which on a learner says so."""


class Judged(ABC):
    """A learner whose decisions can be judged on data.

    Attributes:
        calibration_: what the scale of its sets was chosen for; None where they are as they were trained.
        calibration_rows_: rows that were held out to choose it; None where there are none.
        scores_: how large sets would have had to be to hold the outcomes of the rows on which it was chosen.
        seen_: fingerprints of the rows that were trained or validated on.
    """

    problem: DecisionProblem
    training: Stage | None
    seed: int
    pipeline_: Pipeline
    outcome_names_in_: list[str] | None
    calibration_: Calibration | None
    calibration_rows_: Examples | None
    scores_: Tensor
    seen_: Tensor
    history_: dict[str, list[dict[str, float]]]

    @abstractmethod
    def decision(self, Z: Any, known: Known | None = None) -> Decision:
        """Decisions for contexts, and known data where the problem has some, with their values and statuses."""

    @abstractmethod
    def _check_fitted(self) -> None:
        """Raise unless it is."""

    @abstractmethod
    def _contexts(self, Z: Any, sized: bool = True) -> Tensor:
        """Contexts of the right width, for sets that have their size."""

    def _tell_undecided(self, data: Examples) -> None:
        """Warn where most rows had no decision in the last epoch, or some cost infinitely much there."""
        epochs = self.history_.get("decision", [])
        if epochs and isinf(epochs[-1].get("decision_loss", 0.0)):
            warnings.warn(
                "The loss of the last epoch is infinite, since some decisions cost infinitely much at the outcomes of "
                "their rows, from which nothing is learnt: see learner.costs(Z, Y), and let the second stage have a "
                "dear way out.",
                stacklevel=4,
            )
        if not epochs or epochs[-1].get("masked_share", 0.0) < UNDECIDED:
            return
        some = data[torch.arange(min(len(data), 64))]
        told = self.pipeline_.decide(some.Z, some.known).statuses
        missing = [status for status in told if not status.ok]
        if missing:
            often = max(set(missing), key=missing.count)
            warnings.warn(
                f"{len(missing)} of {len(told)} training rows have no decision, most of them {often}, so that nothing "
                f"is learnt from them. {often.advice}",
                stacklevel=4,
            )

    @property
    def _uncalibrated(self) -> bool:
        """Whether sets have a shape, but no size yet."""
        return self.training is not None and self.training.coverage is not None and self.calibration_ is None

    def costs(self, Z: Any, Y: Any, known: Known | None = None) -> Tensor:
        """What every decision costs at its outcome, ``(n,)``; NaN where there is none."""
        decision = self.decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        found = torch.full_like(decision.value, torch.nan)
        found[decision.ok] = self.problem.loss(chosen, outcomes, told).to(found)
        return found

    def loss(self, Z: Any, Y: Any, known: Known | None = None) -> float:
        """The mean decision loss over the items that have a decision; NaN where none has."""
        chosen, outcomes, told = self._decided(Z, Y, known)
        return float(self.problem.loss(chosen, outcomes, told).mean()) if len(outcomes) else float("nan")

    def violations(self, Z: Any, Y: Any, known: Known | None = None) -> dict[cp.Constraint, float]:
        """How far decisions miss the constraints with worst cases on data; NaN where there are no decisions.

        By constraint: how often ``dro.always`` and ``dro.chance`` do not hold, by how much the mean of ``dro.expected``
        and the CVaR of ``dro.cvar`` exceed their bounds, each by itself where a constraint holds several (negative:
        room to spare).
        """
        chosen, outcomes, told = self._decided(Z, Y, known)
        if not len(outcomes):
            return Keyed({rule.constraint: float("nan") for rule in self.problem.rules}, self.problem, RULES)
        missed = self.problem.missed(chosen, outcomes, told)
        return keyed_as(missed, {c: float(value) for c, value in missed.items()})

    def calibrate(
        self,
        Z: Any = None,
        Y: Any = None,
        *,
        coverage: float | None = None,
        disappointment: float | None = None,
        known: Known | None = None,
        scales: Sequence[float] | None = None,
    ) -> Calibration:
        """Scale the sets on data that nothing was trained on; decisions are those of the scaled sets from then on.

        Either outcomes are covered with a probability, or decisions do not cost more than was certified, on average.
        An earlier scale is forgotten.

        Args:
            Z: contexts; those that ``fit(calibration_share=)`` held out unless given.
            Y: their outcomes.
            coverage: probability with which a new outcome, as a distribution of its own, lies in its set; its cost is
                then not above what was certified.
            disappointment: largest chance, over draws of the calibration data, that decisions cost on average more than
                what was certified; it takes rows enough for costs that come at one of twenty to be among them.
            known: values of ``problem.known``, one row a context.
            scales: those to try for a disappointment.
        """
        self._check_fitted()
        if (coverage is None) == (disappointment is None):
            raise ModelError("calibrate needs either coverage= or disappointment=, such as coverage=0.9.")
        data = self._calibration_data(Z, Y, known)
        pipeline, before = self.pipeline_.eval(), self.pipeline_.scale
        pipeline.scale, known_scores = 1.0, self.scores_
        try:
            if coverage is not None:
                found, known_scores = by_coverage(pipeline, data, coverage)
            else:
                found = by_disappointment(pipeline, data, float(disappointment or 0.0), scales, self.seed)
        except BaseException:
            pipeline.scale = before
            raise
        pipeline.scale, self.calibration_, self.scores_ = found.scale, found, known_scores
        return found

    def _calibration_data(self, Z: Any, Y: Any, known: Known | None) -> Examples:
        """Rows that were held out, or that are given and were not trained on."""
        if Z is None and Y is None:
            held = getattr(self, "calibration_rows_", None)
            if held is None:
                raise ModelError("No rows were held out: give Z and Y, or fit with calibration_share=0.2.")
            return held
        if Z is None or Y is None:
            raise ModelError("calibrate needs both Z and Y, or neither for the rows that were held out.")
        data = self.rows(Z, Y, known, "calibration ", sized=False)
        check_unseen(data, self.seen_, "give others, or fit with calibration_share=0.2")
        return data

    def rows(self, Z: Any, Y: Any, known: Known | None = None, what: str = "", sized: bool = True) -> Examples:
        """Contexts, outcomes and known data with the columns of training."""
        self._contexts(Z, sized)
        same_columns(Y, f"{what}Y", self.outcome_names_in_)
        return examples(self.problem, Z, Y, known, what)

    def coverage(self, Z: Any, Y: Any, known: Known | None = None) -> Share:
        """The share of outcomes that lie, each as a distribution of its own, in the sets predicted for them."""
        return self._covered(self.rows(Z, Y, known))

    def _covered(self, data: Examples) -> Share:
        """The same of rows that were checked."""
        if not len(data):
            return Share.of(0, 0)
        return Share.of(int((scores(self.pipeline_, data, nonempty=True) <= HELD).sum()), len(data))

    def disappointment(self, Z: Any, Y: Any, known: Known | None = None) -> Disappointment:
        """What was certified beside what came, over the items that have a decision."""
        check_certified(self.problem)
        decision = self.decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        return disappointed(decision.value[decision.ok], self.problem.loss(chosen, outcomes, told), self.seed)

    def report(self, Z: Any, Y: Any, known: Known | None = None) -> Report:
        """What became of decisions on data: cost, certificates, coverage and constraints; ``print`` shows it."""
        decision = self.decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        cost, solved = self.problem.loss(chosen, outcomes, told), len(outcomes)
        missed = self.problem.missed(chosen, outcomes, told) if solved else {}
        found: dict[cp.Constraint, Share | float] = {
            r.constraint: Share.of(round(float(missed[r.constraint]) * solved), solved)
            if r.counted
            else float(missed[r.constraint])
            for r in self.problem.rules
            if solved
        }
        rows = Examples(self._contexts(Z)[decision.ok], outcomes, known=self._table(known, decision)[decision.ok])
        try:
            covered = self._covered(rows)
        except ModelError:
            covered = None
        mean = float(cost.mean()) if solved else float("nan")
        spread = float(cost.std()) if solved > 1 else float("nan")
        value = decision.value[decision.ok]
        certified = disappointed(value, cost, self.seed) if certifies(self.problem) else None
        error = spread / max(solved, 1) ** 0.5
        by_rule = Keyed(found, self.problem, RULES)
        return Report(len(decision.status), solved, mean, error, certified, covered, by_rule)

    def _decided(self, Z: Any, Y: Any, known: Known | None) -> tuple[dict[cp.Variable, Tensor], Tensor, Known | None]:
        """Decisions, outcomes and known data of the items that have a decision."""
        return self._chosen(self.decision(Z, known), Y, known)

    def _chosen(
        self, decision: Decision, Y: Any, known: Known | None
    ) -> tuple[dict[cp.Variable, Tensor], Tensor, Known | None]:
        """The same for decisions that were taken."""
        outcomes = matrix(self.problem.ambiguity.y.rows(Y), "Y")
        same_columns(Y, "Y", self.outcome_names_in_)
        if len(outcomes) != len(decision.status):
            raise ShapeError(f"Z has {len(decision.status)} rows and Y has {len(outcomes)}.")
        ok, told = decision.ok, self._table(known, decision)
        chosen = {variable: value[ok] for variable, value in decision.best.items()}
        return chosen, outcomes[ok], self.problem.known_data.values(told[ok])

    def _table(self, known: Known | None, decision: Decision) -> Tensor:
        """The known data of decisions, one row each."""
        return self.problem.known_data.table(known, len(decision.status))

    def score(self, Z: Any, Y: Any, known: Known | None = None) -> float:
        """The negative decision loss, so that greater is better."""
        return -self.loss(Z, Y, known)

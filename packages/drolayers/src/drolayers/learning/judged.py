"""What a fitted learner says of its decisions on data, and the scale of its sets that it takes from data."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import torch
from torch import Tensor

from conelayers.internals import Keyed, check_same_index, describe_unsolved, keyed_as, row_weights
from drolayers.cost.rules import RULES
from drolayers.errors import ModelError, ShapeError, UnsolvedItemsWarning
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
from drolayers.learning.comparison import Findings
from drolayers.learning.data import Examples, check_in_support, examples, matrix, same_columns, warn_outside_support
from drolayers.learning.objectives import check_cost_value, has_cost_value
from drolayers.learning.pipeline import Pipeline
from drolayers.learning.policy import Missing, check_missing, lacks_rows, mean_cost, warn_unsolved_rows
from drolayers.learning.settings import Stage
from drolayers.problem import DecisionProblem

CHECKED_ROWS = 512
"""Training and validation rows, of each, that are solved again after a fit in which some had no decision."""


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
    report_: Findings

    @abstractmethod
    def decision(self, Z: Any, known: Known | None = None) -> Decision:
        """Decisions for contexts, and known data where the problem has some, with their values and statuses."""

    @abstractmethod
    def _check_fitted(self) -> None:
        """Raise unless it is."""

    @abstractmethod
    def _contexts(self, Z: Any, sized: bool = True) -> Tensor:
        """Contexts of the right width, for sets that have their size."""

    def _warn_undecided_rows(self, training: Examples, held_out: Examples | None) -> None:
        """Warn if rows have no decision after the last epoch, or if some cost infinitely much there."""
        epochs = self.history_.get("decision", [])
        if epochs and math.isinf(epochs[-1].get("decision_loss", 0.0)):
            warnings.warn(
                "The loss of the last epoch is infinite, since some decisions cost infinitely much at the outcomes of "
                "their rows, from which nothing is learnt: see learner.costs(Z, Y), and let the second stage have a "
                "dear way out.",
                stacklevel=4,
            )
        chosen = self.report_.chosen
        unsolved = bool(epochs) and any(epochs[-1].get(name, 0.0) for name in ("masked_share", "val_masked_share"))
        if not unsolved and (chosen is None or chosen.solved == 1.0):
            return
        for rows, data in (("training rows", training), ("validation rows", held_out)):
            if data is None:
                continue
            some = data[torch.arange(min(len(data), CHECKED_ROWS))]
            statuses = self.pipeline_.decide(some.Z, some.known).statuses
            if not all(status.ok for status in statuses):
                warnings.warn(
                    f"{describe_unsolved(statuses, rows, positions=False)} Nothing is learnt from these rows.",
                    UnsolvedItemsWarning,
                    stacklevel=4,
                )

    @property
    def _uncalibrated(self) -> bool:
        """Whether sets have a shape, but no size yet."""
        return self.training is not None and self.training.coverage is not None and self.calibration_ is None

    @abstractmethod
    def _decision(self, Z: Any, known: Known | None) -> Decision:
        """Decide without a warning of rows that have no decision."""

    def costs(self, Z: Any, Y: Any, known: Known | None = None) -> Tensor:
        """What every decision costs at its outcome, ``(n,)``; NaN where there is none."""
        check_same_index({"Z": Z, "Y": Y, "known": known})
        decision = self._decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        found = torch.full_like(decision.value, torch.nan)
        found[decision.ok] = self.problem.loss(chosen, outcomes, told).to(found)
        return found

    def loss(
        self, Z: Any, Y: Any, known: Known | None = None, sample_weight: Any = None, missing: Missing = "worst"
    ) -> float:
        """Return the mean cost of the decisions.

        Args:
            Z: contexts.
            Y: their outcomes.
            known: values of ``problem.known``, one row a context.
            sample_weight: one nonnegative number a row; equal unless given. A row of weight zero counts as absent.
            missing: if a row has no decision, "worst" returns NaN and warns (``dro.UnsolvedItemsWarning``), and "skip"
                averages the other rows; NaN with a warning if no row has one.
        """
        cost = self._mean_cost(Z, Y, known, sample_weight, missing, "The loss is NaN")
        return math.nan if cost is None else cost

    def violations(
        self, Z: Any, Y: Any, known: Known | None = None, missing: Missing = "worst"
    ) -> dict[cp.Constraint, float]:
        """Measure how far decisions miss the constraints with worst cases on data.

        Args:
            Z: contexts.
            Y: their outcomes.
            known: values of ``problem.known``, one row a context.
            missing: if a row has no decision, "worst" returns NaN and warns (``dro.UnsolvedItemsWarning``), and "skip"
                measures the other rows; NaN with a warning if no row has one.

        Returns:
            By constraint: how often ``dro.always`` and ``dro.chance`` do not hold, by how much the mean of
            ``dro.expected`` and the CVaR of ``dro.cvar`` exceed their bounds, each by itself where a constraint holds
            several (negative: room to spare).
        """
        check_missing(missing)
        check_same_index({"Z": Z, "Y": Y, "known": known})
        decision = self._decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        if lacks_rows(decision.ok, None, missing):
            warn_unsolved_rows(describe_unsolved(decision.statuses, "rows"), "The violations are NaN", missing)
            return Keyed({rule.constraint: math.nan for rule in self.problem.rules}, self.problem, RULES)
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

        Either outcomes are covered with a probability, or decisions cost on average no more than their worst-case cost.
        An earlier scale is forgotten.

        Args:
            Z: contexts; those that ``fit(calibration_share=)`` held out unless given.
            Y: their outcomes.
            coverage: probability with which a new outcome, as a distribution of its own, lies in its set; its cost is
                then not above the worst-case cost.
            disappointment: largest chance, over draws of the calibration data, that decisions cost on average more than
                their worst-case cost; it takes rows enough for costs that come at one of twenty to be among them.
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
        check_in_support(self.problem, data, "calibration ")
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
        """Compare worst-case costs with realised costs, over the rows that have a decision; the others are counted."""
        check_cost_value(self.problem)
        check_same_index({"Z": Z, "Y": Y, "known": known})
        decision = self._decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        return disappointed(
            decision.value[decision.ok],
            self.problem.loss(chosen, outcomes, told),
            self.seed,
            undecided=int((~decision.ok).sum()),
        )

    def report(self, Z: Any, Y: Any, known: Known | None = None) -> Report:
        """Judge decisions on data: cost, worst-case cost, coverage and constraints; ``print`` shows it.

        Rows without a decision are counted and left out of all figures.
        """
        check_same_index({"Z": Z, "Y": Y, "known": known})
        decision = self._decision(Z, known)
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
        compared = disappointed(value, cost, self.seed) if has_cost_value(self.problem) else None
        error = spread / max(solved, 1) ** 0.5
        by_rule = Keyed(found, self.problem, RULES)
        return Report(len(decision.status), solved, mean, error, compared, covered, by_rule, self.calibration_)

    def _chosen(
        self, decision: Decision, Y: Any, known: Known | None
    ) -> tuple[dict[cp.Variable, Tensor], Tensor, Known | None]:
        """Select decisions, outcomes and known data of the rows that have a decision."""
        outcomes = matrix(self.problem.ambiguity.y.rows(Y), "Y")
        same_columns(Y, "Y", self.outcome_names_in_)
        if len(outcomes) != len(decision.status):
            raise ShapeError(f"Z has {len(decision.status)} rows and Y has {len(outcomes)}.")
        ok, told = decision.ok, self._table(known, decision)
        warn_outside_support(self.problem, outcomes, self.problem.known_data.values(told))
        chosen = {variable: value[ok] for variable, value in decision.best.items()}
        return chosen, outcomes[ok], self.problem.known_data.values(told[ok])

    def _table(self, known: Known | None, decision: Decision) -> Tensor:
        """The known data of decisions, one row each."""
        return self.problem.known_data.table(known, len(decision.status))

    def score(
        self, Z: Any, Y: Any, known: Known | None = None, sample_weight: Any = None, missing: Missing = "worst"
    ) -> float:
        """Return the negative mean cost, so that greater is better.

        Args:
            Z: contexts.
            Y: their outcomes.
            known: values of ``problem.known``, one row a context.
            sample_weight: one nonnegative number a row; equal unless given. A row of weight zero counts as absent.
            missing: if a row has no decision, "worst" returns minus infinity and warns (``dro.UnsolvedItemsWarning``),
                and "skip" averages the other rows; minus infinity with a warning if no row has one.
        """
        cost = self._mean_cost(Z, Y, known, sample_weight, missing, "The score is minus infinity")
        return -math.inf if cost is None else -cost

    def _mean_cost(
        self, Z: Any, Y: Any, known: Known | None, sample_weight: Any, missing: Missing, consequence: str
    ) -> float | None:
        """Average the costs of the decisions by the weights of rows; None, with a warning, if rows lack a decision."""
        check_missing(missing)
        check_same_index({"Z": Z, "Y": Y, "known": known, "sample_weight": sample_weight})
        decision = self._decision(Z, known)
        chosen, outcomes, told = self._chosen(decision, Y, known)
        weights, ok = row_weights(sample_weight, len(decision.status)), decision.ok.cpu()
        if lacks_rows(ok, weights, missing):
            warn_unsolved_rows(describe_unsolved(decision.statuses, "rows"), consequence, missing)
            return None
        costs = torch.full((len(ok),), torch.nan, dtype=torch.float64)
        costs[ok] = self.problem.loss(chosen, outcomes, told).double().cpu()
        return mean_cost(costs, ok, weights)

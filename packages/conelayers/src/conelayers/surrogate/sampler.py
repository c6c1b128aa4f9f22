"""The candidates of the surrogate of an integer problem, enumerated or sampled, with their probabilities."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.checks import whole
from conelayers.engine.engine import Engine
from conelayers.errors import ModelError
from conelayers.integer.oracle import Candidates, Oracle
from conelayers.program.program import ConeProgram, Values
from conelayers.surrogate.energy import (
    RelativeTemperature,
    Temperature,
    check_temperature,
    compute_temperature,
    energy_probabilities,
)
from conelayers.surrogate.proposal import Draws, Proposal, ProposalInput, Stratified
from conelayers.surrogate.solved_candidates import SolvedCandidates

ENUMERATE_UP_TO = 32
"""Integer points up to which all are solved in training, rather than sampled."""


@dataclass(frozen=True, eq=False)
class WeightedCandidates:
    """Solved candidates with their probabilities.

    Args:
        solved: the candidates.
        probabilities: p of each, ``(batch, candidate)``.
        temperature: λ of each item.
        oracle: the answer of the oracle; None if all points were enumerated.
    """

    solved: SolvedCandidates
    probabilities: Float[Tensor, "batch candidate"]
    temperature: Float[Tensor, "batch"]
    oracle: Candidates | None


@dataclass(eq=False)
class CandidateSampler:
    """Choose candidates of an integer problem and weight them by their energies.

    Args:
        candidates: T, the number of best integer points asked of the oracle.
        samples: S, the number of points drawn by the proposal; 0 takes the T best alone, "all" every integer point.
        temperature: λ; absolute, or relative to the spread of the candidates' objectives.
        proposal: draws points around the best.
        enumerate_up_to: integer points up to which all are solved; 0 always samples.
        seed: of the draws; None follows torch's global generator.
    """

    candidates: int = 3
    samples: int | Literal["all"] = 4
    temperature: Temperature = field(default_factory=RelativeTemperature)
    proposal: Proposal = field(default_factory=Stratified)
    enumerate_up_to: int = ENUMERATE_UP_TO
    seed: int | None = 0

    def __post_init__(self) -> None:
        drawn, integral = 0 if self.samples == "all" else self.samples, int | np.integer
        counts = isinstance(self.candidates, integral) and isinstance(drawn, integral)
        if not (counts and self.candidates >= 1 and int(drawn) >= 0):
            raise ModelError(
                "`candidates` must be a whole number of at least 1 and `samples` a whole number or 'all', "
                f"got {self.candidates!r} and {self.samples!r}."
            )
        if not (hasattr(self.proposal, "sample") and hasattr(self.proposal, "log_intensity")):
            raise ModelError(
                f"`proposal` must have the methods sample and log_intensity, which {self.proposal!r} has not."
            )
        self.temperature = check_temperature(self.temperature)
        self.enumerate_up_to = whole("enumerate_up_to", self.enumerate_up_to, 0)
        self.rng = None if self.seed is None else np.random.default_rng(self.seed)

    def twin(self) -> CandidateSampler:
        """Return a sampler with the same settings, whose temperature and draws are its own."""
        return deepcopy(self)

    @property
    def enumeration_limit(self) -> int | None:
        """The number of points up to which all are solved in training; None for no limit, 0 for never."""
        if self.samples == "all":
            return None
        return max(self.enumerate_up_to, self.candidates + int(self.samples)) if self.enumerate_up_to else 0

    def weigh(
        self,
        program: ConeProgram,
        values: Values,
        points: Float[Tensor, "point integer"] | None,
        oracle: Oracle,
        engine: Engine,
        training: bool,
    ) -> WeightedCandidates:
        """Choose and solve candidates, and weight them: p = softmax(-f/λ - log q).

        Args:
            program: the structure that all items share.
            values: its numbers, one row per item; differentiable.
            points: all integer points that may be feasible, to be enumerated; None to sample.
            oracle: finds the best points.
            engine: solves the cone programs.
            training: whether candidates beside the optimum are wanted.
        """
        if points is not None and training:
            answer = None
            solved = SolvedCandidates.enumerate_points(program, values, points, engine)
            log_intensity = torch.zeros_like(solved.objective)
        else:
            answer, draws = self._sample(program, values.detach(), oracle, training)
            solved = SolvedCandidates.solve_draws(program, values, answer, draws, engine)
            log_intensity = draws.log_intensity
        candidates = solved.objective, solved.value, log_intensity, solved.valid
        temperature = compute_temperature(self.temperature, *candidates, solved.measure_terms(values))
        probabilities = energy_probabilities(solved.objective, log_intensity, solved.valid, temperature)
        return WeightedCandidates(solved, probabilities, temperature, answer)

    @torch.no_grad()
    def _sample(self, program: ConeProgram, values: Values, oracle: Oracle, training: bool) -> tuple[Candidates, Draws]:
        """Find the T best points and draw S others; without training, find the optimum alone."""
        best = oracle.best(program, values, self.candidates if training else 1)
        count = 0 if self.samples == "all" else int(self.samples)
        alike = torch.zeros_like(best.objective)
        if not training or not count:
            return best, Draws(best.points, alike, best.valid)
        lower, upper = program.integer_bounds
        temperature = compute_temperature(self.temperature, best.objective, best.objective[:, 0], alike, best.valid)
        inputs = ProposalInput(best.points, best.objective, best.valid, lower, upper, temperature)
        rng = self.rng or np.random.default_rng(int(torch.randint(2**62, ())))
        return best, self.proposal.sample(inputs, count, rng)

"""Sets of the right size: a scale that is chosen on data which nothing else has seen, and what it promises.

*Coverage.* With scores s = the smallest t for which the set, t times as large, holds the outcome, the ⌈(m+1)(1-α)⌉-th
smallest of m of them is not below that of a new row with probability 1-α, if rows are exchangeable (split conformal
prediction; Vovk, Gammerman and Shafer, 2005). With m < (1-α)/α there is no such one.

*Disappointment.* For sets of distributions the promise is about the value: that decisions cost on average no more than
the worst case that was certified. Scales are gone through from large to small, and the last is kept at which a lower
bound, of level 1-β, of E[certified - realised] is not negative. Stopping at the first that fails tests hypotheses in a
fixed order, so that the chance of keeping a scale that breaks the promise is β at most, however many there are
(Angelopoulos et al., Learn then Test, 2021); the gap need not grow with the scale for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Literal, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from drolayers.checks import number
from drolayers.cost.lowering import shorten
from drolayers.errors import ModelError
from drolayers.learning.data import Examples
from drolayers.learning.pipeline import Pipeline

SCALES = tuple(2.0 ** (k / 4) for k in range(12, -13, -1))
"""The scales that are tried for a value unless others are given, from 8 to 1/8."""

RESAMPLES = 2000
"""Of a bootstrap."""

MANY = 10
"""Rows from which on a draw of a bootstrap that has no spread says nothing of them all."""

HELD = 1.0 + 1e-9
"""A score up to which an outcome is in the set: the scale is the score of one of them."""


@final
@dataclass(frozen=True)
class Share:
    """A share of rows, with its interval of Clopper and Pearson (95 %)."""

    rate: float
    low: float
    high: float
    rows: int

    @classmethod
    def of(cls, hits: int, rows: int, confidence: float = 0.95) -> Share:
        """So many of so many."""
        if not rows:
            return cls(float("nan"), 0.0, 1.0, 0)
        tail = 0.5 * (1.0 - confidence)
        low = float(stats.beta.ppf(tail, hits, rows - hits + 1)) if hits else 0.0
        high = float(stats.beta.ppf(1.0 - tail, hits + 1, rows - hits)) if hits < rows else 1.0
        return cls(hits / rows, low, high, rows)

    def __str__(self) -> str:
        return f"{self.rate:.3f} [{self.low:.3f}, {self.high:.3f}]"


@final
@dataclass(frozen=True)
class Disappointment:
    """What was certified, beside what came.

    Attributes:
        certified: the mean worst-case expected cost.
        realised: the mean cost.
        low: a bootstrap lower bound of E[certified - realised], of level 95 %.
        share: of the rows that cost more than their certificate.
    """

    certified: float
    realised: float
    low: float
    share: Share

    @property
    def gap(self) -> float:
        """What was certified beyond what came, on average."""
        return self.certified - self.realised

    def __str__(self) -> str:
        told = f"certified {self.certified:.4g}, realised {self.realised:.4g} (difference at least {self.low:.4g})"
        return f"{told}; above the certificate {self.share}"


@final
@dataclass(frozen=True)
class Report:
    """What became of decisions on data.

    Attributes:
        rows: number of rows.
        decided: of those that have a decision, to which all else refers.
        cost: the mean cost.
        error: its standard error.
        disappointment: what was certified, beside what came.
        coverage: the share of outcomes in their sets; None for sets that have no scale for single outcomes.
        violations: by constraint with a worst case, the share of rows at which it fails (``dro.always``,
            ``dro.chance``), or by how much a mean or CVaR exceeds its bound.
    """

    rows: int
    decided: int
    cost: float
    error: float
    disappointment: Disappointment
    coverage: Share | None
    violations: dict[cp.Constraint, Share | float]

    def __str__(self) -> str:
        lines = [
            f"rows           {self.rows}, of which {self.decided} have a decision",
            f"cost           {self.cost:.4g} ± {self.error:.2g}",
            f"certificates   {self.disappointment}",
        ]
        lines += [] if self.coverage is None else [f"coverage       {self.coverage}"]
        for constraint, found in self.violations.items():
            told = f"fails at {found}" if isinstance(found, Share) else f"exceeded by {found:.3g}"
            lines.append(f"constraint     {told}: {shorten(constraint)}")
        return "\n".join(lines)


@final
@dataclass(frozen=True)
class Calibration:
    """A scale, and what it was chosen for.

    Attributes:
        scale: by which sets are multiplied.
        by: what is promised.
        level: 1-α of a coverage, β of a disappointment; None where ``dro.choose`` chose the scale.
        rows: on which it was chosen.
        certified: the mean worst-case expected cost on them at this scale; of a disappointment.
        realised: the mean cost; of a disappointment.
        low: the lower bound of E[certified - realised]; of a disappointment.
    """

    scale: float
    by: Literal["coverage", "disappointment", "choice"]
    level: float | None
    rows: int
    certified: float | None = None
    realised: float | None = None
    low: float | None = None


def rank(count: int, level: float) -> int:
    """⌈(m+1)(1-α)⌉, which is beyond m where there are too few."""
    # 0.9 times 10 is to be nine.
    return ceil((count + 1) * level - 1e-9)


def check_enough(count: int, level: float) -> None:
    """Raise unless there are rows enough for a level."""
    if rank(count, level) > count:
        needed = ceil(level / (1.0 - level) - 1e-9)
        raise ModelError(f"coverage={level:g} needs {needed} calibration rows at least, not {count}.")


def conformal(scores: Float[Tensor, "row"], level: float) -> float:
    """The scale at which a new row is covered with probability ``level``.

    Raises:
        ModelError: there are too few rows, or too many that no scale covers.
    """
    check_enough(len(scores), level)
    place = rank(len(scores), level)
    found = float(scores.sort().values[place - 1])
    if not 0.0 < found < float("inf"):
        raise ModelError(
            f"The scale that covers {level:g} of the rows is {found:g}: the sets hold too few single outcomes, since a "
            "bound that was given, or may be negative, forbids them, or they are points; use disappointment=."
        )
    return found


def lower_bound(gaps: Float[Tensor, "row"], beta: float, generator: np.random.Generator) -> float:
    """A bound below the mean, of level 1-β: the bootstrap of Student's ratio, which knows of skewness.

    A draw without spread says of the mean that it may be anywhere, so that a row or two bound nothing. Where rows are
    many it misses the few that differ, and its spread is taken for the error of the mean at least: costs that are
    certified to the last digit, but for one row, would bound the mean by -1e8.
    """
    values = gaps.double().numpy()
    count, mean = len(values), float(values.mean())
    if count < 2:
        return -float("inf")
    spread = float(values.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(values).max(initial=0.0)):
        return mean
    drawn = values[generator.integers(count, size=(RESAMPLES, count))]
    moved, spreads = drawn.mean(1) - mean, drawn.std(1, ddof=1)
    if count >= MANY:
        spreads = np.maximum(spreads, spread / count**0.5)
    flat = spreads <= 1e-12 * spread
    ratios = np.where(flat, np.copysign(np.inf, moved), moved / np.where(flat, 1.0, spreads))
    return mean - spread * float(np.quantile(ratios, 1.0 - beta, method="higher"))


def descend(
    scales: Sequence[float],
    gaps: Callable[[float], Float[Tensor, "row"] | None],
    beta: float,
    generator: np.random.Generator,
) -> tuple[float, float]:
    """The last scale, from large to small, whose gap is not negative, and the bound that says so.

    Args:
        scales: those to try.
        gaps: certified less realised at a scale, row by row; None where some row has no decision, which is then passed
            over among the largest and ends the search among the others.
        beta: chance of breaking the promise.
        generator: for the bootstrap.

    Raises:
        ModelError: the largest scale does not keep the promise.
    """
    kept: tuple[float, float] | None = None
    for scale in sorted(scales, reverse=True):
        found = gaps(scale)
        if found is None:
            if kept is None:
                continue
            break
        low = lower_bound(found, beta, generator)
        if low < 0.0:
            if kept is None:
                raise ModelError(
                    f"At scale {scale:.3g}, the largest with a decision for every row, costs may exceed what is "
                    f"certified (difference at least {low:.3g}): give larger scales=, or more rows."
                )
            break
        kept = scale, low
    if kept is None:
        raise ModelError("At no scale has every calibration row a decision: see learner.decision(Z).statuses.")
    return kept


@torch.no_grad()
def scores(pipeline: Pipeline, data: Examples) -> Float[Tensor, "row"]:
    """How large every set must be to hold its outcome, in units of its size."""
    sets = pipeline.layer.problem.sets
    return torch.cat(
        [
            sets.scores(pipeline.theta(z, None, known), y)
            for z, y, known in zip(data.Z.split(512), data.Y.split(512), data.known.split(512), strict=True)
        ]
    )


def by_coverage(pipeline: Pipeline, data: Examples, level: float) -> tuple[Calibration, Float[Tensor, "row"]]:
    """The scale that covers a new row with some probability, and the scores that say so."""
    level, found = checked_level("coverage", level), scores(pipeline, data)
    return Calibration(conformal(found, level), "coverage", level, len(data)), found


def by_disappointment(
    pipeline: Pipeline, data: Examples, beta: float, scales: Sequence[float] | None, seed: int
) -> Calibration:
    """The smallest scale, from large ones down, whose certified costs hold on average; leaves the pipeline at some."""
    beta, problem, costs = checked_level("disappointment", beta), pipeline.layer.problem, {}

    def gaps(scale: float) -> Tensor | None:
        pipeline.scale = scale
        decision = pipeline.decide(data.Z, data.known)
        if not bool(decision.ok.all()):
            return None
        realised = problem.loss(decision.best, data.Y, problem.known_data.values(data.known))
        costs[scale] = float(decision.value.mean()), float(realised.mean())
        return decision.value - realised

    kept, low = descend(checked_scales(scales), gaps, beta, np.random.default_rng(seed))
    return Calibration(kept, "disappointment", beta, len(data), *costs[kept], low)


def disappointed(certified: Float[Tensor, "row"], realised: Float[Tensor, "row"], seed: int) -> Disappointment:
    """What was certified beside what came."""
    if not len(realised):
        return Disappointment(float("nan"), float("nan"), float("nan"), Share.of(0, 0))
    # What solvers leave of an equality is no disappointment.
    above = realised > certified + 1e-6 * torch.maximum(certified.abs(), realised.abs())
    low = lower_bound(certified - realised, 0.05, np.random.default_rng(seed))
    share = Share.of(int(above.sum()), len(realised))
    return Disappointment(float(certified.mean()), float(realised.mean()), low, share)


def checked_scales(scales: Sequence[float] | None) -> tuple[float, ...]:
    """Positive numbers."""
    found = SCALES if scales is None else tuple(number("Every entry of scales", scale) for scale in scales)
    if not found or not all(0.0 < scale < float("inf") for scale in found):
        raise ModelError(f"scales must be a non-empty list of positive numbers, not {scales!r}.")
    return found


def checked_level(name: str, level: float) -> float:
    """A number strictly between 0 and 1."""
    if not 0.0 < number(name, level) < 1.0:
        raise ModelError(f"{name} must lie between 0 and 1, both excluded, not {level!r}.")
    return float(level)


def fingerprint(*parts: Examples | None) -> Int[Tensor, "row"]:
    """A number for every row of some data, by which it is known again, also after it was stored in single precision."""
    found = []
    for part in parts:
        if part is not None:
            table = torch.cat([part.Z, part.Y, part.known], 1).float().contiguous().numpy()
            # Minus zero is zero.
            found += [blake2b((row + 0.0).tobytes(), digest_size=8).digest() for row in table]
    return torch.as_tensor(np.frombuffer(b"".join(found), dtype=np.int64).copy())


def _doubles(rows: Int[Tensor, "row"]) -> float:
    """The share of rows that have a double among the others."""
    _, counts = torch.unique(rows, return_counts=True)
    return float(counts[counts > 1].sum()) / max(len(rows), 1)


def met_again(rows: Int[Tensor, "row"], seen: Int[Tensor, "row"]) -> int:
    """How many rows are equal to some that were seen before, if more than chance would have it.

    Where outcomes and contexts take few values, other rows are equal too: as often as rows have a double among
    themselves, both those that were seen, of which a bootstrap makes doubles, and the new ones.
    """
    again = int(torch.isin(rows, seen).sum())
    doubles = min(_doubles(rows), _doubles(seen))
    expected = doubles * len(rows)
    return again if again > expected + 3.0 * (expected * (1.0 - doubles)) ** 0.5 else 0

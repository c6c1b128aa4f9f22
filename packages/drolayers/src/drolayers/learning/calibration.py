"""Sets of the right size: a scale that is chosen on data which nothing else has seen, and what it promises.

*Coverage.* With scores s = the smallest t for which the set, t times as large, holds the outcome, the ⌈(m+1)(1-α)⌉-th
smallest of m of them is not below that of a new row with probability 1-α, if rows are exchangeable (split conformal
prediction; Vovk, Gammerman and Shafer, 2005). With m < (1-α)/α there is no such one.

*Disappointment.* For sets of distributions the promise is about the value: that decisions cost on average no more than
their worst-case cost. Scales are gone through from large to small, and the last is kept at which a lower bound, of
level 1-β, of E[worst-case cost - realised cost] is not negative. Stopping at the first that fails tests hypotheses in a
fixed order, so that the chance of keeping a scale that breaks the promise is β at most, however many there are
(Angelopoulos et al., Learn then Test, 2021); the gap need not grow with the scale for that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, floor, log
from typing import Literal, final

import cvxpy as cp
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from conelayers.internals import number
from drolayers.cost.lowering import shorten
from drolayers.errors import ModelError
from drolayers.learning.data import Examples
from drolayers.learning.objectives import check_cost_value
from drolayers.learning.pipeline import Pipeline

SCALES = tuple(2.0 ** (k / 4) for k in range(12, -13, -1))
"""The scales that are tried for a value unless others are given, from 8 to 1/8."""

RESAMPLES = 2000
"""Of a bootstrap."""

OPEN = 1e-6
"""What solvers may leave open of a cost, relative to it."""

CHANCE = 1e-4
"""With which probability, at most, independent rows of data that take few values are taken for copies."""

DIGITS = 5
"""Numbers of so many digits may be met again by chance."""

NEAR = 0.01
"""Distance from a whole number, where numbers of so many digits are stored in single precision."""

LARGE = 0.1
"""Share of calibration rows that were seen before from which on that is told."""

RARE = 0.05
"""Share of rows that a promise on costs must have been able to see."""

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
    """Compare worst-case costs with realised costs on data.

    Attributes:
        worst_case_cost: the mean worst-case expected cost.
        realised: the mean cost.
        low: a bootstrap lower bound of E[worst-case cost - realised cost], of level 95 % where means are about normal;
            minus infinity where rows say nothing of it: some cost infinitely much, or all differ by the same.
        share: of the rows that cost more than their worst-case cost.
        infinite: how many rows cost infinitely much.
        undecided: how many further rows have no decision and are left out.
    """

    worst_case_cost: float
    realised: float
    low: float
    share: Share
    infinite: int = 0
    undecided: int = 0

    @property
    def gap(self) -> float:
        """By how much worst-case costs exceed realised costs, on average."""
        return self.worst_case_cost - self.realised

    def __str__(self) -> str:
        least = f" (difference at least {self.low:.4g})" if self.low > -float("inf") else ""
        costs = f", since {self.infinite} rows cost infinitely much" if self.infinite else ""
        dropped = f"; {self.undecided} rows without a decision are left out" if self.undecided else ""
        exceeded = f"exceeded in {self.share}{dropped}"
        return f"{self.worst_case_cost:.4g}, realised {self.realised:.4g}{costs}{least}; {exceeded}"


@final
@dataclass(frozen=True)
class Report:
    """What became of decisions on data.

    Attributes:
        rows: number of rows.
        decided: of those that have a decision, to which all else refers.
        cost: the mean cost.
        error: its standard error.
        disappointment: worst-case costs beside realised costs; None for ``dro.fragility``, whose value is no cost.
        coverage: the share of outcomes in their sets; None for sets that have no scale for single outcomes.
        violations: by constraint with a worst case, the share of rows at which it fails (``dro.always``,
            ``dro.chance``), or by how much a mean or CVaR exceeds its bound.
        calibration: the scale of the sets and its promise; None if the sets are as they were trained.
    """

    rows: int
    decided: int
    cost: float
    error: float
    disappointment: Disappointment | None
    coverage: Share | None
    violations: dict[cp.Constraint, Share | float]
    calibration: Calibration | None = None

    def __str__(self) -> str:
        undecided = self.rows - self.decided
        lines = [
            f"rows             {self.rows}, of which {undecided} have no decision and are left out below",
            f"cost             {self.cost:.4g} ± {self.error:.2g}",
            f"worst-case cost  {self.disappointment or 'none: dro.fragility has a target instead'}",
        ]
        lines += [] if self.coverage is None else [f"coverage         {self.coverage}"]
        for constraint, found in self.violations.items():
            told = f"fails at {found}" if isinstance(found, Share) else f"exceeded by {found:.3g}"
            lines.append(f"constraint       {told}: {shorten(constraint)}")
        promise = None if self.calibration is None else self.calibration.promise
        lines.append(f"promised         {promise}" if promise else "not calibrated: the worst-case cost is no promise")
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
        promised: the mean worst-case expected cost on them at this scale; of a disappointment.
        realised: the mean cost; of a disappointment.
        low: the lower bound of E[worst-case cost - realised cost]; of a disappointment.
    """

    scale: float
    by: Literal["coverage", "disappointment", "choice"]
    level: float | None
    rows: int
    promised: float | None = None
    realised: float | None = None
    low: float | None = None

    @property
    def promise(self) -> str | None:
        """State the promise with its confidence; None for a scale that promises nothing."""
        if self.by == "coverage" and self.level is not None:
            return f"a new outcome lies in its set with probability {self.level:g} ({self.rows} calibration rows)"
        if self.by == "disappointment" and self.level is not None:
            return (
                f"costs at most their worst-case costs on average, with confidence {1.0 - self.level:g} "
                f"({self.rows} calibration rows)"
            )
        return None


def enough(beta: float) -> int:
    """Rows that miss costs which come at one row in twenty with probability β/2 at most: (1 - 1/20)^m ≤ β/2.

    No rows bound the mean of costs that none of them has. The other half of β is left to the bound; what is rarer, and
    dear enough to matter for the mean, may still be missed.
    """
    return ceil(log(0.5 * beta) / log(1.0 - RARE) - 1e-9)


def rank(count: int, level: float) -> int:
    """⌈(m+1)(1-α)⌉, which is beyond m where there are too few."""
    # 0.9 times 10 is to be nine.
    return ceil((count + 1) * level - 1e-9)


def check_enough(count: int, level: float) -> None:
    """Raise unless there are rows enough for a level."""
    if rank(count, level) > count:
        # Told by the same formula: the quotient alone may be one too large.
        first = max(floor(level / (1.0 - level)) - 1, 1)
        needed = next(many for many in range(first, first + 4) if rank(many, level) <= many)
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

    A draw without spread says of the mean that it may be anywhere, so that a row or two bound nothing. Nor do rows that
    are all equal, however many, since they do not say how far others may be away, or some that are infinite. Where rows
    are many a draw misses the few that differ, and its spread is taken for the error of the mean at least: costs that
    equal their worst-case costs to the last digit, but for one row, would bound the mean by -1e8.
    """
    values = gaps.double().numpy()
    if len(values) < 2 or not np.isfinite(values).all():
        return -float("inf")
    count, mean, spread = len(values), float(values.mean()), float(values.std(ddof=1))
    if spread <= 1e-12 * float(np.abs(values).max()):
        return -float("inf")
    drawn = values[generator.integers(count, size=(RESAMPLES, count))]
    moved, spreads = drawn.mean(1) - mean, drawn.std(1, ddof=1)
    if count >= MANY:
        spreads = np.maximum(spreads, spread / count**0.5)
    flat = spreads <= 1e-12 * spread
    ratios = np.where(flat, np.copysign(np.inf, moved), moved / np.where(flat, 1.0, spreads))
    return mean - spread * float(np.quantile(ratios, 1.0 - beta, method="higher"))


def differences(worst_case: Float[Tensor, "row"], realised: Float[Tensor, "row"]) -> Float[Tensor, "row"]:
    """Worst-case less realised costs; all the same where they differ by no more than solvers leave open."""
    found = worst_case - realised
    near = (found - found.mean()).abs() <= OPEN * torch.maximum(worst_case.abs(), realised.abs())
    return found.mean().expand_as(found) if bool(near.all() & found.isfinite().all()) else found


def descend(
    scales: Sequence[float],
    gaps: Callable[[float], Float[Tensor, "row"] | None],
    beta: float,
    generator: np.random.Generator,
) -> tuple[float, float]:
    """The last scale, from large to small, whose gap is not negative, and the bound that says so.

    Args:
        scales: those to try.
        gaps: worst-case less realised costs at a scale, row by row; None where some row has no decision, which is then
            passed over among the largest and ends the search among the others.
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
        # NaN is no promise either.
        if not low >= 0.0:
            if kept is None:
                where = f"At scale {scale:.3g}, the largest with a decision for every row, "
                raise ModelError(where + _doubt(found, low))
            break
        kept = scale, low
    if kept is None:
        raise ModelError("At no scale has every calibration row a decision: see learner.decision(Z).statuses.")
    return kept


def _doubt(gaps: Float[Tensor, "row"], low: float) -> str:
    """Why worst-case less realised costs promise nothing."""
    rows, infinite = len(gaps), int((~gaps.isfinite()).sum())
    if infinite:
        return (
            f"{infinite} of {rows} rows cost infinitely much, or have no cost, so that no worst-case cost holds on "
            "average: see learner.costs(Z, Y), and let the second stage have a dear way out, or give larger scales=."
        )
    if bool((gaps == gaps[0]).all()):
        return (
            f"worst-case and realised costs differ by the same, {float(gaps[0]):.3g}, in all {rows} rows, which says "
            "nothing of how far they may be apart in others: give more rows, some of which differ."
        )
    return (
        f"costs may exceed their worst-case costs on average (difference at least {low:.3g}): give larger scales=, or "
        "more rows."
    )


@torch.no_grad()
def scores(pipeline: Pipeline, data: Examples, nonempty: bool = False) -> Float[Tensor, "row"]:
    """How large every set must be to hold its outcome, in units of its size.

    Args:
        pipeline: predicts the sets.
        data: contexts, outcomes and known data.
        nonempty: whether sets are made to hold their witness first, as those of decisions are.
    """
    sets, known_data = pipeline.layer.problem.sets, pipeline.layer.problem.known_data
    return torch.cat(
        [
            sets.scores(pipeline.theta(z, None, known, nonempty=nonempty), y, known_data.values(known))
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
    """The smallest scale, from large ones down, whose worst-case costs hold on average; leaves the pipeline at some."""
    beta, problem, costs = checked_level("disappointment", beta), pipeline.layer.problem, {}
    check_cost_value(problem)
    sizes = checked_scales(scales)
    if len(data) < (needed := enough(beta)):
        raise ModelError(
            f"disappointment={beta:g} needs {needed} calibration rows at least, not {len(data)}: with fewer, costs "
            f"that come at {RARE:.0%} of the rows may be in none of them."
        )

    def gaps(scale: float) -> Tensor | None:
        pipeline.scale = scale
        decision = pipeline.decide(data.Z, data.known)
        if not bool(decision.ok.all()):
            return None
        realised = problem.loss(decision.best, data.Y, problem.known_data.values(data.known))
        costs[scale] = float(decision.value.mean()), float(realised.mean())
        return differences(decision.value, realised)

    kept, low = descend(sizes, gaps, beta, np.random.default_rng(seed))
    return Calibration(kept, "disappointment", beta, len(data), *costs[kept], low)


def disappointed(
    worst_case: Float[Tensor, "row"], realised: Float[Tensor, "row"], seed: int, undecided: int = 0
) -> Disappointment:
    """Compare worst-case costs with realised costs, and count the further rows that have no decision."""
    if not len(realised):
        return Disappointment(float("nan"), float("nan"), float("nan"), Share.of(0, 0), undecided=undecided)
    # What solvers leave of an equality is no disappointment; what is infinite, or no number, is no equality.
    left = OPEN * torch.maximum(worst_case.abs(), realised.abs())
    above = ~(realised <= worst_case + torch.where(left.isfinite(), left, 0.0))
    low = lower_bound(differences(worst_case, realised), 0.05, np.random.default_rng(seed))
    share, infinite = Share.of(int(above.sum()), len(realised)), int(realised.isposinf().sum())
    return Disappointment(float(worst_case.mean()), float(realised.mean()), low, share, infinite, undecided)


def checked_scales(scales: Sequence[float] | None) -> tuple[float, ...]:
    """Positive numbers."""
    listed = SCALES if scales is None else scales if np.iterable(scales) and not isinstance(scales, str) else ()
    found = tuple(number("Every entry of scales", scale) for scale in listed)
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


def met_again(data: Examples, seen: Int[Tensor, "row"]) -> int:
    """How many rows are equal to some that were seen before, if chance would not have it.

    Where outcomes and contexts take few values, other rows are equal too. What chance would have is told by the rows
    seen: n of them, of which N₁ values came once and N₂ twice. A new row is equal to one that came once with
    probability 2N₂/n, and to any with 1 - N₁/n, the share of the rows seen that are equal to another, both but for what
    n rows leave open (Good, 1953; Esty, 1983). Rows are refused

    - where too many are equal to one that came once: a single one, if no value came twice and its numbers have more
      digits than are ever met again by chance;
    - where too many are equal to any;
    - where all are, none more often than it was seen, and drawing as many of both together would hardly find them so.

    Independent rows of data that take few values are refused with probability ``CHANCE`` at most.
    """
    count, before = len(data), len(seen)
    values, place = torch.unique(torch.cat([fingerprint(data), seen]), return_inverse=True)
    mine = place[:count]
    # How often every value occurs.
    here, there = (torch.bincount(part, minlength=len(values)) for part in place.tensor_split([count]))
    met = int((there[mine] > 0).sum())
    if not met:
        return 0
    once, twice, level = int((there == 1).sum()), int((there == 2).sum()), CHANCE / 3.0
    # Pairs that may be expected where so many were seen.
    pairs = 2.0 * float(stats.gamma.isf(level, twice + 1)) / before
    lone = (here[mine] == 1) & (there[mine] == 1)
    if not twice and bool((lone & _fine(data)).any()):
        return met
    spread = (once * (1.0 - once / before) + 2.0 * twice) ** 0.5 / before
    any_of_them = max(1.0 - once / before + float(stats.norm.isf(level)) * spread, pairs)
    for hits, share in ((int(lone.sum()), pairs), (met, any_of_them)):
        if hits and stats.binom.sf(hits - 1, count, min(share, 1.0)) <= level:
            return met
    if bool((here <= there).all()):
        # Counts of values in a draw are negatively associated: all are small at most as often as each by itself.
        together = (here + there).numpy()
        found = stats.hypergeom.logcdf(together // 2, count + before, together, count).sum()
        return met if found <= log(level) else 0
    return 0


def _fine(data: Examples) -> Bool[Tensor, "row"]:
    """Rows with a number of more than ``DIGITS`` digits, which stands in a column of such numbers, in any unit."""
    table = torch.cat([data.Z, data.Y, data.known], 1)
    size = table.abs()
    unit = 10.0 ** (torch.where(size > 0, size, 1.0).log10().floor() - DIGITS + 1)
    return ((size / unit).frac().sub(0.5).abs() < 0.5 - NEAR)[:, ~_stepped(table)].any(1)


def _stepped(table: Float[Tensor, "row column"]) -> Bool[Tensor, "column"]:
    """Columns that hold most numbers twice, or multiples of one step apart, of which no more than have ``DIGITS``."""
    found, steps = torch.zeros(table.shape[1], dtype=torch.bool), torch.arange(1.0, 10.0**DIGITS + 1.0).double()
    for k, column in enumerate(table.T):
        values = column.unique()
        # Few numbers are near a multiple of some step by themselves.
        few, some = 2 * len(values) <= len(column), values[:: max(len(values) // 24, 1)]
        found[k] = few or (len(some) >= 8 and _on_grid(some, steps))
    return found


def _on_grid(values: Float[Tensor, "value"], steps: Float[Tensor, "grid"]) -> bool:
    """Whether ordered numbers divide their range at multiples of one of its parts."""
    left = steps
    for share in (values - values[0]) / (values[-1] - values[0]):
        left = left[(share * left - (share * left).round()).abs() <= NEAR]
    return bool(len(left))


def check_unseen(data: Examples, seen: Int[Tensor, "row"], advice: str) -> None:
    """Refuse rows that were trained or validated on; warn where they cannot be told from others."""
    again = met_again(data, seen)
    if again:
        raise ModelError(
            f"{again} of {len(data)} calibration rows are equal to rows that were trained or validated on, where "
            f"sets look better than they are: {advice}."
        )
    met = int(torch.isin(fingerprint(data), seen).sum())
    if met >= LARGE * len(data):
        warnings.warn(
            f"{met} of {len(data)} calibration rows are equal to rows that were trained or validated on, about as "
            "often as those are equal to one another: so are independent rows of data that take few values, but if "
            "they are copies, sets look better than they are and the promise does not hold: drop copies before "
            "data are split.",
            stacklevel=4,
        )

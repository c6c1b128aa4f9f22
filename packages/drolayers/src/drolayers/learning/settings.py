"""Settings of a learner that belong together, each an immutable object.

Some may change from epoch to epoch: a schedule is any callable from the epoch to a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import cos, pi
from pathlib import Path
from typing import Any, Literal, Self, final

from conelayers import RelativeTemperature, Smoothed
from conelayers.internals import Temperature, check_temperature, number, whole
from drolayers.errors import ModelError

TemperatureSchedule = Callable[[int], Temperature]
SmoothingSchedule = Callable[[int], Smoothed]
RateSchedule = Callable[[int], float]


RATE = 3e-3
"""The usual learning rate of a training."""

FIRST_RATE = 1e-2
"""That of the first, where it is fitted to neighbours and nothing is compared."""

MOST = 50
"""Items a step, where there are enough points."""

MARGIN = 1e-3
"""Room that the default projection leaves, relative to what the nominal distribution needs."""


@dataclass(frozen=True)
class Annealed:
    """A start value, divided by ``divisor`` every ``every`` epochs.

    The paper's temperature is ``Annealed(10.0, divisor=3.0, every=30)``.
    """

    start: float
    divisor: float = 3.0
    every: int = 30

    def __post_init__(self) -> None:
        if not (self.start > 0 and self.divisor >= 1 and self.every >= 1):
            raise ModelError(f"Annealed needs start > 0, divisor >= 1 and every >= 1, not {self}.")

    def __call__(self, epoch: int) -> float:
        """The value in an epoch, counted from zero."""
        return self.start / self.divisor ** (epoch // self.every)


@dataclass(frozen=True)
class Cosine:
    """A start value that falls to zero along a half cosine."""

    start: float
    epochs: int

    def __call__(self, epoch: int) -> float:
        """The value in an epoch, counted from zero."""
        return 0.5 * self.start * (1.0 + cos(pi * epoch / self.epochs))


class Settings:
    """Settings with names, which scikit-learn's searches can reach: ``training__rate``."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All of them by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def but(self, **changes: Any) -> Self:
        """The same with some changed."""
        if unknown := sorted(set(changes) - set(self.get_params())):
            raise ModelError(f"{type(self).__name__} has no {unknown[0]!r}: choose from {sorted(self.get_params())}.")
        return replace(self, **changes)  # type: ignore[type-var]


@final
@dataclass(frozen=True)
class Network(Settings):
    """The default model: one perceptron for every parameter of the set (:class:`SetModel`).

    Args:
        hidden: widths of the hidden layers; ``()`` for a linear model.
        degree: of the polynomials of the covariates that it sees; 1 for the covariates alone.
        extrapolate: whether contexts outside the range seen in training are taken as they are. Otherwise every column
            is clipped to its range, and :meth:`DecisionFocusedLearner.decide` warns of it. The nominal distribution
            sees contexts as they are.
    """

    hidden: Sequence[int] = (64, 64)
    degree: int = 1
    extrapolate: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.extrapolate, bool):
            raise ModelError(f"extrapolate must be True or False, not {self.extrapolate!r}.")
        if not isinstance(self.hidden, Sequence) or isinstance(self.hidden, str):
            raise ModelError(f"hidden must be a list of widths such as (64, 64), not {self.hidden!r}.")
        widths = tuple(whole("Every entry of hidden", width) for width in self.hidden)
        if widths != self.hidden or any(type(width) is not int for width in self.hidden):
            # What is right already stays the same object, as scikit-learn's clones want it.
            object.__setattr__(self, "hidden", widths)
        object.__setattr__(self, "degree", whole("degree", self.degree))


@final
@dataclass(frozen=True)
class Stage(Settings):
    """How one training runs: the first fits sets to data, the second is on decisions.

    The defaults lost least on several problems and models (``benchmarks/rates.py``).

    Args:
        epochs: at most so many; of the first training, 2.5 times as many for locations that are fitted to outcomes.
        rate: Adam's learning rate, or a callable from the epoch to one; "auto" is 1e-2 in the first training (3e-3
            where it is compared, falling to zero where it is to outcomes) and 3e-3 in the second, or what does best on
            validation data among this and a few others (:class:`Trainer`).
        decay: what a rate that is a number is divided by after each third of the epochs; 1 for a constant one.
        batch_size: items a step; None for a tenth of the training points, but 8 at least and 50 at most.
        clip: largest norm of a gradient of the loss in typical units; None for none. Locations that are fitted to
            outcomes at the automatic rate are not clipped, and their rate falls along a half cosine.
        patience: epochs without a better validation loss before training stops; None never stops early.
        locations: of the first training: what locations are fitted to, "nominal" (Q_z, as in the paper) or "outcomes"
            (those of the training points themselves, without the neighbours' bias); "auto" is the latter for sets
            around a centre (``Outcomes``, ``MeanCovariance``), else the first, or what does better on validation data
            where the rate is left open too.
        anchor: of the second: weight, beside the decision loss, of the squared distance of locations to outcomes, both
            in typical units; against overfitting.
        temperature: of the second: λ of the layer, as a number (absolute), ``dro.RelativeTemperature``, or a callable
            from the epoch to either; None anneals a relative one, or keeps that of a layer that was handed in.
        gradient: of the second: "exact", "smoothed", or "auto": smoothed, with an annealed level, where decisions do
            not move with θ on some of the training data, if the other does no better on validation data; a layer that
            was handed in keeps its own.
        smoothing: of the second: the level at which smoothing begins.
        violations: of the second: the largest share of outcomes at which ``dro.always`` and ``dro.chance`` may fail on
            data; means and CVaRs in constraints may then not exceed their bounds there. Held by an augmented Lagrangian
            whose multipliers follow validation data; None leaves constraints to the sets alone.
        coverage: of the second: the probability with which sets are to hold their outcomes. Sets of a batch are scaled
            by what other training rows ask for, so that decisions are those of calibrated sets, and what is learnt is
            their shape. The learner must then be calibrated too: ``fit(calibration_share=0.2)`` does so at its end.
    """

    epochs: int = 30
    rate: float | RateSchedule | Literal["auto"] = "auto"
    decay: float = 1.0
    batch_size: int | None = None
    clip: float | None = 1.0
    patience: int | None = None
    locations: Literal["auto", "nominal", "outcomes"] = "auto"
    anchor: float = 0.0
    temperature: Temperature | TemperatureSchedule | None = None
    gradient: Literal["auto", "exact", "smoothed"] = "auto"
    smoothing: float = 1e-2
    violations: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1), ("patience", 1)):
            if getattr(self, name) is not None or name == "epochs":
                object.__setattr__(self, name, whole(name, getattr(self, name), least))
        for name in ("rate", "decay", "smoothing", "clip"):
            value = getattr(self, name)
            if name == "rate" and value == "auto":
                continue
            if (name == "clip" and value is None) or (name == "rate" and callable(value)):
                continue
            if not 0 < number(name, value) < float("inf"):
                raise ModelError(f"{name} must be positive and finite, not {value!r}.")
        if not number("anchor", self.anchor) >= 0:
            raise ModelError(f"anchor must not be negative, but is {self.anchor!r}.")
        if self.violations is not None and not 0 <= number("violations", self.violations) < 1:
            raise ModelError(f"violations must lie in [0, 1), not {self.violations!r}.")
        if self.coverage is not None and not 0 < number("coverage", self.coverage) < 1:
            raise ModelError(f"coverage must lie between 0 and 1, both excluded, not {self.coverage!r}.")
        for name, known in (
            ("locations", ("auto", "nominal", "outcomes")),
            ("gradient", ("auto", "exact", "smoothed")),
        ):
            if getattr(self, name) not in known:
                raise ModelError(f"{name} must be one of {list(known)}, not {getattr(self, name)!r}.")
        if self.temperature is not None and not callable(self.temperature):
            check_temperature(self.temperature)

    def items(self, points: int) -> int:
        """Items a step of a training on so many points: few points still make enough steps."""
        return min(max(points // 10, 8), MOST) if self.batch_size is None else self.batch_size


OF_ONE = {
    "pretraining": ("locations",),
    "training": ("anchor", "temperature", "gradient", "smoothing", "violations", "coverage"),
}
"""Settings of a stage that mean something to one of the two trainings only."""


def check_places(**stages: Stage | None) -> None:
    """Refuse settings that were given to the training that has no use for them."""
    usual = Stage().get_params()
    for mine, stage in stages.items():
        for owner, names in OF_ONE.items():
            given = {} if stage is None or owner == mine else stage.get_params()
            for name in names:
                if name in given and given[name] != usual[name]:
                    raise ModelError(
                        f"{mine}= has no use for {name}={given[name]!r}: give it to {owner}=dro.Stage(...)."
                    )


@final
@dataclass(frozen=True)
class Trainer(Settings):
    """Where, and on which part of the data, a learner trains.

    Args:
        directory: where checkpoints and logs go; None keeps neither.
        resume: continue from the last checkpoint in ``directory``, where there is one.
        progress: whether to show a progress bar.
        devices: number of processes; more than one run the calling script again, as Lightning's DDP does.
        validation_share: share of the data held out where no validation data are given.
        leave_one_out: whether a training point is kept out of its own nominal distribution.
        budget: epochs, relative to those of the second training, that may go into trials before it and into judging
            them: they compare, on validation data, what is left to "auto" (projection or none, smoothed or exact
            gradients, the rate). What
            decides in the end is the pre-trained model, or another that is better by more than a standard error, or by
            three where the mean is known to suffice (``learner.report_``). 0 compares nothing.
    """

    directory: str | Path | None = None
    resume: bool = False
    progress: bool = True
    devices: int = 1
    validation_share: float = 0.2
    leave_one_out: bool = True
    budget: float = 0.75

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", whole("devices", self.devices))
        if not 0 <= number("budget", self.budget) < float("inf"):
            raise ModelError(f"budget must be at least 0 and finite, not {self.budget!r}.")
        if self.resume and self.directory is None:
            raise ModelError("resume=True needs directory=..., where the interrupted run kept its checkpoints.")
        if not 0 <= number("validation_share", self.validation_share) < 1:
            raise ModelError(f"validation_share must lie in [0, 1), not {self.validation_share}.")


def temperature_schedule(stage: Stage) -> TemperatureSchedule:
    """A schedule from what the user gave; by default relative, from one down to a tenth in three steps."""
    temperature = stage.temperature
    if callable(temperature):
        return temperature
    if temperature is None:
        relative = Annealed(1.0, 3.0, max(1, stage.epochs // 3))
        return lambda epoch: RelativeTemperature(relative(epoch))
    fixed = temperature
    return lambda epoch: fixed


def smoothing_schedule(level: float, epochs: int) -> SmoothingSchedule:
    """Levels of smoothing that fall by ten in the course of the training."""
    annealed = Annealed(level, 10.0**0.5, max(1, -(-epochs // 3)))
    return lambda epoch: Smoothed(annealed(epoch))


def rate_schedule(stage: Stage) -> RateSchedule:
    """Learning rates: the user's own, or a number that falls after each third of the epochs."""
    rate = RATE if stage.rate == "auto" else stage.rate
    return rate if callable(rate) else Annealed(float(rate), stage.decay, max(1, stage.epochs // 3))

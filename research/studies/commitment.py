"""Day-ahead commitment of power stations with recourse on the day, as a robust decision problem."""

from __future__ import annotations

import cvxpy as cp
import numpy as np

from conelayers.checks import number
from conelayers.errors import ModelError
from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.cost.recourse import recourse
from drolayers.problem import DecisionProblem
from drolayers.support import Nonnegative
from drolayers.uncertainty import Uncertain
from research.studies.victoria import BLOCKS, HOURS

NIGHT = 2
"""The first two blocks (midnight to eight) are the night shift, the others the day shift."""


class Commitment:
    """Four slow power stations, contracts and reserve for tomorrow; dispatch once the load is known.

    The day before: which stations run at night and by day (one that runs at night also runs by day), how much energy to
    contract for each block, and how much fast reserve to hold. On the day, block by block: running stations follow the
    load between their least and greatest output, reserve is called up to what is held, and what is then missing is
    bought at an emergency price; what is too much is spilt at a small cost. The dispatch is a linear program, the
    second stage. Powers are in GW, prices in $/MWh, so that costs come out in thousand dollars.

    The figures are of the usual size for brown coal, gas and peaking plant, but they are invented: only the loads are
    data.

    Args:
        emergency: the emergency price.
        ambiguity: the set; by default one squared deviation bound a block.

    Attributes:
        problem: the decision problem.
        night: which stations run at night.
        day: which stations run by day.
        contract: energy bought ahead, by block.
        reserve: fast reserve held, by block.
    """

    must_run = 2.5
    greatest = np.array([1.0, 0.8, 0.6, 0.4])
    least = np.array([0.5, 0.35, 0.25, 0.15])
    fuel = np.array([28.0, 38.0, 48.0, 58.0])
    idling = np.array([5.0, 4.0, 3.0, 2.0])
    start = np.array([60.0, 40.0, 25.0, 12.0])
    contract_price, most_contract = 70.0, 2.5
    reserve_price, most_reserve = 12.0, 3.0
    call_price, spill_price = 150.0, 5.0

    def __init__(self, emergency: float, ambiguity: AmbiguitySet | None = None) -> None:
        self.emergency_price = number("The emergency price", emergency)
        if not self.emergency_price > self.call_price:
            raise ModelError(
                f"The emergency price must exceed {self.call_price}, the price of reserve, not {emergency}."
            )
        stations = len(self.greatest)
        if ambiguity is None:
            ambiguity = MomentSet.grouped(Uncertain(BLOCKS, support=Nonnegative()), 1)
        self.night = cp.Variable(stations, boolean=True, name="night")
        self.day = cp.Variable(stations, boolean=True, name="day")
        self.contract = cp.Variable(BLOCKS, nonneg=True, name="contract")
        self.reserve = cp.Variable(BLOCKS, nonneg=True, name="reserve")
        running = self.idling + self.least * self.fuel
        cost = (
            HOURS * (self.contract_price * cp.sum(self.contract) + self.reserve_price * cp.sum(self.reserve))
            + HOURS * running @ (NIGHT * self.night + (BLOCKS - NIGHT) * self.day)
            + self.start @ (self.day - self.night)
        )
        for block in range(BLOCKS):
            cost += self._dispatch(ambiguity.y[block], block)
        constraints = [
            self.night <= self.day,
            self.contract <= self.most_contract,
            self.reserve <= self.most_reserve,
        ]
        self.problem = DecisionProblem(cost, constraints, ambiguity)

    def _dispatch(self, load: cp.Expression, block: int) -> cp.Expression:
        """The second stage of a block.

        Columns: output of each station above its least, reserve called, emergency, spill, and what is left of each
        station and of the reserve. Rows: the balance, then one for each of these limits.
        """
        stations = len(self.greatest)
        limits = stations + 1
        W = np.zeros((1 + limits, 2 * limits + 2))
        W[0, : limits + 1], W[0, limits + 1] = 1.0, -1.0
        W[1:, :limits] = W[1:, limits + 2 :] = np.eye(limits)
        prices = [*self.fuel, self.call_price, self.emergency_price, self.spill_price, *np.zeros(limits)]
        on = self.night if block < NIGHT else self.day
        missing = load - self.must_run - self.least @ on - self.contract[block]
        rhs = cp.hstack([missing, cp.multiply(self.greatest - self.least, on), self.reserve[block]])
        return recourse(HOURS * np.array(prices), W, rhs)

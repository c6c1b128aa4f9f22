"""Known data: many days with one compiled problem, against building a problem for each; and beside cvxpylayers.

    python benchmarks/known.py [--days 10000] [--rebuilt 20] [--batch 200]

The newsvendor has known stock and prices. All days are solved in one call; as many as ``--rebuilt`` are built again
with their numbers as constants and solved, and the time of all days is extrapolated from these.

cvxpylayers has no ambiguity sets: it gets the same decision with its worst case written out by hand, which is possible
on all of space. A portfolio is rebalanced from holdings at today's rates; a controller steps from its state. Both
answer for the same batch, forward and back to the known data. Seconds are processor time.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m

ITEMS, ASSETS, STATES, CONTROLS = 10, 20, 6, 3


def newsvendor(p: Mapping[str, Any]) -> dro.DecisionProblem:
    """What to order today, with what is in stock and at today's prices."""
    y, x = dro.Uncertain(ITEMS, dro.support.Nonnegative()), cp.Variable(ITEMS, nonneg=True)
    cost = p["price"] @ x + p["short"] @ cp.pos(y - x - p["stock"]) + cp.sum(cp.pos(x + p["stock"] - y))
    return dro.DecisionProblem(cost, [cp.sum(x) <= p["budget"]], dro.MomentSet(y, [m.Norm(1), m.SquaredNorm()]))


def days(count: int, rebuilt: int) -> None:
    """One compiled problem against one problem a day."""
    rng = np.random.default_rng(0)
    data = {
        "stock": rng.uniform(0, 1, (count, ITEMS)),
        "price": rng.uniform(0.5, 1.5, (count, ITEMS)),
        "short": rng.uniform(2, 4, (count, ITEMS)),
        "budget": rng.uniform(5, 15, count),
    }
    theta = torch.as_tensor(np.hstack([rng.uniform(0.5, 2, (count, 2 * ITEMS)), np.full((count, 2), 8.0)]))
    theta = theta[:, [*range(ITEMS), 2 * ITEMS, *range(ITEMS, 2 * ITEMS), 2 * ITEMS + 1]]
    known = {name: torch.as_tensor(value) for name, value in data.items()}
    newsvendor({n: v[0] for n, v in data.items()}).solve(theta[:1])
    start = time.process_time()
    parameters = {n: cp.Parameter(v.shape[1:], nonneg=True, name=n) for n, v in data.items()}
    problem = newsvendor(parameters)
    built = time.process_time()
    found = problem.solve(theta, known=known)
    solved = time.process_time()
    print(f"newsvendor of {ITEMS} items, {count:,} days, {int(found.ok.sum()):,} solved")
    print(f"  one problem:   {built - start:.2f} s to build, {solved - built:.2f} s to solve all days in one call")
    # Afresh each time, as where nothing but the numbers is kept from day to day.
    errors, start = [], time.process_time()
    for day in range(rebuilt):
        alone = newsvendor({n: v[day] for n, v in data.items()}).solve(theta[day : day + 1])
        errors.append(float((alone.objective[0] - found.objective[day]).abs() / (1 + alone.objective[0].abs())))
    each = (time.process_time() - start) / rebuilt
    print(
        f"  rebuilt daily: {1e3 * each:.0f} ms a day, from {rebuilt} days; extrapolated to {count:,}: "
        f"{each * count:.0f} s; the same values to {max(errors):.0e}"
    )


class Portfolio:
    """Rebalance from today's holdings at today's rates: worst expected loss, and what trading costs."""

    name = f"portfolio of {ASSETS} assets with transaction costs"
    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"holdings": (ASSETS,), "rate": (ASSETS,)}

    def variables(self, p: Mapping[str, cp.Parameter]) -> tuple[cp.Variable, cp.Expression, list[cp.Constraint]]:
        """Weights, what is paid in any case, and the rules."""
        x, trade = cp.Variable(ASSETS, nonneg=True), cp.Variable(ASSETS)
        fixed = p["rate"] @ cp.abs(trade) + 0.5 * cp.sum_squares(x)
        return x, fixed, [trade == x - p["holdings"], cp.sum(x) == 1]

    def robust(self, p: Mapping[str, cp.Parameter]) -> tuple[cp.Variable, dro.DecisionProblem]:
        """Every distribution of returns within E‖y - μ‖₂ ≤ σ."""
        (x, fixed, rules), y = self.variables(p), dro.Uncertain(ASSETS)
        return x, dro.DecisionProblem(-y @ x + fixed, rules, dro.MomentSet(y, [m.Norm(2)]))

    def by_hand(
        self, p: Mapping[str, cp.Parameter], mu: cp.Parameter, sigma: cp.Parameter
    ) -> tuple[cp.Variable, cp.Problem]:
        """The worst case is -μ'x + σ‖x‖₂."""
        x, fixed, rules = self.variables(p)
        return x, cp.Problem(cp.Minimize(-mu @ x + sigma * cp.norm(x, 2) + fixed), rules)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """θ and known data."""
        theta = np.hstack([rng.normal(0.05, 0.1, (batch, ASSETS)), np.full((batch, 1), 0.1)])
        return theta, {
            "holdings": rng.dirichlet(np.ones(ASSETS), batch),
            "rate": rng.uniform(0.001, 0.02, (batch, ASSETS)),
        }


class Control:
    """A step of a controller whose gains are today's: deviations count by their size, controls by their square."""

    name = f"control step, {STATES} states, {CONTROLS} controls"
    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"state": (STATES,), "gain": (STATES, CONTROLS)}
    drift = 0.9 * np.eye(STATES) + 0.1 * np.eye(STATES, k=1)

    def variables(self, p: Mapping[str, cp.Parameter]) -> tuple[cp.Variable, cp.Expression, cp.Expression]:
        """Controls, where they lead without noise, and what they cost."""
        u = cp.Variable(CONTROLS)
        return u, self.drift @ p["state"] + p["gain"] @ u, 0.5 * cp.sum_squares(u)

    def robust(self, p: Mapping[str, cp.Parameter]) -> tuple[cp.Variable, dro.DecisionProblem]:
        """Every distribution of the noise within E‖y - μ‖₁ ≤ σ."""
        (u, after, effort), y = self.variables(p), dro.Uncertain(STATES)
        cost = cp.sum(cp.abs(after + y)) + effort
        return u, dro.DecisionProblem(cost, [cp.abs(u) <= 2], dro.MomentSet(y, [m.Norm(1)]))

    def by_hand(
        self, p: Mapping[str, cp.Parameter], mu: cp.Parameter, sigma: cp.Parameter
    ) -> tuple[cp.Variable, cp.Problem]:
        """The worst case is ‖after + μ‖₁ + σ."""
        u, after, effort = self.variables(p)
        return u, cp.Problem(cp.Minimize(cp.norm1(after + mu) + sigma + effort), [cp.abs(u) <= 2])

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """θ and known data."""
        theta = np.hstack([rng.normal(0, 0.2, (batch, STATES)), np.full((batch, 1), 0.3)])
        return theta, {"state": rng.normal(size=(batch, STATES)), "gain": rng.normal(size=(batch, STATES, CONTROLS))}


def timed(run: Callable[[list[Tensor]], Tensor], given: list[Tensor]) -> tuple[Tensor, list[Tensor], float, float]:
    """Decision, gradients of a weighted sum of it, seconds forward and back; the better of three runs."""
    times = []
    for _ in range(3):
        leaves = [value.clone().requires_grad_() for value in given]
        start = time.process_time()
        x = run(leaves)
        middle = time.process_time()
        (x * torch.linspace(1, 2, x.shape[1], dtype=x.dtype)).sum().backward()
        times.append((middle - start, time.process_time() - middle))
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return x.detach(), grads, min(t[0] for t in times), min(t[1] for t in times)


def beside(case: Portfolio | Control, batch: int) -> None:
    """The same decisions by drolayers and by cvxpylayers."""
    try:
        from cvxpylayers.torch import CvxpyLayer
    except ImportError:
        print(
            f"{case.name}: cvxpylayers is not installed (pip install 'drolayers[bench]'), so there is nothing beside it"
        )
        return
    theta, data = case.draw(np.random.default_rng(1), batch)
    signs = {"rate": True}

    def parameters() -> dict[str, cp.Parameter]:
        return {n: cp.Parameter(s, nonneg=signs.get(n, False), name=n) for n, s in case.shapes.items()}

    start = time.process_time()
    x, problem = case.robust(parameters())
    layer = dro.DROLayer(problem)
    ours = time.process_time() - start
    start = time.process_time()
    p, mu, sigma = parameters(), cp.Parameter(theta.shape[1] - 1), cp.Parameter(nonneg=True)
    z, written = case.by_hand(p, mu, sigma)
    peer = CvxpyLayer(written, parameters=[mu, sigma, *p.values()], variables=[z])
    theirs = time.process_time() - start
    given = [torch.as_tensor(theta), *(torch.as_tensor(v) for v in data.values())]

    def by_layer(leaves: list[Tensor]) -> Tensor:
        return layer(leaves[0], known=dict(zip(data, leaves[1:], strict=True))).best[x]

    def by_peer(leaves: list[Tensor]) -> Tensor:
        return peer(leaves[0][:, :-1], leaves[0][:, -1], *leaves[1:])[0]

    mine, my_grads, forward, back = timed(by_layer, given)
    other, their_grads, their_forward, their_back = timed(by_peer, given)
    exact = []
    for item in range(min(batch, 20)):
        numbers = (theta[item, :-1], theta[item, -1], *(v[item] for v in data.values()))
        for parameter, number in zip((mu, sigma, *p.values()), numbers, strict=True):
            parameter.value = number
        written.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        exact.append(z.value)
    errors = [float(np.abs(found[: len(exact)].numpy() - np.array(exact)).max()) for found in (mine, other)]
    print(
        f"{case.name}, batch {batch}: decisions off Clarabel's at 1e-11 by {errors[0]:.0e} (drolayers) and "
        f"{errors[1]:.0e} (cvxpylayers)"
    )
    apart = [
        f"{n} {float(((a - b).abs().flatten(1).amax(1) > 1e-2 * (1 + b.abs().max())).double().mean()):.1%}"
        for n, a, b in zip(("theta", *data), my_grads, their_grads, strict=True)
    ]
    print(f"  items whose gradients are apart by more than 1 %: {', '.join(apart)}")
    for who, built, one, two in (
        ("drolayers", ours, forward, back),
        ("cvxpylayers", theirs, their_forward, their_back),
    ):
        print(f"  {who:12} built in {built:.2f} s, forward {1e3 * one:.0f} ms, backward {1e3 * two:.0f} ms")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=10_000)
    parser.add_argument("--rebuilt", type=int, default=20)
    parser.add_argument("--batch", type=int, default=200)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    days(options.days, options.rebuilt)
    for case in (Portfolio(), Control()):
        beside(case, options.batch)


if __name__ == "__main__":
    main()

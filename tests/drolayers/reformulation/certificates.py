"""What a worst-case distribution must satisfy, written without the library's own moments, supports and losses.

test_helpers_fail.py sees each of them fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from torch import Tensor

import drolayers as dro
from drolayers.reformulation.worst_distribution import WorstCaseDistribution
from tests.drolayers.ambiguity.sets import PHI, Events, Parameters, SetCase
from tests.drolayers.reformulation.problems import Case, Values

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Spread:
    """A distribution of one item: atoms with probabilities, directions, and where each came from."""

    atoms: np.ndarray
    probabilities: np.ndarray
    origin: np.ndarray
    directions: np.ndarray
    direction_origin: np.ndarray


def of_item(found: WorstCaseDistribution, item: int) -> Spread:
    """One item, without what fills up the batch."""
    p, d = found.probabilities[item].numpy(), found.directions[item].numpy()
    kept, moving = p > 0, np.abs(d).max(1, initial=0.0) > 0
    return Spread(
        found.atoms[item].numpy()[kept],
        p[kept],
        found.mass.origin[item].numpy()[kept],
        d[moving],
        found.mass.direction_origin[item].numpy()[moving],
    )


def usage(
    case: SetCase, t: Parameters, nominal: dro.Nominal | None, item: int, mass: Spread
) -> tuple[np.ndarray, np.ndarray]:
    """What a distribution uses of every bound, and the bounds; atoms and directions together."""
    if case.events is not None:
        return _mixed(case.events, t, nominal, item, mass)
    if case.divergence is not None:
        assert nominal is not None
        centres, weights = (part[item].numpy() for part in nominal)
        assert not len(mass.directions)
        np.testing.assert_allclose(mass.atoms, centres[mass.origin], rtol=1e-6, atol=1e-6 * np.abs(centres).max())
        probabilities = np.bincount(mass.origin, mass.probabilities, len(weights))
        return np.array([case.used(probabilities, weights)]), np.array([t["radius"]])
    if case.covariance:
        assert not len(mass.directions)
        xi = (mass.atoms - t["mu"]) @ np.linalg.inv(t["factor"]).T
        mean, second = mass.probabilities @ xi, (mass.probabilities[:, None] * xi).T @ xi
        return np.array([mean @ mean, np.linalg.eigvalsh(second)[-1]]), np.array([t["gamma1"], t["gamma2"]])
    if case.gauge is not None:
        assert not len(mass.directions)
        # As beside the support: how far outside, and how much of the mass.
        return mass.probabilities * case.gauge(t, mass.atoms), mass.probabilities
    if case.ball is None:
        assert case.moments is not None
        assert case.sigma is not None
        used = mass.probabilities @ case.moments(t, mass.atoms)
        if len(mass.directions):
            used = used + case.recession(t, mass.directions).sum(0)
        return used, case.sigma(t)
    assert nominal is not None
    centres, ways = nominal[0][item].numpy(), mass.directions
    moved, bound = case.spent(t, mass.probabilities, mass.atoms - centres[mass.origin])
    if len(ways):
        moved += case.lengths(t, ways).sum() if case.ball[1] == 1 else np.inf
    return np.array([moved]), np.array([bound])


def of_event(events: Events, mass: Spread, event: int) -> tuple[float, Spread]:
    """The probability of an event, and the distribution given that it happens."""
    starts = events.starts
    mine, moving = (np.searchsorted(starts, of, "right") - 1 == event for of in (mass.origin, mass.direction_origin))
    share, first = float(mass.probabilities[mine].sum()), starts[event]
    return share, Spread(
        mass.atoms[mine],
        mass.probabilities[mine] / share,
        mass.origin[mine] - first,
        mass.directions[moving] / share,
        mass.direction_origin[moving] - first,
    )


def _mixed(
    events: Events, t: Parameters, nominal: dro.Nominal | None, item: int, mass: Spread
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are theirs or within the ball, and in every event what its set and support ask."""
    parts = [of_event(events, mass, event) for event in range(len(events.sets))]
    p, shares = events.probabilities(t), np.array([share for share, _ in parts])
    if events.kind is None:
        used, bounds = [np.abs(shares - p)], [np.zeros(len(p))]
    else:
        used = [np.array([p @ PHI[events.kind](cp.Constant(shares / p)).value])]
        bounds = [np.array([t["radius"]])]
    for event, (_, own) in enumerate(parts):
        needed, bound = usage(events.sets[event], events.parameters(t, event), nominal, item, own)
        used += [needed, own.probabilities * events.excess(event, own.atoms)]
        bounds += [bound, np.zeros(len(own.atoms))]
    return np.concatenate(used), np.concatenate(bounds)


def misplaced(case: SetCase, nominal: dro.Nominal | None, item: int, mass: Spread) -> float:
    """By how much the mass of scenarios differs from what it should be."""
    if case.events is not None:
        parts = [(part, of_event(case.events, mass, event)[1]) for event, part in enumerate(case.events.sets)]
        return max(misplaced(part, nominal if part.around else None, item, own) for part, own in parts)
    weights = np.array([1.0]) if nominal is None else nominal[1][item].numpy()
    marginal = np.bincount(mass.origin, mass.probabilities, minlength=weights.size)
    if case.divergence is not None:
        # Mass may go from scenario to scenario, but none is lost.
        marginal, weights = marginal.sum(keepdims=True), np.ones(1)
    return float(np.abs(marginal - weights).max())


def finite(mass: Spread, share: float) -> Spread:
    """The same with directions made real: each gets some mass of its scenario, as far out as it needs."""
    atoms, probabilities, origin = list(mass.atoms), list(mass.probabilities), list(mass.origin)
    for direction, source in zip(mass.directions, mass.direction_origin, strict=True):
        # The heaviest atom of the scenario gives the mass.
        mine = [k for k in range(len(mass.atoms)) if origin[k] == source]
        giver = max(mine, key=lambda k: probabilities[k])
        probabilities[giver] -= share
        atoms.append(atoms[giver] + direction / share)
        probabilities.append(share)
        origin.append(source)
    return Spread(np.array(atoms), np.array(probabilities), np.array(origin), np.zeros((0, 2)), np.zeros(0, dtype=int))


def expected(case: Case, x: Values, mass: Spread) -> float:
    """The expected cost of the atoms."""
    return float(mass.probabilities @ case.cost.value(x, mass.atoms))


def defects(
    case: Case,
    x: Values,
    t: Parameters,
    nominal: dro.Nominal | None,
    item: int,
    f: float,
    mass: Spread,
    escaping: float,
) -> dict[str, float]:
    """By how much a distribution fails to certify f, relatively; a certificate has none above the tolerance."""
    used, bounds = usage(case.set, t, nominal, item, mass)
    size = 1.0 + abs(f)
    found = {
        "marginal": misplaced(case.set, nominal, item, mass),
        "support": float((mass.probabilities * case.support.excess(mass.atoms)).max()),
        "bounds": float(((used - bounds) / (1.0 + np.abs(bounds))).max()),
        "cost": abs(expected(case, x, mass) + escaping - f) / size,
    }
    if len(mass.directions):
        # What escapes is a limit: distributions that exist come as close as one likes.
        for share in (1e-4, 1e-5):
            real = finite(mass, share)
            used, bounds = usage(case.set, t, nominal, item, real)
            slack = 50.0 * share
            found[f"support at mass {share}"] = float((real.probabilities * case.support.excess(real.atoms)).max())
            found[f"bounds at mass {share}"] = float((used - bounds).max()) - slack
            found[f"cost at mass {share}"] = abs(expected(case, x, real) - f) / size - slack
    return found


def assert_certifies(
    case: Case,
    x: Values,
    t: Parameters,
    nominal: dro.Nominal | None,
    item: int,
    f: Tensor,
    found: WorstCaseDistribution,
) -> None:
    """The distribution lies in the set and attains f."""
    values = defects(case, x, t, nominal, item, float(f[item]), of_item(found, item), float(found.escaping_cost[item]))
    broken = {name: value for name, value in values.items() if not value <= TOLERANCE}
    assert not broken, f"item {item}: {broken}"

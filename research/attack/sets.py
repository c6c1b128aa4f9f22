"""The ambiguity sets of the attack: source text, parameters of every item, and the definition as conditions on masses.

A new set is one function here and one line in ``SETS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np

from research.attack.drawn import Draw, Item, text, with_prefix
from research.attack.masses import Constraints, Masses, Region, Values, box, squares_below
from research.attack.moments import MOMENTS

Array = Any
Conditions = Callable[[Item, Values, Masses], Constraints]
"""From an item, the parameters of the set and masses to constraints on these."""


def nothing(item: Item, values: Values, masses: Masses) -> Constraints:
    """No condition."""
    return []


@dataclass(frozen=True)
class SetPart:
    """An ambiguity set.

    Attributes:
        code: source text, in ``y``.
        values: learnt parameters of every item, at size one.
        units: the unit of every parameter.
        conditions: what a distribution of the set satisfies, besides its support.
        reach: what single outcomes satisfy, besides the support: ``dro.always`` asks about these.
        nominal: whether the set needs a nominal distribution.
        scenarios: number of scenarios.
        pinned: whether mass stays at the atoms, so that the support says nothing.
        ball: norm and order of a plain Wasserstein ball.
        groups: the coordinates of every bound on squared deviations.
        regions: for a mixture, the scenarios of every event and the region that the event allows besides the support.
    """

    code: str
    values: tuple[Values, ...]
    units: dict[str, float]
    conditions: Conditions
    reach: Conditions = nothing
    nominal: bool = False
    scenarios: int = 1
    pinned: bool = False
    lines: tuple[str, ...] = ()
    ball: tuple[float, float] | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    regions: tuple[tuple[int, Region | None, bool], ...] = field(default=())

    def support(self, region: Region, masses: Masses) -> Constraints:
        """What the support asks of the masses."""
        if not self.regions:
            return [] if self.pinned else region.constrain(masses)
        constraints, first = Constraints(), 0
        for count, own, pinned in self.regions:
            part = masses.part(first, count, 0.0)
            constraints += [] if pinned else (region if own is None else region.both(own)).constrain(part)
            first += count
        return constraints


# --- Moments ----------------------------------------------------------------------------------------------------------


def _moment_set(draw: Draw, names: list[str]) -> SetPart:
    """The intersection of some moments."""
    moments_of_set = [MOMENTS[name](draw) for name in names]
    values: list[Values] = [{} for _ in range(draw.items)]
    units: dict[str, float] = {}
    for i, moment in enumerate(moments_of_set):
        units |= {f"{i}.{name}": draw.unit**degree for name, degree in moment.degrees.items()}
        for k in range(draw.items):
            own = moment.draw(draw)
            values[k] |= {f"{i}.{name}": value for name, value in own.items()}
            if moment.sigma is None:
                values[k][f"{i}.sigma"] = _bound(draw, moment, own)
        if moment.sigma is None:
            units[f"{i}.sigma"] = draw.unit**moment.degree

    def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
        constraints = Constraints()
        for i, moment in enumerate(moments_of_set):
            parameters = with_prefix(own, f"{i}.")
            sigma = parameters.pop("sigma", moment.sigma)
            constraints += moment.constrain(parameters, sigma, masses)
        return constraints

    return SetPart(
        f"dro.MomentSet(y, [{', '.join(moment.code for moment in moments_of_set)}])", tuple(values), units, conditions
    )


def _bound(draw: Draw, moment: Any, own: Values) -> Array:
    """A bound that the sample meets, or that it may not meet."""
    at = moment.at(own, draw.sample)
    mean, factor = at.mean(0), draw.between(1.05, 4.0, (1.00001, 1e5))
    factor = draw.uniform(0.02, 1.1) if draw.empty else factor
    if moment.gauges[0][1].outer == "affine":
        return np.asarray(mean + (draw.uniform(-1.5, 0.2) if draw.empty else draw.uniform(0.05, 0.5)))
    signed = [gauge for _, gauge in moment.gauges if gauge.outer == "affine"]
    return np.asarray(mean + 0.2 * factor) if signed else np.asarray(mean * factor)


def moments(draw: Draw) -> SetPart:
    """One to three moments."""
    names = [str(name) for name in draw.rng.choice(list(MOMENTS), int(draw.rng.integers(1, 4)), replace=False)]
    return _moment_set(draw, names)


def mean_and_moment(draw: Draw) -> SetPart:
    """The mean and something that bounds the spread."""
    return _moment_set(draw, ["mean", str(draw.choose(("variance", "norm 1", "squared norm", "power 3")))])


def grouped(draw: Draw) -> SetPart:
    """Squared deviations by groups of coordinates."""
    size = int(draw.rng.integers(1, draw.dim + 1))
    groups = [range(i, min(i + size, draw.dim)) for i in range(0, draw.dim, size)]
    values = []
    for _ in range(draw.items):
        mu = draw.near()
        squares = ((draw.sample - mu) ** 2).mean(0)
        factor = draw.uniform(0.05, 1.1) if draw.empty else draw.uniform(1.05, 3.0)
        values.append({"mu": mu, "sigma": factor * np.array([squares[list(g)].sum() for g in groups])})

    def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
        deviations, constraints = masses.about(own["mu"]), Constraints()
        for group, sigma in zip(groups, own["sigma"], strict=True):
            t = cp.Variable(masses.p.shape[0])
            constraints += [squares_below(deviations[:, list(group)], t, masses.p), cp.sum(t) <= sigma * masses.total]
        return constraints

    units = {"mu": draw.unit, "sigma": draw.unit**2}
    code = f"dro.MomentSet.grouped(y, {size})"
    return SetPart(code, tuple(values), units, conditions, groups=tuple(tuple(g) for g in groups))


# --- Around atoms -----------------------------------------------------------------------------------------------------


def wasserstein(draw: Draw) -> SetPart:
    """A ball of any norm and order, with a metric at times, and coordinates that may not move."""
    fixed = [int(draw.rng.integers(draw.dim))] if draw.dim > 1 and draw.chance(0.15) else []
    kind = draw.choose(("none", "none", "none", "given", "learnt"))
    return _ball(draw, draw.choose((1, 1, 2, 2, np.inf)), kind, fixed)


def _plain_ball(order: float) -> Callable[[Draw], SetPart]:
    return lambda draw: _ball(draw, order, "none", [])


def _ball(draw: Draw, order: float, kind: str, fixed: list[int]) -> SetPart:
    """The distributions within a distance of the nominal one."""
    norm = draw.choose((1, 2, np.inf))
    moving = [i for i in range(draw.dim) if i not in fixed]
    matrix = np.eye(len(moving)) + 0.4 * draw.normal((len(moving), len(moving)))
    values: list[Values] = []
    for _ in range(draw.items):
        radius = draw.between(0.02, 1.2, (1e-7, 1e3))
        values.append({"radius": np.asarray(-0.1 if draw.empty and draw.chance(0.5) else radius)})
        if kind == "learnt":
            values[-1]["metric"] = np.eye(len(moving)) + 0.4 * draw.normal((len(moving), len(moving)))

    def ways(item: Item, own: Values, masses: Masses) -> tuple[cp.Expression, Constraints]:
        """Ways in units of the radius, so that the solver's tolerances are relative to it."""
        A = np.eye(len(moving)) if kind == "none" else matrix if kind == "given" else own["metric"]
        if kind == "learnt":
            # A learnt metric is divided by the root of the mean square of its columns' lengths.
            A = A / np.sqrt((A**2).sum() / len(moving))
        shift = masses.about(item.atoms)
        unit = abs(float(own["radius"])) if masses.budget is None else 1.0
        u = cp.Variable((masses.p.shape[0], len(moving)))
        return u, [shift[:, moving] @ A.T == unit * u, *(shift[:, i] == 0 for i in fixed)]

    def lengths(u: cp.Expression) -> cp.Expression:
        return cp.abs(u[:, 0]) if u.shape[1] == 1 else cp.norm(u, norm, axis=1)

    def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
        u, constraints = ways(item, own, masses)
        by_atom = masses.by_scenario(masses.p) == item.weights * masses.total
        constraints = [*constraints, *_impossible(float(own["radius"]), masses), by_atom]
        budget = masses.total if masses.budget is None else masses.budget
        if np.isinf(order):
            return [*constraints, lengths(u) <= masses.p]
        if order == 1:
            return [*constraints, cp.sum(lengths(u)) <= budget]
        t, longest = cp.Variable(masses.p.shape[0]), cp.Variable((masses.p.shape[0], 1))
        constraints += [squares_below(longest, t, masses.p), lengths(u) <= longest[:, 0]]
        return [*constraints, cp.sum(t) <= budget]

    def reach(item: Item, own: Values, masses: Masses) -> Constraints:
        if not np.isinf(order) and not fixed:
            return []
        u, constraints = ways(item, own, masses)
        constraints = constraints + ([lengths(u) <= masses.p] if np.isinf(order) else [])
        return constraints + _possible(item.weights, masses)

    code = f"dro.Wasserstein(y, {draw.atoms}, norm={'np.inf' if np.isinf(norm) else norm}"
    code += f", order={'np.inf' if np.isinf(order) else order}"
    code += f", metric={text(matrix)}" if kind == "given" else ""
    code += f", metric=dro.Learn({len(moving)}, {len(moving)})" if kind == "learnt" else ""
    code += f", fixed={fixed})" if fixed else ")"
    units = {"radius": draw.unit, "metric": 1.0}
    plain = (norm, order) if kind == "none" and not fixed else None
    return SetPart(code, tuple(values), units, conditions, reach, nominal=True, scenarios=draw.atoms, ball=plain)


def _impossible(radius: float, masses: Masses) -> Constraints:
    """A negative radius leaves no distribution."""
    return [cp.sum(masses.p) <= -masses.total] if radius < 0 else []


def _possible(weights: Array, masses: Masses) -> Constraints:
    """No mass in scenarios of weight zero."""
    idle = np.flatnonzero(np.asarray(weights) <= 0)
    return [masses.by_scenario(masses.p)[idle] == 0] if len(idle) else []


def _at_atoms(item: Item, own: Values, masses: Masses) -> Constraints:
    """All mass lies at the atoms of positive weight."""
    return [masses.about(item.atoms) == 0, *_possible(item.weights, masses)]


def empirical(draw: Draw) -> SetPart:
    """The nominal distribution itself."""

    def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
        pinned = masses.about(item.atoms) == 0
        return [pinned, masses.by_scenario(masses.p) == item.weights * masses.total]

    code = f"dro.Empirical(y, {draw.atoms})"
    return SetPart(code, ({},) * draw.items, {}, conditions, _at_atoms, nominal=True, scenarios=draw.atoms, pinned=True)


KINDS = ("kl", "burg", "chi2", "tv", "hellinger")


def ball(kind: str, q: cp.Expression, weights: Array, total: Any, radius: float) -> Constraints:
    """Σ ω_n φ(q_n / (ω_n total)) ≤ radius for the masses q of weights ω, with sum ``total``."""
    inside = np.asarray(weights) > 0
    constraints: Constraints = [q[np.flatnonzero(~inside)] == 0] if (~inside).any() else []
    q, w = q[np.flatnonzero(inside)], np.asarray(weights)[inside]
    if kind == "tv":
        return [*constraints, cp.sum(cp.abs(q - w * total)) <= radius * total]
    if kind == "chi2":
        return [*constraints, cp.norm(cp.multiply(q - w * total, 1 / np.sqrt(w))) <= np.sqrt(max(radius, 0.0)) * total]
    if kind == "kl":
        return [*constraints, cp.sum(cp.rel_entr(q, w * total)) <= radius * total]
    if kind == "burg":
        return [*constraints, cp.sum(cp.rel_entr(w * total, q)) <= radius * total]
    roots = cp.Variable(len(w))
    # Σ ω (√t - 1)² = 2 - 2 Σ √(ω q), with roots below √(q total).
    below = squares_below(cp.reshape(roots, (-1, 1), order="C"), q, total * np.ones(len(w)))
    return [*constraints, below, 2 * total - 2 * np.sqrt(w) @ roots <= radius * total]


def _divergence(kind: str) -> Callable[[Draw], SetPart]:
    def part(draw: Draw) -> SetPart:
        def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
            q = masses.by_scenario(masses.p)
            radius = float(own["radius"])
            bounds = [*_impossible(radius, masses), *ball(kind, q, item.weights, masses.total, abs(radius))]
            return [masses.about(item.atoms) == 0, cp.sum(q) == masses.total, *bounds]

        values = tuple(
            {"radius": np.asarray(-0.1 if draw.empty and draw.chance(0.5) else draw.between(0.02, 1.0, (1e-7, 30.0)))}
            for _ in range(draw.items)
        )
        code = f"dro.Divergence(y, {draw.atoms}, kind={kind!r})"
        return SetPart(
            code, values, {"radius": 1.0}, conditions, _at_atoms, nominal=True, scenarios=draw.atoms, pinned=True
        )

    return part


# --- Shapes and covariances -------------------------------------------------------------------------------------------


def _outcomes(shape: str) -> Callable[[Draw], SetPart]:
    def part(draw: Draw) -> SetPart:
        n, budget = draw.dim, float(draw.uniform(0.8, max(0.9, draw.dim - 0.5)))
        values: list[Values] = []
        for _ in range(draw.items):
            centre = draw.near() + (4.0 * draw.direction() if draw.empty else 0.0)
            if shape == "ellipsoid":
                factor = 0.4 * np.eye(n) + 0.15 * draw.normal((n, n))
                values.append({"centre": centre, "factor": factor})
            else:
                values.append({"centre": centre, "radius": draw.between(0.1, 0.8, (1e-6, 1e2), n)})

        def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
            u, p = masses.about(own["centre"]), masses.p
            if shape == "ellipsoid":
                v = cp.Variable((masses.p.shape[0], n))
                return [u == v @ own["factor"].T, cp.norm(v, 2, axis=1) <= p]
            v = cp.abs(u) @ np.diag(1.0 / own["radius"])
            constraints = [v <= cp.reshape(p, (-1, 1), order="C") @ np.ones((1, n))]
            return constraints if shape == "box" else [*constraints, cp.sum(v, axis=1) <= budget * p]

        code = f"dro.Outcomes(y, {shape!r}{f', budget={text(budget)}' if shape == 'budget' else ''})"
        units = {"centre": draw.unit, "radius": draw.unit, "factor": draw.unit}
        return SetPart(code, tuple(values), units, conditions, conditions)

    return part


def mean_covariance(draw: Draw) -> SetPart:
    """The mean in an ellipsoid and the second moment below a matrix (Delage and Ye, 2010)."""
    n, constant = draw.dim, draw.chance(0.3)
    gamma1, gamma2 = float(draw.uniform(0.05, 0.4)), float(draw.uniform(0.8, 2.0))
    values: list[Values] = []
    for _ in range(draw.items):
        spread = np.cov(draw.sample.T, bias=True).reshape(n, n) + 0.02 * np.eye(n)
        factor = np.linalg.cholesky(spread) * (draw.uniform(0.05, 0.3) if draw.empty else draw.uniform(1.2, 2.0))
        values.append({"mu": draw.sample.mean(0) + (1.5 * draw.direction() if draw.empty else 0.0), "factor": factor})
        values[-1] |= {} if constant else {"gamma1": draw.uniform(0.02, 0.5)}

    def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
        inverse = np.linalg.inv(own["factor"])
        xi, second, constraints = masses.about(own["mu"]) @ inverse.T, [], Constraints()
        for r in range(masses.p.shape[0]):
            # The second moment of a row with mass p and first moment ξ is at least ξξᵀ/p.
            S, M = cp.Variable((n + 1, n + 1), PSD=True), cp.Variable((n, n), symmetric=True)
            constraints += [S[:n, :n] == M, S[:n, n] == xi[r], S[n, n] == masses.p[r]]
            second.append(M)
        bound = np.sqrt(gamma1 if constant else float(own["gamma1"]))
        constraints.append(cp.norm(cp.sum(xi, axis=0)) <= bound * masses.total)
        slack = cp.Variable((n, n), PSD=True)
        return [*constraints, slack == gamma2 * masses.total * np.eye(n) - sum(second)]

    code = f"dro.MeanCovariance(y, gamma2={text(gamma2)}{f', gamma1={text(gamma1)}' if constant else ''})"
    units = {"mu": draw.unit, "factor": draw.unit, "gamma1": 1.0}
    return SetPart(code, tuple(values), units, conditions)


# --- Mixtures ---------------------------------------------------------------------------------------------------------


def mixture(draw: Draw) -> SetPart:
    """Two events, one of them perhaps within a box, with probabilities that are given, learnt or in a ball."""
    inner = [_EVENTS[str(draw.choose(list(_EVENTS)))](draw) for _ in range(2)]
    kind = draw.choose((None, None, *KINDS))
    share = draw.uniform(0.2, 0.8) if draw.chance(0.4) else None
    region = box(draw.centre - 1.35, draw.centre + 1.35) if draw.chance(0.5) else None
    shares = [rounded_shares(draw) for _ in range(draw.items)]
    values: list[Values] = []
    units = {"weights": 1.0, "radius": 1.0}
    for k in range(draw.items):
        values.append({} if share is not None else {"weights": shares[k]})
        values[k] |= {} if kind is None else {"radius": draw.between(0.02, 0.6, (1e-7, 30.0))}
        for event, part in enumerate(inner):
            values[k] |= {f"{event}.{name}": value for name, value in part.values[k].items()}
    for event, part in enumerate(inner):
        units |= {f"{event}.{name}": unit for name, unit in part.units.items()}

    def parts(own: Values, masses: Masses, totals: Any) -> list[tuple[SetPart, Values, Masses]]:
        events, first = [], 0
        for event, part in enumerate(inner):
            event_masses = masses.part(first, part.scenarios, totals[event])
            events.append((part, with_prefix(own, f"{event}."), event_masses))
            first += part.scenarios
        return events

    def conditions(item: Item, own: Values, masses: Masses) -> Constraints:
        p = np.array([share, 1 - share]) if share is not None else own["weights"] / own["weights"].sum()
        totals = cp.Variable(2, nonneg=True)
        constraints: Constraints = [cp.sum(totals) == masses.total]
        if kind is None:
            constraints.append(totals == p * masses.total)
        else:
            constraints += ball(kind, totals, p, masses.total, float(own["radius"]))
        for event, (part, parameters, event_masses) in enumerate(parts(own, masses, totals)):
            constraints += [cp.sum(event_masses.p) == totals[event], *part.conditions(item, parameters, event_masses)]
        return constraints

    def reach(item: Item, own: Values, masses: Masses) -> Constraints:
        return [c for part, parameters, m in parts(own, masses, [0.0, 0.0]) for c in part.reach(item, parameters, m)]

    lines: tuple[str, ...] = ()
    second = inner[1].code
    if region is not None:
        low, high = draw.unit * (draw.centre - 1.35), draw.unit * (draw.centre + 1.35)
        lines = (f"inside = y.within(s.Box({text(low)}, {text(high)}))",)
        second = second.replace("(y,", "(inside,")
    code = f"dro.Mixture([{inner[0].code}, {second}]"
    code += f", weights={text(np.array([share, 1 - share]))}" if share is not None else ""
    code += f", kind={kind!r})" if kind else ")"
    regions = tuple((p.scenarios, r, p.pinned) for p, r in zip(inner, (None, region), strict=True))
    return SetPart(
        code,
        tuple(values),
        units,
        conditions,
        reach,
        nominal=any(part.nominal for part in inner),
        scenarios=sum(part.scenarios for part in inner),
        lines=lines,
        regions=regions,
    )


def rounded_shares(draw: Draw) -> Array:
    """Proportions of two events."""
    return draw.uniform(0.2, 1.0, 2)


SETS: dict[str, Callable[[Draw], SetPart]] = {
    "moments": moments,
    "mean and moment": mean_and_moment,
    "grouped": grouped,
    "wasserstein": wasserstein,
    **{f"ball of order {order:g}": _plain_ball(order) for order in (1, 2, np.inf)},
    "empirical": empirical,
    **{kind: _divergence(kind) for kind in KINDS},
    **{f"outcomes {shape}": _outcomes(shape) for shape in ("box", "ellipsoid", "budget")},
    "mean and covariance": mean_covariance,
    "mixture": mixture,
}
WEIGHTS = {"moments": 6, "mean and moment": 2, "grouped": 1, "wasserstein": 5, "mixture": 2}
"""How often a set is drawn, relative to those that are not named."""

_EVENTS = {name: SETS[name] for name in ("moments", "grouped", "wasserstein", "outcomes box", "empirical")}

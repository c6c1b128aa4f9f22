"""Worst cases at given decisions, by the library and by the reference, and the distributions that attain them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np
import torch

from drolayers.cost.risk import TAU
from research.attack.costs import Worst
from research.attack.draw import generator
from research.attack.invariants import Answered
from research.attack.library import Inputs
from research.attack.pieces import Pieces
from research.attack.reference import Reference, solve

Array = Any
VALUE_REL = 1e-6
"""Error of a worst case from which it is wrong, relative to one plus its size."""

NEAR = 1e-5
"""Distance from the set's distributions, in masses and in masses times means, from which a distribution is wrong."""

NUDGE = 0.2
"""By how much decisions are moved before their worst case is asked for."""

Findings = Iterator[tuple[str, int, str]]
"""Kind, item and note."""


def check(answered: Answered, seed: int, number: int) -> Findings:
    """Compare worst cases of decisions near the best ones, of the cost and of every constraint."""
    program, problem = answered.program, answered.names["problem"]
    cost = program.cost
    plain = cost.upper is None and cost.curve is None and all(w.kind == "expected" for w in cost.worst)
    if not plain or not bool(answered.decision.ok.any()):
        return
    rng = generator(seed, number, 3)
    best = {variable: value.detach().nan_to_num(0.0) for variable, value in answered.decision.best.items()}
    tau = [variable for variable in best if variable.name().startswith(TAU)]
    moved = dict(best)
    if not tau and not cost.integers:
        x = answered.names["x"]
        moved[x] = best[x] + cost.unit * NUDGE * torch.tensor(rng.normal(size=tuple(best[x].shape)))
    arguments = Inputs.of(program, program.items).arguments
    values = problem.worst_case_cost(moved, arguments[0], arguments[1], arguments[2])
    columns = _columns(answered, moved)
    for k, item in enumerate(program.items):
        if not answered.decision.ok[k]:
            continue
        truth = Reference(program, item).value(columns[k, : cost.size])
        value = float(values[k]) / program.choices.cost_unit
        if truth.accurate and not abs(value - truth.value) <= VALUE_REL * (1 + abs(truth.value)):
            yield _kind(value), k, f"worst_case_cost is {value:.9g}, not {truth.value:.9g}"
        if truth.status == "infinite" and value != np.inf:
            yield _kind(value), k, f"worst_case_cost is {value:.9g}, not infinite"
    if len(cost.worst) == 1 and len(tau) <= 1:
        distribution = problem.worst_case_distribution(moved, *arguments)
        # With one threshold, the column behind the variables is its value.
        yield from _attains(answered, distribution, cost.worst[0], columns, values.detach().numpy())
    yield from _constraints(answered, moved, arguments, columns)


def _kind(value: float) -> str:
    """Name a finding: NaN says that a worst case is unknown, any other number is wrong."""
    return "masked worst case" if np.isnan(value) else "wrong worst case"


def _columns(answered: Answered, decision: dict[Any, torch.Tensor]) -> Array:
    """Decisions and thresholds at size one, ``(batch, column)``."""
    program, parts = answered.program, []
    for name, count in program.cost.names:
        values = decision[answered.names[name]].numpy().reshape(-1, count)
        parts.append(values / (program.cost.unit if name == "x" else 1.0))
    for variable, value in decision.items():
        if variable.name().startswith(TAU):
            parts.append(value.numpy().reshape(-1, 1) / program.choices.cost_unit)
    return np.concatenate(parts, 1)


def _constraints(answered: Answered, moved: dict[Any, torch.Tensor], arguments: Any, columns: Array) -> Findings:
    """The worst cases of the constraints."""
    program, problem = answered.program, answered.names["problem"]
    first = len(answered.names["constraints"]) - len(program.robust) - 2 * program.choices.impossible
    for index, worst in enumerate(program.robust):
        constraint = answered.names["constraints"][first + index]
        values = problem.worst_case(moved, *arguments, of=constraint)
        for k, item in enumerate(program.items):
            if not answered.decision.ok[k]:
                continue
            truth = Reference(program, item).worst(worst, columns[k, : program.cost.size])
            value = float(values[k, 0]) / program.choices.unit
            if truth.accurate and not abs(value - truth.value) <= VALUE_REL * (1 + abs(truth.value)):
                name = program.choices.constraints[index]
                yield _kind(value), k, f"worst_case of {name!r} is {value:.9g}, not {truth.value:.9g}"


def _attains(answered: Answered, distribution: Any, worst: Worst, columns: Array, values: Array) -> Findings:
    """Whether a distribution attains the value and lies in the set."""
    program = answered.program
    for k, item in enumerate(program.items):
        if not answered.decision.ok[k] or not np.isfinite(values[k]):
            continue
        pieces = worst.pieces(item).wide(columns.shape[1])
        atoms = distribution.mass.atoms[k].numpy() / program.choices.unit
        p, origin = distribution.probabilities[k].numpy(), distribution.mass.origin[k].numpy()
        ways = distribution.mass.directions[k].numpy() / program.choices.unit
        x = columns[k]
        quadratic = 0.5 * float(program.cost.quadratic[: len(x)] @ x[: len(program.cost.quadratic)] ** 2)
        value = values[k] / program.choices.cost_unit
        mean = p @ pieces.at(x, atoms) + quadratic + float(distribution.escaping_cost[k]) / program.choices.cost_unit
        if not abs(mean - value) <= VALUE_REL * (1 + abs(value)):
            yield "wrong distribution", k, f"its expected cost is {mean:.9g}, the worst case {value:.9g}"
        distance = _distance(
            Reference(program, item), worst, pieces, x, (atoms, p, origin), (ways, distribution.mass, k)
        )
        if distance is not None and distance > NEAR:
            yield "wrong distribution", k, f"it is {distance:.1e} from the distributions of the set"


def _distance(
    reference: Reference, worst: Worst, pieces: Pieces, x: Array, mass: tuple[Array, Array, Array], escaping: Any
) -> float | None:
    """How far the masses of a distribution, by scenario and piece, are from those that the set allows."""
    masses, constraints = reference.masses(worst, pieces.count, 1.0)
    (atoms, weights, origin), (ways, of, k) = mass, escaping
    p, m = np.zeros(masses.p.shape), np.zeros(masses.m.shape)
    slopes = pieces.F @ x + pieces.f
    active = np.argmax(atoms @ slopes.T + pieces.g @ x + pieces.h, 1)
    for atom, weight, source, piece in zip(atoms, weights, origin, active, strict=True):
        row = int(source) * pieces.count + int(piece)
        p[row] += weight
        m[row] += weight * atom
    for way, source in zip(ways, of.direction_origin[k].numpy(), strict=True):
        if np.abs(way).max(initial=0.0) > 0:
            m[int(source) * pieces.count + int(np.argmax(slopes @ way))] += way
    t = cp.Variable()
    near = [cp.abs(masses.p - p) <= t, cp.abs(masses.m - m) <= t]
    return float(t.value) if solve(cp.Problem(cp.Minimize(t), [*constraints, *near])) == "optimal" else None

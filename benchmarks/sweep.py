"""A random sweep: sets x supports x costs x dimensions, values and gradients of every item against a reference.

Every program is drawn at random and compiled; a few parameters are drawn for each, from a sample of outcomes inside the
support, so that hardly any set is empty. Values are compared with Clarabel at 1e-12 on the compiled program (1e-6), the
gradient of a random weight of the decision and that of the objective with stable central differences of Clarabel's
solutions along random directions of all parameters, atoms and weights included (1 %).

    python benchmarks/sweep.py [--programs 300] [--seed 0] [--size 1] [--engine auto] [--items 4]

``--size`` multiplies outcomes and all that is measured in their unit. Every program is homogeneous, so its reference is
then the program of size 1, where Clarabel is accurate: decisions and values scale by known powers.

What is counted, per kind of set, support and cost: right; wrong while the status says OPTIMAL (value, gradient of the
decision, gradient of the value); flagged (any other status, or a gradient that was masked, by its code); skipped
(differences that are not stable; decisions that are not unique; no accurate reference). Wrong ones are printed with all
that is needed to draw them again: the program's number under the same seed, and the item.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

import drolayers as dro
from drolayers import moments as m
from drolayers import support as s
from drolayers.conic import make_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.conic.strangers import directions, random_weights, stable_differences

ATOMS = 4
SAMPLE = 60
LEVEL = 0.8

VALUE, GRADIENT = 1e-6, 1e-2
"""Relative errors from which a value or a gradient is wrong."""

OUTCOMES = (
    "right",
    "wrong value",
    "wrong gradient",
    "wrong value gradient",
    "flagged: status",
    "flagged: masked",
    "skipped: unstable",
    "skipped: not unique",
    "skipped: reference",
)
WRONG = tuple(name for name in OUTCOMES if name.startswith("wrong"))

Ambiguity = dro.MomentSet | dro.Wasserstein


@dataclass(frozen=True)
class Draw:
    """What a program is made of; numbers are those of size 1."""

    dim: int
    size: float
    sample: np.ndarray
    centre: np.ndarray
    image: np.ndarray
    rng: np.random.Generator


# --- Sets -------------------------------------------------------------------------------------------------------------


def _units(d: Draw, moment: Callable[..., m.Moment], signs: tuple[float, ...] = (1.0,), **given: Any) -> list[m.Moment]:
    """A moment for every coordinate."""
    return [moment(mu=sign * row, **given) for row in np.eye(d.dim) for sign in signs]


def _moments(build: Callable[[Draw], list[m.Moment]]) -> Callable[[Draw, dro.Uncertain], Ambiguity]:
    return lambda d, y: dro.MomentSet(y, build(d))


SETS: dict[str, Callable[[Draw, dro.Uncertain], Ambiguity]] = {
    "grouped 1": lambda d, y: dro.MomentSet.grouped(y, 1),
    "grouped 2": lambda d, y: dro.MomentSet.grouped(y, min(2, d.dim)),
    "squared norm": _moments(lambda d: [m.SquaredNorm()]),
    "squared norms by index": _moments(lambda d: [m.SquaredNorm(i) for i in range(d.dim)] + [m.SquaredNorm()]),
    "norm 1": _moments(lambda d: [m.Norm(1)]),
    "norm 2": _moments(lambda d: [m.Norm(2)]),
    "norm inf": _moments(lambda d: [m.Norm(np.inf)]),
    "image norm 1": _moments(lambda d: [m.Norm(1, A=d.image)]),
    "image norm 2": _moments(lambda d: [m.Norm(2, A=d.image)]),
    "learnt norm 2": _moments(lambda d: [m.Norm(2, A=dro.Learn(d.dim, d.dim))]),
    "learnt norm inf": _moments(lambda d: [m.Norm(np.inf, A=dro.Learn(d.dim, d.dim))]),
    "first and second": _moments(lambda d: [m.Norm(1), m.SquaredNorm()]),
    "means and norm 1": _moments(lambda d: [*_units(d, m.Linear, (1.0, -1.0)), m.Norm(1)]),
    "means and second": _moments(lambda d: [*_units(d, m.Linear, (1.0, -1.0)), m.SquaredNorm()]),
    "absolute": _moments(lambda d: [*_units(d, m.Absolute), m.Absolute()]),
    "squares along directions": _moments(lambda d: [*_units(d, lambda mu: m.AbsolutePower(2, mu=mu))]),
    "positive squares": _moments(lambda d: _units(d, m.PositiveSquare, (1.0, -1.0))),
    "sum of degrees 2 and 1": _moments(lambda d: [m.SquaredNorm() + 0.5 * d.size * m.Norm(1)]),
    "sum of norms": _moments(lambda d: [m.Norm(2) + 0.5 * m.Norm(1, A=d.image)]),
    "maximum of norms": _moments(lambda d: [m.maximum(m.Norm(1), 2.0 * m.Norm(np.inf))]),
    "maximum of degrees 2 and 1": _moments(lambda d: [m.maximum(m.SquaredNorm(), d.size * m.Norm(1))]),
    "power 3": _moments(lambda d: _units(d, lambda mu: m.AbsolutePower(3, mu=mu))),
    "norm 1.5": _moments(lambda d: [m.Norm(1.5)]),
    **{
        f"ball {norm:g}, order {order}": lambda d, y, norm=norm, order=order: dro.Wasserstein(y, ATOMS, norm, order)
        for norm in (1, 2, np.inf)
        for order in (1, 2)
    },
}


# --- Supports ---------------------------------------------------------------------------------------------------------


def _polyhedron(d: Draw) -> s.Polyhedron:
    """Random half-spaces with room around the centre."""
    rows = np.random.default_rng(d.dim).normal(size=(d.dim + 1, d.dim))
    return s.Polyhedron(rows, d.size * (rows @ d.centre + 1.5 * np.linalg.norm(rows, axis=1)))


def _ellipsoid(d: Draw) -> s.Ellipsoid:
    root = 1.6 * np.eye(d.dim) + 0.3 * np.tril(np.ones((d.dim, d.dim)), -1)
    return s.Ellipsoid(d.size * d.centre, d.size * root)


def _total(d: Draw) -> s.Polyhedron:
    return s.Polyhedron(np.ones((1, d.dim)), [d.size * (d.centre.sum() + d.dim)])


SUPPORTS: dict[str, Callable[[Draw], s.Support]] = {
    "reals": lambda d: s.Reals(),
    "nonnegative": lambda d: s.Nonnegative(),
    "box": lambda d: s.Box(0.0, d.size * (d.centre + 1.5)),
    "half box": lambda d: s.Box(d.size * (d.centre - 1.3), np.inf),
    "polyhedron": _polyhedron,
    "ellipsoid": _ellipsoid,
    "quadrant and half-space": lambda d: s.Nonnegative() & _total(d),
    "ellipsoid and half-space": lambda d: _ellipsoid(d) & _total(d),
}


# --- Costs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """A cost of a decision x, linear homogeneous in y: by how much x and its value grow when y does.

    ``pieces`` says whether it is a sum of one maximum a coordinate, 2^dim pieces where a set ties them together.
    """

    build: Callable[[Draw, cp.Variable, dro.Uncertain], tuple[cp.Expression, list[cp.Constraint]]]
    stock: bool
    pieces: bool = False


def _prices(d: Draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + d.dim)
    return rng.uniform(0.1, 0.4, d.dim), rng.uniform(1.5, 3.0, d.dim), rng.uniform(0.5, 1.2, d.dim)


def _newsvendor(d: Draw, x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    price, short, hold = _prices(d)
    return price @ x + cp.sum(cp.maximum(cp.multiply(short, y - x), cp.multiply(hold, x - y)))


def _stock(d: Draw, x: cp.Variable) -> list[cp.Constraint]:
    return [x >= -6.0 * d.size, x <= 6.0 * d.size]


def _simplex(x: cp.Variable) -> list[cp.Constraint]:
    return [x >= 0, cp.sum(x) == 1]


def _joint(d: Draw, x: cp.Variable, y: dro.Uncertain) -> cp.Expression:
    rng = np.random.default_rng(200 + d.dim)
    rows, effects = rng.normal(size=(3, d.dim)), rng.normal(size=(3, d.dim))
    return cp.max(rows @ y + effects @ x) + 0.2 / d.size * cp.sum_squares(x)


COSTS: dict[str, Cost] = {
    "newsvendor": Cost(lambda d, x, y: (_newsvendor(d, x, y), _stock(d, x)), stock=True, pieces=True),
    "curved newsvendor": Cost(
        lambda d, x, y: (_newsvendor(d, x, y) + 0.1 / d.size * cp.sum_squares(x), _stock(d, x)), stock=True, pieces=True
    ),
    "newsvendor with a budget": Cost(
        lambda d, x, y: (_newsvendor(d, x, y), [x >= 0, cp.sum(x) <= 0.9 * d.size * d.centre.sum()]),
        stock=True,
        pieces=True,
    ),
    "joint maximum": Cost(lambda d, x, y: (_joint(d, x, y), _stock(d, x)), stock=True),
    "total": Cost(
        lambda d, x, y: (
            _prices(d)[0] @ x + 2.0 * cp.pos(cp.sum(y) - cp.sum(x)) + 0.1 / d.size * cp.sum_squares(x),
            _stock(d, x),
        ),
        stock=True,
    ),
    "absolute deviations": Cost(
        lambda d, x, y: (cp.norm1(y - x) + 0.2 * cp.sum(x), _stock(d, x)), stock=True, pieces=True
    ),
    "portfolio": Cost(lambda d, x, y: (-y @ x, _simplex(x)), stock=False),
    "curved portfolio": Cost(lambda d, x, y: (-y @ x + 0.3 * d.size * cp.sum_squares(x), _simplex(x)), stock=False),
    "long and short": Cost(lambda d, x, y: (-y @ x, [cp.norm(x - 0.2, 2) <= 1.0]), stock=False),
    "cvar of a portfolio": Cost(
        lambda d, x, y: (dro.cvar(-y @ x, LEVEL) + 0.1 * d.size * cp.sum_squares(x), _simplex(x)), stock=False
    ),
    "cvar of a newsvendor": Cost(
        lambda d, x, y: (dro.cvar(_newsvendor(d, x, y), LEVEL), _stock(d, x)), stock=True, pieces=True
    ),
}


# --- Programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled problem; leaves are θ, and for a ball the atoms and the logits of their weights as well."""

    problem: dro.DecisionProblem
    x: cp.Variable

    def split(self, leaf: Tensor) -> tuple:
        """Leaves as the library takes them."""
        ambiguity = self.problem.ambiguity
        if not ambiguity.needs_nominal:
            return (leaf,)
        dim = ambiguity.y.dim
        radius, atoms, logits = leaf.split([1, ATOMS * dim, ATOMS], dim=1)
        return radius, (atoms.reshape(-1, ATOMS, dim), logits.softmax(1))

    def features(self, leaf: Tensor) -> Tensor:
        """The parameters of the compiled program."""
        return self.problem.features(*self.split(leaf))


def build(names: tuple[str, str, str], draw: Draw) -> Program:
    """Compile the problem of a set, a support and a cost."""
    y = dro.Uncertain(draw.dim, support=SUPPORTS[names[1]](draw))
    x = cp.Variable(draw.dim, name="x")
    cost, constraints = COSTS[names[2]].build(draw, x, y)
    return Program(dro.DecisionProblem(cost, constraints, SETS[names[0]](draw, y)), x)


def leaves(program: Program, twin: Program, draw: Draw, items: int) -> tuple[Tensor, Tensor]:
    """Leaves of size 1 around what is typical of the sample, and the units of every entry at the size asked for."""
    ambiguity, rng = twin.problem.ambiguity, draw.rng
    sample = torch.tensor(draw.sample)
    if ambiguity.needs_nominal:
        radius = np.exp(rng.uniform(np.log(0.02), np.log(1.5), (items, 1)))
        chosen = np.stack([rng.permutation(draw.sample)[:ATOMS].ravel() for _ in range(items)])
        rows = np.concatenate([radius, chosen, 0.5 * rng.normal(size=(items, ATOMS))], 1)
        units = np.concatenate([np.full(1 + chosen.shape[1], draw.size), np.ones(ATOMS)])
        return torch.tensor(rows), torch.tensor(units)
    typical, scaled = ambiguity.typical(sample), program.problem.ambiguity.typical(draw.size * sample)
    rows, units = [], []
    for name, one in typical.items():
        shape = (items, *one.centre.shape)
        if name.split(".")[-1] != "sigma":
            row = one.centre + 0.2 * one.scale * torch.tensor(rng.normal(size=shape))
        elif one.positive:
            row = one.centre * torch.tensor(np.exp(rng.uniform(np.log(0.4), np.log(4.0), shape)))
        else:
            # A bound of either sign, two of which must not cross.
            row = one.centre + one.scale * torch.tensor(rng.uniform(0.3, 0.8, shape))
        rows.append(row.reshape(items, -1))
        units.append((scaled[name].scale / one.scale).reshape(-1))
    return torch.cat(rows, 1), torch.cat(units)


def drawn(number: int, seed: int, size: float) -> tuple[tuple[str, str, str], Draw]:
    """Which program has this number."""
    rng = np.random.default_rng([seed, number])
    kind, support, cost = (str(rng.choice(list(table))) for table in (SETS, SUPPORTS, COSTS))
    dim = int(rng.integers(1, 7))
    # Where coordinates are tied together, a sum of maxima has 2^dim pieces, once for every atom.
    if COSTS[cost].pieces and (cost.startswith("cvar") or kind.startswith("ball")):
        dim = min(dim, 4)
    centre = rng.uniform(1.5, 2.5, dim)
    # Every support has room for 1.3 around the centre; some samples lie in the middle, some at its edge.
    middle = rng.uniform(-0.8, 0.8, dim) / np.sqrt(dim)
    spread = rng.uniform(0.1, 0.5, dim) / np.sqrt(dim)
    sample = centre + middle + spread * rng.uniform(-1.0, 1.0, (SAMPLE, dim))
    image = np.eye(dim) + 0.4 * rng.normal(size=(dim, dim))
    return (kind, support, cost), Draw(dim, size, sample, centre, image, rng)


# --- Comparison -------------------------------------------------------------------------------------------------------


def masked(solution: Any, batch: int) -> list[str | None]:
    """The codes of masked gradients, where the engine tells."""
    codes = getattr(solution, "derivative", None)
    if codes is None:
        return [None] * batch
    told = [dro.Derivative(int(code)).name for code in codes]
    return [code if code in ("KINK", "LOOSE", "UNVERIFIED") else None for code in told]


def examine(number: int, options: argparse.Namespace) -> tuple[tuple[str, str, str], list[tuple[str, str]]]:
    """One program: what became of each item, with a sentence where that is needed."""
    names, draw = drawn(number, options.seed, options.size)
    program = build(names, draw)
    twin = program if options.size == 1 else build(names, replace(draw, size=1.0))
    rows, units = leaves(program, twin, draw, options.items)
    weight = random_weights(twin.problem.program, (twin.x,), options.items, draw.rng)
    along = directions(rows, 2, draw.rng)
    expected = stable_differences(twin.problem.program, rows, weight, along, twin.features)
    grows = options.size if COSTS[names[2]].stock else 1.0

    leaf = (rows * units).requires_grad_()
    solution = program.problem.solve(*program.split(leaf), engine=make_engine(options.engine))
    (of_value,) = torch.autograd.grad(solution.objective.nan_to_num().sum(), leaf, retain_graph=True)
    (of_decision,) = torch.autograd.grad((solution.variable(program.x) * _part(twin, weight)).nan_to_num().sum(), leaf)
    step = along * units
    decision = (of_decision * step).sum(-1).T / grows
    value = (of_value * step).sum(-1).T / options.size
    best = expected.here.objective
    gap = (solution.objective.detach() / options.size - best).abs() / best.abs().clamp(min=0.1)
    errors = expected.errors(decision), expected.errors(value, "value")
    codes = masked(solution, options.items)
    found = []
    for i in range(options.items):
        status = str(dro.Status(int(solution.status[i])))
        moves = float(expected.decision[i].norm() / expected.size[i])
        if status != "OPTIMAL":
            right = "as Clarabel says" if not expected.here.solvable[i] else "Clarabel has a solution"
            found.append(("flagged: status", f"{status}, {right}"))
        elif not expected.here.solvable[i]:
            found.append(("wrong value", "(Clarabel proves that there is no solution)"))
        elif not expected.here.accurate[i]:
            found.append(("skipped: reference", ""))
        elif not float(gap[i]) <= VALUE:
            found.append(("wrong value", f"{float(gap[i]):.1e}"))
        elif expected.value_stable[i] and not float(errors[1][i]) <= GRADIENT:
            found.append(("wrong value gradient", f"{float(errors[1][i]):.1e}"))
        elif not expected.unique[i]:
            found.append(("skipped: not unique", codes[i] or ""))
        elif not expected.stable[i]:
            found.append(("skipped: unstable", codes[i] or ""))
        elif codes[i]:
            found.append(("flagged: masked", str(codes[i])))
        elif not float(errors[0][i]) <= GRADIENT:
            found.append(("wrong gradient", f"{float(errors[0][i]):.1e} (size {moves:.1e} of the floor)"))
        else:
            found.append(("right", ""))
    return names, found


def _part(program: Program, weight: Tensor) -> Tensor:
    """The weights of x, which other columns surround."""
    return program.problem.program.variable(weight, program.x)


def table(title: str, counts: dict[str, Counter[str]]) -> None:
    """One line a kind."""
    print(f"\n{title:<28}" + "".join(f"{name.replace('skipped: ', '').replace('flagged: ', ''):>11}" for name in SHORT))
    for kind, count in sorted(counts.items()):
        print(f"{kind:<28}" + "".join(f"{count[name]:11d}" for name in OUTCOMES))


SHORT = ("right", "value", "gradient", "value grad", "status", "masked", "unstable", "not unique", "reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--items", type=int, default=4, help="items of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=float, default=1.0, help="the unit of the outcomes")
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # flat gradients: linear programs are among them
    counts: dict[str, dict[str, Counter[str]]] = {"set": {}, "support": {}, "cost": {}, "dimension": {}}
    total: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    start, clock = time.process_time(), time.perf_counter()
    for number in range(options.first, options.first + options.programs):
        try:
            names, found = examine(number, options)
        except dro.DROError as error:
            refused[str(error)[:100]] += 1
            continue
        dim = drawn(number, options.seed, options.size)[1].dim
        for item, (outcome, note) in enumerate(found):
            total[outcome] += 1
            for axis, kind in zip(counts, (*names, str(dim)), strict=True):
                counts[axis].setdefault(kind, Counter())[outcome] += 1
            if outcome.startswith(("flagged", "skipped")) and note:
                notes[f"{outcome}, {note}"] += 1
            if outcome in WRONG:
                where = f"--seed {options.seed} --size {options.size:g} --first {number} --programs 1, item {item}"
                print(f"{outcome} {note}: {' | '.join(names)} | {dim} dimensions | {where}")
        done = number - options.first + 1
        if done % 10 == 0 or done == options.programs:
            wrong = sum(total[name] for name in WRONG)
            left = (time.perf_counter() - clock) / done * (options.programs - done)
            print(f"\r{done} programs, {wrong} items wrong, {left:.0f} s left   ", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    for axis, kinds in counts.items():
        table(axis, kinds)
    table("all", {"all": total})
    for title, listed in (("Notes", notes), ("Refused", refused)):
        if listed:
            print(f"\n{title}:")
            for text, count in listed.most_common():
                print(f"  {count:5d}  {text}")
    print(
        f"\nengine {options.engine}, seed {options.seed}, size {options.size:g}: {options.programs} programs of "
        f"{options.items} items, {time.process_time() - start:.0f} processor seconds; "
        f"{sum(total[name] for name in WRONG)} items wrong while they said OPTIMAL"
    )


if __name__ == "__main__":
    main()

"""Random programs: choices, numbers and source text.

Program k of a seed is drawn by ``default_rng([seed, k])`` and streams derived from it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from research.attack.constraints import CONSTRAINTS
from research.attack.costs import COST_WEIGHTS, COSTS, CostPart, Worst
from research.attack.curved import CURVES, curved
from research.attack.drawn import Draw, Item, rounded, text
from research.attack.sets import SETS, WEIGHTS, SetPart
from research.attack.supports import SUPPORTS, SupportPart

Array = Any
SAMPLE = 40
ON_ALL_THE_SUPPORT = ("moments", "mean and moment", "grouped", "mean and covariance")
"""Sets that hold distributions with some mass at any outcome of the support."""

SEVERAL = ("mean and covariance", "kl", "burg")
"""Sets whose reference is slow with many pieces."""


@dataclass(frozen=True)
class Choices:
    """What a program is made of; a reproduction is shrunk by changing them one at a time.

    Attributes:
        set: of ``SETS``.
        support: of ``SUPPORTS``.
        cost: of ``COSTS`` or ``CURVES``.
        constraints: of ``CONSTRAINTS``.
        own: the set of the last constraint; empty for the problem's.
        dim: number of coordinates of y.
        atoms: number of atoms of nominal distributions.
        items: batch size.
        unit: unit of y.
        cost_unit: unit of the cost.
        integer: whether some decisions are integer.
        known: whether the cost has known data.
        maximise: whether the cost is written as a reward.
        impossible: whether a constraint excludes every decision.
        unbounded: whether a constraint that bounds decisions is left out.
        empty: whether sets may be empty.
        padding: whether the last atom of the first item has weight zero.
        coarse: whether many numbers coincide.
        extreme: whether numbers range over many powers of ten.
        matrix: whether y is a matrix with two rows.
    """

    set: str
    support: str
    cost: str
    constraints: tuple[str, ...]
    own: str
    dim: int
    atoms: int
    items: int
    unit: float
    cost_unit: float
    integer: bool
    known: bool
    maximise: bool
    impossible: bool
    unbounded: bool
    empty: bool
    padding: bool
    coarse: bool = False
    extreme: bool = False
    matrix: bool = False

    @property
    def words(self) -> str:
        """One line."""
        flags = [name for name, value in asdict(self).items() if value is True]
        robust = " + ".join(self.constraints) + (f" over {self.own}" if self.own else "")
        sizes = f"dim {self.dim}, {self.items} items, units {self.unit:g} and {self.cost_unit:g}"
        return " | ".join(part for part in (self.set, self.support, self.cost, robust, sizes, ", ".join(flags)) if part)


@dataclass(frozen=True)
class Program:
    """A random program, as source text and as numbers.

    Attributes:
        choices: what it is made of.
        source: defines ``problem``, ``x`` and all it needs.
        items: the numbers of every item.
        units: the unit of every parameter and known datum by name.
        support: of y.
        sets: the problem's set and, if there is one, a constraint's own; with the prefixes of their parameters.
        cost: the cost.
        robust: the worst cases of the constraints.
        columns: number of columns, auxiliary ones included.
        sample: outcomes inside the support, ``(point, dim)``.
    """

    choices: Choices
    source: str
    items: tuple[Item, ...]
    units: Mapping[str, float]
    support: SupportPart
    sets: tuple[tuple[str, SetPart], ...]
    cost: CostPart
    robust: tuple[Worst, ...]
    columns: int
    sample: Array

    def outcomes(self, item: Item) -> Array:
        """Outcomes that the problem's set certainly allows, ``(point, dim)``."""
        if item.atoms is not None and self.sets[0][1].nominal and not self.sets[0][1].regions:
            return item.atoms[item.weights > 0]
        return self.sample if self.choices.set in ON_ALL_THE_SUPPORT else self.sample[:0]


def generator(seed: int, number: int, stream: int = 0) -> np.random.Generator:
    """The generator of one program: stream 0 draws choices, 1 numbers, 2 directions."""
    return np.random.default_rng([seed, number, stream] if stream else [seed, number])


def weighted_choice(rng: np.random.Generator, names: list[str], weights: Mapping[str, float]) -> str:
    """A name of a table."""
    p = np.array([weights.get(name, 1.0) for name in names])
    return names[int(rng.choice(len(names), p=p / p.sum()))]


def draw_choices(seed: int, number: int) -> Choices:
    """The choices of a program."""
    rng = generator(seed, number)

    def often(probability: float) -> bool:
        return bool(rng.uniform() < probability)

    kind, support = weighted_choice(rng, list(SETS), WEIGHTS), str(rng.choice(list(SUPPORTS)))
    cost = weighted_choice(rng, list(COSTS), COST_WEIGHTS)
    constraints = tuple(str(rng.choice(list(CONSTRAINTS))) for _ in range(int(rng.choice(3, p=[0.55, 0.3, 0.15]))))
    own = weighted_choice(rng, list(SETS), WEIGHTS) if constraints and often(0.4) else ""
    dim = int(rng.choice([1, 2, 3, 4], p=[0.25, 0.4, 0.25, 0.1]))
    unit, cost_unit = (float(10.0 ** rng.integers(-6, 7)) if often(0.35) else 1.0 for _ in range(2))
    integer, known, maximise = often(0.25), often(0.25), often(0.15)
    damage = [often(p) for p in (0.04, 0.04, 0.08)]
    choices = Choices(
        kind,
        support,
        cost,
        constraints,
        own,
        dim,
        int(rng.integers(2, 5)),
        int(rng.integers(1, 4)),
        unit,
        cost_unit,
        integer,
        known,
        maximise,
        damage[0],
        damage[1],
        damage[2],
        often(0.15),
        often(0.1),
        often(0.1),
        often(0.1),
    )
    if often(0.1):
        # Costs that are curved in y need sets that make them tractable.
        choices = replace(choices, cost=str(rng.choice(list(CURVES))), constraints=(), own="", maximise=False)
        choices = replace(choices, set=str(rng.choice(CURVES[choices.cost].sets)), integer=False, known=False)
        choices = replace(choices, support="reals", unbounded=False)
    elif often(0.05):
        choices = replace(
            choices, cost="packing", set="empirical", constraints=(), own="", dim=int(rng.integers(6, 19))
        )
        choices = replace(choices, atoms=2, support="reals", integer=True, known=False, unbounded=False)
    return consistent(choices)


def consistent(choices: Choices) -> Choices:
    """The choices with what cannot be together removed."""
    if choices.cost == "packing":
        return replace(choices, matrix=False)
    if choices.cost == "fragility":
        choices = replace(choices, set="wasserstein", unit=1.0, maximise=False)
    if choices.cost == "adaptive":
        choices = replace(choices, maximise=False)
    if not choices.constraints:
        choices = replace(choices, own="")
    if choices.extreme:
        choices = replace(choices, coarse=False, empty=False)
    slow = any(name in SEVERAL for name in (choices.set, choices.own))
    most = 2 if slow or (choices.integer and choices.cost != "portfolio") else 3
    if choices.cost in ("newsvendor", "adaptive", "recourse"):
        choices = replace(choices, dim=min(choices.dim, most))
    choices = replace(choices, dim=min(choices.dim, 3)) if slow else choices
    return replace(choices, matrix=choices.matrix and choices.dim in (2, 4))


def build(choices: Choices, seed: int, number: int) -> Program:
    """The program that has these choices and the numbers of a seed."""
    rng = generator(seed, number, 1)
    dim = choices.dim
    centre = rounded(rng.uniform(1.5, 2.5, dim))
    middle, spread = rng.uniform(-0.8, 0.8, dim) / np.sqrt(dim), rng.uniform(0.1, 0.5, dim) / np.sqrt(dim)
    sample = rounded(centre + middle + spread * rng.uniform(-1.0, 1.0, (SAMPLE, dim)))
    if choices.coarse:
        # Multiples of a quarter that stay within 1.3 of the centre.
        centre = np.round(4 * centre) / 4
        sample = np.round(4 * (centre + 0.6 * (sample - centre))) / 4
    draw = Draw(
        rng,
        dim,
        choices.unit,
        choices.cost_unit,
        choices.atoms,
        choices.items,
        centre,
        sample,
        choices.empty,
        choices.coarse,
        choices.extreme,
    )
    support = SUPPORTS[choices.support](draw)
    sets = [("", SETS[choices.set](draw))] + ([("set1.", SETS[choices.own](draw))] if choices.own else [])
    make = curved(choices.cost, choices.set) if choices.cost in CURVES else COSTS[choices.cost]
    cost = make(draw, choices.integer, choices.known)
    columns, robust, plain = cost.columns, [], list(cost.plain)
    for k, name in enumerate(choices.constraints):
        part = CONSTRAINTS[name](draw, cost, columns)
        own = bool(choices.own) and k == len(choices.constraints) - 1
        plain.append(part.code.replace("{own}", ", ambiguity=own" if own else ""))
        robust.append(replace(part.worst, own=own))
        columns += part.thresholds
    A, b = cost.A, cost.b
    if choices.unbounded and not choices.integer and cost.names[0][0] == "x" and cost.plain:
        plain, A, b = plain[1:], A[:0], b[:0]
    if choices.impossible:
        plain.append(f"cp.sum(x) >= {text(1e2 * cost.unit)}, cp.sum(x) <= {text(-1e2 * cost.unit)}")
        row = np.pad(np.ones(cost.names[0][1]), (0, cost.columns - cost.names[0][1]))
        A, b = np.vstack([A, -row, row]), np.append(b, [-1e2, -1e2])
    cost = replace(cost, A=A, b=b)
    units = {f"{prefix}{name}": unit for prefix, part in sets for name, unit in part.units.items()}
    known = {name: values for name, values in support.known}
    units |= {name: choices.unit for name in known}
    for name, values, unit in cost.known:
        known[name], units[name] = values, unit
    items = []
    for k in range(choices.items):
        theta = {f"{prefix}{name}": np.asarray(v, float) for prefix, p in sets for name, v in p.values[k].items()}
        atoms = weights = None
        if any(part.nominal for _, part in sets):
            atoms = sample[rng.permutation(SAMPLE)[: choices.atoms]]
            weights = np.ones(choices.atoms) if choices.coarse else draw.between(0.3, 1.0, (1e-9, 1.0), choices.atoms)
            if choices.padding and k == 0:
                weights[-1] = 0.0
            weights = weights / weights.sum()
        items.append(Item(theta, atoms, weights, {name: values[k] for name, values in known.items()}))
    source = _source(choices, support, sets, cost, plain)
    return Program(choices, source, tuple(items), units, support, tuple(sets), cost, tuple(robust), columns, sample)


def _source(
    choices: Choices, support: SupportPart, sets: list[tuple[str, SetPart]], cost: CostPart, plain: list[str]
) -> str:
    """Source text that defines ``problem``."""
    objective = f"cp.Maximize(-({cost.code}))" if choices.maximise else cost.code
    second = [f"own = {sets[1][1].code.replace('inside', 'inside1')}"] if len(sets) > 1 else []
    second_lines = [line.replace("inside", "inside1") for line in sets[1][1].lines] if len(sets) > 1 else []
    uncertain = [f"y = dro.Uncertain({choices.dim}, support={support.code})"]
    if choices.matrix:
        # Sets are over the matrix; costs see its entries row by row.
        uncertain = [
            f"Y = dro.Uncertain((2, {choices.dim // 2}), support={support.code})",
            "y = cp.vec(Y, order='C')",
        ]
    lines = [
        "import cvxpy as cp",
        "import numpy as np",
        "import torch",
        "",
        "import drolayers as dro",
        "from drolayers import moments as m",
        "from drolayers import support as s",
        "",
        *support.lines,
        *uncertain,
        *cost.lines,
        *sets[0][1].lines,
        f"ambiguity = {sets[0][1].code}",
        *second_lines,
        *second,
        f"cost = {objective}",
        f"constraints = [{', '.join(plain)}]",
        "problem = dro.DecisionProblem(cost, constraints, ambiguity)",
    ]
    if choices.matrix:
        lines = [line.replace("(y,", "(Y,").replace("y.within", "Y.within") for line in lines]
        lines = [line.replace("to=y,", "to=Y,") for line in lines]
    return "\n".join(lines)


def inputs(program: Program) -> str:
    """Source text that defines ``theta``, ``nominal`` and ``known``."""

    def stacked(values: list[Array]) -> str:
        return f"torch.tensor({text(np.stack(values))[9:-1]}, dtype=torch.float64)"

    items, units = program.items, program.units
    theta = [f"    {name!r}: {stacked([i.theta[name] * units[name] for i in items])}," for name in items[0].theta]
    known = [f"    {name!r}: {stacked([i.known[name] * units[name] for i in items])}," for name in items[0].known]
    head = ["theta = {", *theta, "}"] if theta else [f"theta = torch.zeros({len(items)}, 0, dtype=torch.float64)"]
    lines = [*head, "nominal = None"]
    if items[0].atoms is not None:
        atoms = stacked([i.atoms * program.choices.unit for i in items])
        lines[-1] = f"nominal = dro.Nominal({atoms}, {stacked([i.weights for i in items])})"
    return "\n".join([*lines, "known = {", *known, "}" if known else "} or None"])

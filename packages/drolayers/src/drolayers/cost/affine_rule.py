"""Rules in place of adaptive decisions: affine in what they see and in lifted moments.

A decision γ is replaced by γ₀ + Γ_y y + Γ_u u, where u_c ≥ g_c(y) are the components of the moments that a set bounds.
The coefficients are variables of the program, one for every pair of an entry of γ and a number that it may see; for the
parser the lifted numbers u are coordinates behind those of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from drolayers.cost.adaptive import Adaptive
from drolayers.cost.coefficients import Coefficients
from drolayers.errors import ModelError
from drolayers.uncertainty import Uncertain


@dataclass(frozen=True, eq=False)
class AffineRule:
    """The coefficients of one adaptive decision.

    Attributes:
        decision: the adaptive decision.
        variable: the coefficients, atom by atom.
        entry: ``(coefficients,)``, the entry of the decision that each belongs to, in Fortran order.
        coordinate: ``(coefficients,)``, what it multiplies: a coordinate of y, behind them a lifted one; -1 for a one.
        atoms: how many rules there are: one, or one for every atom.
    """

    decision: Adaptive
    variable: cp.Variable
    entry: NDArray[np.int64]
    coordinate: NDArray[np.int64]
    atoms: int


@dataclass(frozen=True, eq=False)
class Lifting:
    """What rules may respond to beside ``y``, and the rules of a problem.

    Args:
        dim: number of coordinates of ``y``.
        components: the coordinates that each lifted component depends on.
        atoms: number of atoms that have rules of their own; then only they know the lifted components.
        alike: whether the user's decisions have one rule for all atoms nevertheless.
        owner: the set whose components they are.
        events: where that is a mixture, what the rules of second stages may respond to in each event.
    """

    dim: int
    components: tuple[NDArray[np.int64], ...] = ()
    atoms: int = 1
    alike: bool = False
    owner: object = None
    events: tuple[Lifting, ...] = ()
    rules: dict[int, AffineRule] = field(default_factory=dict)

    @classmethod
    def of(cls, ambiguity: Any, alike: bool = False) -> Lifting:
        """What rules may respond to under a set."""
        events, atoms = tuple(cls.of(event) for event in ambiguity.events), ambiguity.own_rules
        return cls(ambiguity.y.dim, tuple(ambiguity.lifted()), atoms, alike, ambiguity, events)

    def rule(self, decision: Adaptive, inner: bool = False) -> AffineRule:
        """The rule of a decision, made once; ``inner`` where it belongs to a second stage."""
        if decision.id not in self.rules:
            own = self.atoms > 1 and decision.sees_all and (inner or not self.alike)
            sees = np.hstack([np.ones((decision.size, 1), dtype=bool), decision.sees])
            if own or self.atoms == 1:
                # What depends on nothing is no response to anything.
                lifted = [
                    decision.sees[:, part].all(axis=1, keepdims=True) & (part.size > 0) for part in self.components
                ]
                sees = np.hstack([sees, *lifted])
            entry, coordinate = np.nonzero(sees)
            atoms = self.atoms if own else 1
            variable = cp.Variable(atoms * entry.size, name=f"rule of {decision.name()}")
            self.rules[decision.id] = AffineRule(decision, variable, entry, coordinate - 1, atoms)
        return self.rules[decision.id]


@dataclass(frozen=True, eq=False)
class Ruled:
    """Coefficients of rows with rules in place of adaptive decisions.

    Attributes:
        entries: over the variables, the rules' coefficients and the maxima, in this order.
        rules: the rules, in the order of their columns.
        own: ``(atoms, columns)``: where the columns of the first atom's rows are for each atom.
    """

    entries: Coefficients
    rules: tuple[AffineRule, ...]
    own: NDArray[np.int64]


def ruled(entries: Coefficients, width: int, maxima: int, rules: Sequence[AffineRule], y: Uncertain) -> Ruled:
    """Rules put in the place of adaptive decisions, whose columns stand behind those of the maxima.

    Args:
        entries: the coefficients.
        width: number of columns of variables.
        maxima: number of columns of maxima, behind them.
        rules: of the adaptive decisions.
        y: the uncertain vector.

    Raises:
        ModelError: an adaptive decision is multiplied by ``y``.
    """
    sizes = np.array([rule.variable.size for rule in rules], dtype=np.int64)
    starts = width + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    atoms = max((rule.atoms for rule in rules), default=1)
    own = np.tile(np.arange(starts[-1]), (atoms, 1))
    column = entries.column
    moved = np.where((column >= width) & (column < width + maxima), column + sizes.sum(), column)
    parts = [Coefficients(entries.row, moved, *entries.parts[2:])[column < width + maxima]]
    first = width + maxima
    for rule, start in zip(rules, starts, strict=False):
        some = entries[(column >= first) & (column < first + rule.decision.size)]
        if (some.coordinate >= 0).any():
            raise ModelError(
                f"The adaptive decision {rule.decision.name()} is multiplied by {y.name()}, on which it depends: "
                "multiply it by constants and known data only."
            )
        # Every entry once for each coefficient of its rule.
        order = np.argsort(rule.entry, kind="stable")
        begin = np.searchsorted(rule.entry[order], np.arange(rule.decision.size + 1))
        count = np.diff(begin)[some.column - first]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        chosen = order[np.repeat(begin[some.column - first], count) + within]
        wide = some[np.repeat(np.arange(len(some.row)), count)]
        parts.append(Coefficients(wide.row, start + chosen, rule.coordinate[chosen], wide.factor, wide.value))
        if rule.atoms > 1:
            each = rule.entry.size
            own[:, start : start + each] += each * np.arange(atoms)[:, None]
        first += rule.decision.size
    return Ruled(Coefficients.join(parts), tuple(rules), own)

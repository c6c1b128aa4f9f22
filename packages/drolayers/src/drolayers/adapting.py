"""Adaptive decisions at outcomes: the rules of a decision, evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import cvxpy as cp
import numpy as np
import torch
from cvxpy.expressions.leaf import Leaf
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.cost.adaptive import Adaptive, adaptive_in
from drolayers.cost.affine_rule import AffineRule, Lifting
from drolayers.cost.risk import Kind, Worst
from drolayers.cost.rules import ROUNDING, Rule, beyond
from drolayers.cost.torch_loss import TorchCost
from drolayers.cost.tree import replaced, walk


def lifting_for(ambiguity: AmbiguitySet, cost: cp.Expression, rows: Sequence[cp.Expression]) -> Lifting:
    """What the rules of a problem may respond to.

    An atom is never observed. Who sees all of y can take the cheapest of all atoms' rules, and does at least as well as
    under any coupling of outcomes with atoms; but only against one worst case, as others have couplings of their own.

    Args:
        ambiguity: the set.
        cost: of the problem.
        rows: what has worst cases among its constraints.
    """
    own = (Kind.EXPECTED, Kind.FRAGILITY)
    apart = [node for node in walk([cost]) if isinstance(node, Worst) and node.kind in own]
    rest = replaced(cost, {id(node): cp.Constant(np.zeros(node.shape)) for node in apart}) if apart else cost
    beside = adaptive_in([rest])
    bounded = [n for n in walk(rows) if isinstance(n, Worst) and n.kind is not Kind.ALWAYS and adaptive_in([n])]
    count = sum(node.size for node in apart if adaptive_in([node])) + bool(beside)
    alike = bool(bounded) or count > 1
    return Lifting.of(ambiguity, alike)


@dataclass(frozen=True, eq=False)
class Adaptation:
    """The adaptive decisions of a problem.

    Args:
        lifting: their rules.
        decisions: they.
        ambiguity: the set.
        cost: of the problem, by which an atom's rule is chosen.
        always: the constraints that an atom's rule must obey.
    """

    lifting: Lifting
    decisions: tuple[Adaptive, ...]
    ambiguity: AmbiguitySet
    cost: TorchCost
    always: tuple[TorchCost, ...]

    @classmethod
    def of(
        cls,
        lifting: Lifting,
        decisions: tuple[Adaptive, ...],
        ambiguity: AmbiguitySet,
        cost: TorchCost,
        rules: Sequence[Rule],
    ) -> Adaptation:
        """Of a problem's cost and constraints."""
        always = [r for r in rules if r.kind is Kind.ALWAYS and adaptive_in([r.outcome])]
        return cls(lifting, decisions, ambiguity, cost, tuple(TorchCost(r.outcome) for r in always))

    @cached_property
    def rules(self) -> tuple[AffineRule, ...]:
        """Their rules."""
        return tuple(self.lifting.rule(decision) for decision in self.decisions)

    @cached_property
    def lifts(self) -> bool:
        """Whether some rule responds to lifted components, or to its atom."""
        return any(bool((rule.coordinate >= self.lifting.dim).any()) or rule.atoms > 1 for rule in self.rules)

    @cached_property
    def seen(self) -> dict[cp.Variable, cp.Parameter]:
        """What lifted components are computed from, as variables of the program and so as a part of the decision.

        Then a decision knows all of its rules; and where it has no derivative, they have none either.
        """
        features = self.ambiguity.lifted_features if self.lifts else ()
        return {cp.Variable(p.shape, name=f"seen: {p.name()}"): p for p in features}

    @property
    def ties(self) -> list[cp.Constraint]:
        """What makes them so."""
        return [variable == parameter for variable, parameter in self.seen.items()]

    @property
    def hidden(self) -> tuple[cp.Variable, ...]:
        """The parts of a decision that are its rules."""
        return (*(rule.variable for rule in self.rules), *self.seen)

    def completed(self, leaves: dict[Leaf, Tensor], lead: int) -> dict[Leaf, Tensor]:
        """The values of leaves, with adaptive decisions among them."""
        return {**leaves, **self.chosen(leaves, lead)[0]} if self.decisions else leaves

    def sizes(self, leaves: Mapping[Leaf, Tensor], lead: int) -> dict[Leaf, Tensor]:
        """How large the terms are that adaptive decisions are made of."""
        return self.chosen(leaves, lead)[1] if self.decisions else {}

    def chosen(self, leaves: Mapping[Leaf, Tensor], lead: int) -> tuple[dict[Leaf, Tensor], dict[Leaf, Tensor]]:
        """The adaptive decisions for the values of all other leaves, which have so many dimensions in front.

        Where atoms have rules of their own, the cheapest of those that obey all that holds always; the one that is
        closest to it where none does.

        Returns:
            Their values, and the sizes of the terms that these are made of.
        """
        values, sizes = self._values(leaves, lead)
        if all(value.shape[lead] == 1 for value in values.values()):
            first, second = ({v: part.squeeze(lead) for v, part in parts.items()} for parts in (values, sizes))
            return first, second
        with torch.no_grad():
            wide = {k: v.unsqueeze(lead) for k, v in leaves.items()} | values
            cost, missed = self.cost(wide), torch.zeros((), dtype=torch.float64)
            for expression in self.always:
                rows = beyond(*expression.sized(wide, sizes))
                missed = torch.maximum(missed.to(rows), rows.amax(-1).clamp(min=0.0))
            # The first of what is seen are weights, relative to their mean.
            padding = leaves[next(iter(self.seen))] <= ROUNDING
            missed = missed.expand_as(cost).masked_fill(padding, torch.inf)
            best = missed.amin(-1, keepdim=True)
            atom = cost.masked_fill(missed > best, torch.inf).argmin(-1)

        def picked(v: Leaf, value: Tensor) -> Tensor:
            if value.shape[lead] == 1:
                return value.squeeze(lead)
            wide_value = value.expand(*atom.shape, *value.shape[lead:])
            index = atom.view(*atom.shape, *[1] * (1 + v.ndim)).expand(*atom.shape, 1, *v.shape)
            return wide_value.gather(lead, index).squeeze(lead)

        first, second = ({v: picked(v, part) for v, part in parts.items()} for parts in (values, sizes))
        return first, second

    def _values(self, leaves: Mapping[Leaf, Tensor], lead: int) -> tuple[dict[Leaf, Tensor], dict[Leaf, Tensor]]:
        """Every decision by every rule, ``(..., rule, *shape)``, and the sizes of its terms, without a derivative."""
        y = leaves[self.ambiguity.y].flatten(lead)
        inputs = torch.cat([torch.ones_like(y[..., :1]), y], -1).unsqueeze(lead)
        if self.lifts:
            # The same for all candidates of an item.
            features = [leaves[v].flatten(1, lead - 1)[:, 0] if lead > 1 else leaves[v] for v in self.seen]
            lifted = self.ambiguity.lifted_values(features, y.reshape(len(y), -1, y.shape[-1]))
            lifted = lifted.reshape(len(lifted), *y.shape[1:lead], *lifted.shape[2:])
            inputs = torch.cat([inputs.expand(*lifted.shape[:-1], -1), lifted.to(inputs)], -1)
        found: dict[Leaf, Tensor] = {}
        sizes: dict[Leaf, Tensor] = {}
        for rule in self.rules:
            coefficients = leaves[rule.variable]
            coefficients = coefficients.unflatten(-1, (rule.atoms, -1))
            seen = inputs if rule.atoms > 1 else inputs[..., :1, :]
            terms = coefficients * seen[..., torch.as_tensor(rule.coordinate + 1, device=seen.device)]
            entry = torch.as_tensor(rule.entry, device=terms.device)
            shape = tuple(reversed(rule.decision.shape))
            for values, part in ((found, terms), (sizes, terms.detach().abs())):
                flat = part.new_zeros(*part.shape[:-1], rule.decision.size).index_add(-1, entry, part)
                turned = flat.unflatten(-1, shape) if shape else flat.squeeze(-1)
                values[rule.decision] = turned.transpose(-1, -2) if len(shape) == 2 else turned
        return found, sizes

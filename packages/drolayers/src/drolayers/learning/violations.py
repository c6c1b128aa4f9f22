"""Constraints that are to hold on data: an augmented Lagrangian of what data say of them.

For what is missed v_r, in typical units, with multiplier λ_r and penalty ρ_r every step adds ((λ + ρv)⁺² - λ²)/2ρ to
the loss, and every epoch ends with λ ← (λ + ρv)⁺; ρ doubles while v does not fall by a quarter (Nocedal and Wright,
Numerical Optimization, chapter 17). Multipliers follow validation data where there are some, since what was trained on
flatters itself (Cotter et al., Training well-generalizing classifiers for fairness metrics and other data-dependent
constraints, ICML 2019).

A share is a step function of decisions, and has no derivative. "At most a share α has g > 0" is the same as "the
(1 - α)-quantile of g is at most zero", and that has one, also where all points are far off: it is what v stands for,
over a batch the mean of the points around it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from drolayers.cost.rules import ROUNDING
from drolayers.evaluations import Chosen
from drolayers.known import Known
from drolayers.problem import DecisionProblem

PENALTY, LARGEST = 4.0, 256.0
"""The first ρ, and the last."""

UNWANTED = 100.0
"""What validation charges for every unit that is missed, in units of the cost: constraints come before the cost."""


class Violations(nn.Module):
    """The multipliers of all constraints with worst cases; they travel with checkpoints.

    Args:
        problem: the decision problem.
        allowed: largest share of outcomes at which ``dro.always`` and ``dro.chance`` may fail; means and CVaRs may not
            exceed their bounds.
        x: decisions at the start of the training, ``(point, *shape)``, for units.
        y: their outcomes.
        known: their known data.
    """

    multiplier: Tensor
    penalty: Tensor
    last: Tensor
    unit: Tensor

    def __init__(
        self, problem: DecisionProblem, allowed: float, x: Chosen, y: Tensor, known: Known | None = None
    ) -> None:
        super().__init__()
        self.allowed = allowed
        found, terms, units = problem.violations(x, y, known), problem.terms(x, y, known), []
        for rule in problem.rules:
            g, row = found[rule.constraint].detach().double().max(1)
            beside = terms[rule.constraint].double().gather(1, row[:, None])[:, 0]
            # Second stages that have no answer are infinite; what is left of an equation that holds is rounding.
            g, beside = (v[g.isfinite() & beside.isfinite()] for v in (g, beside))
            spread, size = (float(v.abs().mean()) if g.numel() else 0.0 for v in (g - g.mean(), beside))
            units.append(spread if spread > ROUNDING * size else size or 1.0)
        count = len(units)
        starts = {"multiplier": [0.0] * count, "penalty": [PENALTY] * count, "last": [float("inf")] * count}
        for name, values in {**starts, "unit": units}.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, missed: Float[Tensor, "rule"]) -> Float[Tensor, ""]:
        """What is added to a loss in typical units."""
        penalty, multiplier, unit = (v.to(missed) for v in (self.penalty, self.multiplier, self.unit))
        pushed = (multiplier + penalty * missed / unit).clamp(min=0.0)
        return ((pushed**2 - multiplier**2) / (2.0 * penalty)).sum()

    def charge(self, missed: Float[Tensor, "rule"]) -> float:
        """What validation adds, in units of the cost."""
        return UNWANTED * float((missed / self.unit.to(missed)).clamp(min=0.0).sum())

    @torch.no_grad()
    def follow(self, missed: Float[Tensor, "rule"]) -> None:
        """The end of an epoch."""
        found = (missed / self.unit.to(missed)).to(self.unit)
        self.multiplier.copy_((self.multiplier + self.penalty * found).clamp(min=0.0))
        slow = (found > 0) & (found > 0.75 * self.last)
        self.penalty.copy_(torch.where(slow, 2.0 * self.penalty, self.penalty).clamp(max=LARGEST))
        self.last.copy_(found.clamp(min=0.0))

"""The worst case under any set: that of the set, or of a mixture, those of its events put together.

For a mixture f = Σ p_s f_s, and the product of p and f_s is not DPP: so v_s ≥ f_s gets a name, and the mixture says
what the v_s come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.mixture import Mixture
from drolayers.cost.parse import PiecewiseCost
from drolayers.reformulation.formulate import formulate, vanishing
from drolayers.reformulation.worst_case import Probe, WorstCase


@dataclass(frozen=True)
class Probes:
    """What can be perturbed of a worst case.

    Args:
        rows: those of every event; there is one where nothing is mixed.
        values: perturbation of the events' worst cases, ``(event,)``: the derivative is the probability of the event.
    """

    rows: tuple[Probe, ...] = ()
    values: cp.Parameter | None = None

    @property
    def parameters(self) -> list[cp.Parameter]:
        """All perturbations: of every event's slopes and offsets, then of the events' values."""
        inner = [part for probe in self.rows for part in (probe.slope, probe.offset)]
        return inner if self.values is None else [*inner, self.values]


def worst_case_under(
    costs: Sequence[PiecewiseCost],
    ambiguity: AmbiguitySet,
    everywhere: bool = False,
    probe: bool = False,
    named: bool = False,
    apart: bool = False,
) -> tuple[WorstCase, Probes]:
    """c₀(x) + sup E[…] with what comes with it, and what can be perturbed; see ``formulate``."""
    if not isinstance(ambiguity, Mixture):
        worst = formulate(costs, ambiguity, everywhere, probe, named, apart)
        return worst, Probes(() if worst.probe is None else (worst.probe,))
    (parsed,) = costs
    # What no event changes is said once: all but second stages, which have a rule for each.
    said = vanishing(parsed, parsed.stack) if not parsed.events else []
    plain = replace(parsed, constraints=(), equations=parsed.equations.take(np.zeros(0, dtype=np.int64)))
    count = len(ambiguity.sets)
    found = []
    for s, (part, own) in enumerate(zip(ambiguity.sets, parsed.events or [plain] * count, strict=True)):
        uncertain = replace(own, certain=(), constant=own.constant.combine(sp.csr_array((1, 1))))
        possible = ambiguity.possible[s] if everywhere and ambiguity.given is None else None
        found.append(formulate([uncertain], part, everywhere, probe, named, possible=possible))
    values, moved = cp.Variable(count, name="v"), cp.Parameter(count, name="event probe") if probe else None
    above = cp.hstack([worst.value for worst in found]) + (np.zeros(count) if moved is None else moved)
    value, constraints = ambiguity.mixed(values, everywhere)
    constraints = [values >= above, *constraints, *parsed.constraints, *said]
    constraints += [constraint for worst in found for constraint in worst.constraints]
    rows = tuple(worst.probe for worst in found if worst.probe is not None)
    return WorstCase(parsed.deterministic + value, constraints, None), Probes(rows, moved)

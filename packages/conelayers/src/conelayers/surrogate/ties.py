"""Integer points as good as the best one, at which the optimal value may have a kink."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conelayers.derivative.theorem import AGREE
from conelayers.derivative.value import value_gradients
from conelayers.engine.engine import Engine
from conelayers.program.program import ConeProgram
from conelayers.status import Derivative

TIE_REL = 1e-9
"""Difference of objectives up to which two integer points are equally good; polished values are as exact."""


@dataclass(frozen=True, eq=False)
class Ties:
    """Points as good as the best one: if their values have another gradient, the best value has a kink.

    All features count here, whether they are differentiated or not.

    Args:
        program: the structure.
        primal: a table of solutions.
        dual: their multipliers.
        objective: of every candidate.
        valid: which candidates were solved.
        best: line of the best point in the table.
        lines: lines of the candidates.
    """

    program: ConeProgram
    primal: Float[Tensor, "line column"]
    dual: Float[Tensor, "line row"]
    objective: Float[Tensor, "batch candidate"]
    valid: Bool[Tensor, "batch candidate"]
    best: Int[Tensor, "batch"]
    lines: Int[Tensor, "batch candidate"]

    @torch.no_grad()
    def flag(self, codes: Int[Tensor, "batch"]) -> Int[Tensor, "batch"]:
        """Replace codes of verified gradients by KINK where an equal point has another gradient."""
        objective = torch.where(self.valid, self.objective, torch.full_like(self.objective, torch.inf))
        least = objective.amin(1, keepdim=True)
        tied = self.valid & (objective - least <= TIE_REL * least.abs()) & (self.lines != self.best[:, None])
        item, candidate = tied.nonzero(as_tuple=True)
        if not item.numel():
            return codes
        one, other = self.best[item], self.lines[item, candidate]
        gradient, second = (value_gradients(self.program, self.primal[k], self.dual[k]) for k in (one, other))
        differ = (gradient - second).abs().amax(1) > AGREE * gradient.abs().amax(1)
        kink = torch.zeros_like(codes).index_add(0, item, differ.to(codes)) > 0
        verified = (codes > int(Derivative.UNASKED)) & (codes <= int(Derivative.PATH))
        return torch.where(kink & verified, int(Derivative.KINK), codes)

    def warn(self, engine: Engine, value: Float[Tensor, "batch"]) -> None:
        """Let the backward pass of the best value warn of ties."""
        if not value.requires_grad or not self.program.feature_size:
            return

        def look(gradient: Tensor) -> None:
            asked = gradient != 0
            codes = self.flag(torch.where(asked, int(Derivative.FACE), int(Derivative.UNASKED)))
            engine.warn_of_kinks(self.program, codes)

        value.register_hook(look)

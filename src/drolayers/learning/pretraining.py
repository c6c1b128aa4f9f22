"""Prediction-focused training: fit the set to the nominal distribution, without looking at decisions.

The paper's loss has two terms for every moment,

    | E_Q[g_i(y, α_i)] |  +  | E_Q[g_i(y, α_i)] - σ_i |,

the first for the location parameters α, the second for the bound σ (there α is held fixed). In phase "location" only
the first is used, then both. Parameters that the first term would drive to zero without a meaning (a direction μ, a
learnable matrix) are left where they are.

E_Q is an average over neighbours, which flattens what is curved. Locations can be fitted to the outcomes themselves
instead, which are unbiased; bounds cannot, since a single outcome has no spread.
"""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.ambiguity.base import AmbiguitySet
from drolayers.ambiguity.moment_set import MomentSet
from drolayers.ambiguity.nominal import Pair


class PredictionLoss:
    """The two-term loss of a moment set; relative to typical values, so that no moment drowns another.

    Args:
        ambiguity: the set.
        Y: training outcomes, for typical values.
    """

    def __init__(self, ambiguity: AmbiguitySet, Y: Float[Tensor, "n dim"]) -> None:
        self.ambiguity = ambiguity
        typical = ambiguity.typical(Y)
        self.skipped = [name for name, value in typical.items() if not value.meaningful]
        self.meaningful = isinstance(ambiguity, MomentSet)
        if self.skipped:
            warnings.warn(
                f"Prediction-focused training leaves {self.skipped} alone: fitting the set to data does not determine "
                "them.",
                stacklevel=3,
            )
        sigma = [value.scale.reshape(-1) for name, value in typical.items() if name.split(".")[-1] == "sigma"]
        self.scale = torch.cat(sigma) if sigma else torch.ones(1)

    def __call__(
        self,
        theta: Float[Tensor, "batch theta"],
        nominal: Pair,
        phase: Literal["location", "bound"],
        outcomes: Float[Tensor, "batch dim"] | None = None,
    ) -> Float[Tensor, ""]:
        """The mean loss of a batch; locations are fitted to outcomes where they are given."""
        atoms, weights = nominal
        centres = nominal if outcomes is None else (outcomes[:, None], torch.ones_like(outcomes[:, :1]))
        first = (self._expected(theta, centres) / self.scale.to(theta)).abs().sum(1).mean()
        if phase == "location":
            return first
        assert isinstance(self.ambiguity, MomentSet)
        expected = self._expected(theta.detach(), (atoms, weights))
        sigma = torch.cat(self.ambiguity.sigmas(theta), 1)[:, self._learnt]
        return first + ((expected - sigma) / self.scale.to(theta)).abs().sum(1).mean()

    @property
    def _learnt(self) -> list[bool]:
        """Which bounds are learnt."""
        assert isinstance(self.ambiguity, MomentSet)
        return [moment.sigma is None for moment in self.ambiguity.moments for _ in range(moment.bounds)]

    def _expected(self, theta: Tensor, nominal: Pair) -> Float[Tensor, "batch bound"]:
        """E_Q[g_i(y, α_i)] of the bounds that are learnt."""
        assert isinstance(self.ambiguity, MomentSet)
        atoms, weights = nominal
        values = self.ambiguity.values(self._without(theta, self.skipped), atoms.to(theta))
        return (weights[..., None] * values).sum(1)[:, self._learnt]

    def _without(self, theta: Tensor, names: list[str]) -> Tensor:
        """θ with some parameters held fixed."""
        if not names:
            return theta
        parts = {n: v.detach() if n in names else v for n, v in self.ambiguity.unpack(theta).items()}
        return self.ambiguity.pack(parts)

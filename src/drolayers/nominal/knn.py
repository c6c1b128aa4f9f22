"""The k nearest neighbours, equally weighted."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from drolayers.checks import whole
from drolayers.nominal.base import NominalDistribution, distances


@final
class KNN(NominalDistribution):
    """The outcomes of the k nearest training points, each of weight 1/k.

    Args:
        k: number of neighbours; with fewer training points all of them, padded with atoms of weight zero.
        max_atoms: a further cap; the nearest are kept.
        standardize: whether covariates are standardised before distances are taken.
    """

    def __init__(self, k: int, max_atoms: int | None = None, standardize: bool = True) -> None:
        super().__init__(max_atoms, standardize)
        whole("k", k)
        self.k = k

    @property
    def wanted(self) -> int:
        """K, or the cap."""
        return self.k if self.max_atoms is None else min(self.k, self.max_atoms)

    def learn(self) -> None:
        """Nothing beyond the data."""

    def weigh(
        self, z: Float[Tensor, "batch dz"], exclude: Int[Tensor, "batch"] | None
    ) -> Float[Tensor, "batch training"]:
        """One for the nearest, zero for the others."""
        away = distances(z, self.covariates, exclude)
        nearest, index = away.topk(min(self.wanted, away.shape[1]), dim=1, largest=False)
        return torch.zeros_like(away).scatter(1, index, nearest.isfinite().to(away))

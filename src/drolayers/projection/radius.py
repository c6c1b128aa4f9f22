"""The radius that a Wasserstein ball needs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from drolayers.ambiguity.nominal import Nominal
from drolayers.ambiguity.wasserstein import Wasserstein
from drolayers.support import Box


def needed_radius(ball: Wasserstein, nominal: Nominal) -> Float[Tensor, "batch 1"]:
    """(Σ ω_n dist(y_n, Ξ)^p)^(1/p): how far the nominal distribution lies from those on the support."""
    atoms, weights = nominal
    support = ball.y.support
    if isinstance(support, Box):
        # Coordinate by coordinate, in every norm.
        lo, hi = (torch.tensor(end).to(atoms) for end in support.ends(ball.y.dim))
        gap = (lo - atoms).clamp(min=0.0) + (atoms - hi).clamp(min=0.0)
        distance = torch.linalg.vector_norm(gap, ball.norm, dim=2)
        moved = (weights * distance**ball.order).sum(1, keepdim=True)
        return moved if ball.order == 1 else torch.where(moved > 0, moved, torch.ones_like(moved)).sqrt() * (moved > 0)
    return ball.needed(nominal)[:, None]

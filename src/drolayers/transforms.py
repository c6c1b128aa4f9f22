"""Transforms of functions that cannot pass through a solver say so in one sentence."""

from __future__ import annotations

from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from drolayers.errors import DifferentiationError


def refuse_transforms(*tensors: Tensor) -> None:
    """Refuse tensors within torch.func's vmap, grad, jacrev and the like, and batched gradients."""
    if any(
        _functorch.is_functorch_wrapped_tensor(t)
        or _functorch.is_legacy_batchedtensor(t)
        or forward_ad.unpack_dual(t).tangent is not None
        for t in tensors
    ):
        raise DifferentiationError(
            "Solvers cannot be seen through by torch.func (vmap, grad, jacrev, jvp) nor by batched gradients "
            "(vectorize=True): give all items as one batch, and differentiate with backward() or "
            "torch.autograd.functional.jacobian."
        )


def refuse_vmap(tensor: Tensor) -> None:
    """Refuse a tensor within vmap, whose numbers cannot be looked at; gradients of plain formulas may pass."""
    inner = tensor
    while _functorch.is_functorch_wrapped_tensor(inner):
        if _functorch.is_batchedtensor(inner):
            refuse_transforms(tensor)
        inner = _functorch.get_unwrapped(inner)

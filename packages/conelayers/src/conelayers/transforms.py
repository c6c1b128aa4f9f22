"""PyTorch's transforms: what solvers cannot be seen through by, and what lasts beyond one."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from conelayers.errors import DifferentiationError

F = TypeVar("F", bound=Callable[..., Any])

UNTRACED = "solvers are no graphs: leave out fullgraph=True, and they run between the graphs"


def wraps_all() -> bool:
    """Whether whatever is made now is wrapped and ends with a transform, as within grad and jvp."""
    return bool(_functorch.is_functorch_wrapped_tensor(torch.empty(0)))


def refuse_transforms(*tensors: Tensor) -> None:
    """Refuse tensors within torch.func's vmap, grad, jacrev and the like, and batched gradients."""
    # Even where no tensor has to do with it, no function with a derivative of its own may be called there.
    if _functorch.peek_interpreter_stack() is not None or any(
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


def unwrapped(tensor: Tensor) -> Tensor:
    """The numbers of a tensor without what transforms wrap it in, to be kept beyond them."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def untraced(function: F) -> F:
    """A function that torch.compile leaves alone, with the reason where torch takes one."""
    takes = "reason" in signature(torch.compiler.disable).parameters
    return torch.compiler.disable(function, **({"reason": UNTRACED} if takes else {}))

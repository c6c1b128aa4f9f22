"""Arguments of a call as one batch of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from conelayers.errors import ShapeError
from conelayers.program.program import Slot


class BatchedValues(NamedTuple):
    """The features of a batch.

    Args:
        features: all parameters side by side, in float64 or the arguments' own type.
        batched: whether any argument had a batch dimension.
        dtype: in which answers are returned.
    """

    features: Float[Tensor, "batch feature"]
    batched: bool
    dtype: torch.dtype

    def take_logarithms(self, slots: Sequence[Slot], logarithmic: Sequence[bool]) -> BatchedValues:
        """Return the same with some parameters replaced by their logarithms; NaN if not positive."""
        parts = self.features.split([slot.size for slot in slots], 1) if slots else ()
        logs = [_logarithm(p) if log else p for p, log in zip(parts, logarithmic, strict=True)]
        return self._replace(features=torch.cat(logs, 1)) if logs else self

    def connect(self, tensor: Tensor) -> Tensor:
        """Connect a tensor to the features in autograd; the gradient is zero if it does not depend on them."""
        if tensor.requires_grad or not self.features.requires_grad:
            return tensor
        everywhere = torch.ones((), dtype=torch.bool, device=tensor.device)
        return torch.where(everywhere, tensor, self.features.sum().to(tensor))


def batch_values(slots: Sequence[Slot], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> BatchedValues:
    """Lay the values of parameters side by side.

    Args:
        slots: the parameters in their order.
        arguments: a value for each of them, ``(*shape)`` or ``(batch, *shape)``; or one dict by parameter or name.
        keywords: values by name, in place of ``arguments``.
    """
    values = [_tensor(slot, value) for slot, value in zip(slots, _ordered(slots, arguments, keywords), strict=True)]
    sizes = [len(value) for slot, value in zip(slots, values, strict=True) if value.dim() == len(slot.shape) + 1]
    different = sorted(set(sizes) - {1})
    if len(different) > 1:
        raise ShapeError(f"Arguments have batches of different sizes {different}. Give each the same, or none.")
    batch = different[0] if different else 1
    devices = {value.device for value in values}
    if len(devices) > 1:
        raise ShapeError(f"Arguments are on different devices {sorted(map(str, devices))}. Move them to one.")
    parts = []
    for slot, value in zip(slots, values, strict=True):
        rows = value if value.dim() == len(slot.shape) + 1 else value[None]
        parts.append(rows.reshape(len(rows), slot.size).expand(batch, -1))
    dtype = torch.float64
    if values:
        dtype = values[0].dtype
        for value in values[1:]:
            dtype = torch.promote_types(dtype, value.dtype)
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    features = torch.cat([part.double() for part in parts], 1) if parts else torch.zeros(1, 0, dtype=torch.float64)
    return BatchedValues(features, bool(sizes), dtype)


def _ordered(slots: Sequence[Slot], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return one value for each slot."""
    if len(arguments) == 1 and isinstance(arguments[0], Mapping) and not keywords:
        by_name: dict[Any, Any] = {
            key if isinstance(key, str) else getattr(key, "id", key): value for key, value in arguments[0].items()
        }
    elif arguments and keywords:
        raise ShapeError("Give the parameters either in their order or by name, not both.")
    elif arguments or not keywords:
        if len(arguments) != len(slots):
            expected = [slot.name for slot in slots]
            raise ShapeError(f"The layer takes {len(slots)} arguments {expected}, got {len(arguments)}.")
        return list(arguments)
    else:
        by_name = dict(keywords)
    names = [slot.name for slot in slots]
    values, used = [], set()
    for slot in slots:
        if slot.name in by_name and names.count(slot.name) > 1:
            raise ShapeError(f"{names.count(slot.name)} parameters are called {slot.name}. Pass values in their order.")
        key = next((key for key in (slot.key, slot.name) if key in by_name and (key != -1)), None)
        if key is None:
            raise ShapeError(f"Parameter {slot.name} has no value. The layer takes {names}.")
        used.add(key)
        values.append(by_name[key])
    if unknown := [key for key in by_name if key not in used]:
        raise ShapeError(f"{unknown} are no parameters of the layer, or given twice. The layer takes {names}.")
    return values


def _logarithm(values: Tensor) -> Tensor:
    """Return log(values), or NaN with a zero gradient if not positive."""
    positive = values > 0
    return torch.where(positive, values, torch.ones_like(values)).log().masked_fill(~positive, torch.nan)


def _tensor(slot: Slot, value: Any) -> Tensor:
    """Return a value as a tensor of the right shape."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"`{slot.name}` must be a tensor or an array, got {type(value).__name__}.") from error
    if tensor.is_complex():
        raise ShapeError(f"`{slot.name}` is complex. Pass real and imaginary parts as two parameters.")
    if tensor.device.type == "meta":
        raise ShapeError(f"`{slot.name}` is on the meta device and has no numbers. Move it to another device.")
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tuple(tensor.shape[tensor.dim() - len(slot.shape) :]) != slot.shape or tensor.dim() > len(slot.shape) + 1:
        expected = f"{slot.shape} or (batch, {', '.join(map(str, slot.shape))})" if slot.shape else "() or (batch,)"
        raise ShapeError(f"`{slot.name}` must have shape {expected}, got {tuple(tensor.shape)}.")
    return tensor

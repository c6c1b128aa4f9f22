"""Functions of tensors that are recorded once as CUDA graphs and replayed: a launch instead of a hundred."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from conelayers.program.program import once

Work = Callable[..., tuple[Tensor, ...]]
"""From tensors to tensors, batch first; what becomes of an item depends on no other."""

SIGHTS = 3
"""Calls of one size after which it is worth a recording."""

LARGEST = 4_000_000
"""Numbers given up to which launches cost more than the work."""

FLAT = 1 << 18
"""Numbers in a vector of a whole batch up to which a kernel takes no longer than it takes to start."""


def replayed(owner: Any, name: Any, work: Work, *given: Tensor) -> tuple[Tensor, ...]:
    """What a function makes of a batch; on a GPU small batches are replayed from recordings that their owner keeps.

    Args:
        owner: what the function belongs to, apart from what it is given.
        name: of the function.
        work: the function; it must not wait for the device.
        given: tensors, batch first; those that all items share have a batch of one, the last one never has.
    """
    batch, device = len(given[-1]), given[-1].device
    if device.type != "cuda" or not batch or sum(t.numel() for t in given) > LARGEST:
        return work(*given)
    size = rounded(batch, max(t.shape[1] if t.dim() > 1 else 1 for t in given))
    shared = tuple(len(t) == 1 < batch for t in given)
    sizes: dict[Any, _Slot] = once(owner, ("replays", device), dict)
    slot = sizes.setdefault((name, size, shared), _Slot())
    with slot.lock:
        slot.sights += 1
        if slot.recording is None and slot.sights >= SIGHTS:
            # Not by the rules of whoever asks first: its buffers are written to by all others.
            with torch.inference_mode(False), torch.no_grad():
                slot.recording = _Recording(work, size, given, shared)
        return work(*given) if slot.recording is None else slot.recording(batch, given)


class _Slot:
    """How often a size was seen, and its recording."""

    def __init__(self) -> None:
        self.lock, self.sights = threading.Lock(), 0
        self.recording: _Recording | None = None


@final
class _Recording:
    """A function recorded for batches up to one size: what an earlier batch left beyond the present one is ignored."""

    def __init__(self, work: Work, size: int, given: tuple[Tensor, ...], shared: tuple[bool, ...]) -> None:
        fill = torch.arange(size, device=given[-1].device) % len(given[-1])
        self._given = tuple(t.clone() if s else t[fill] for t, s in zip(given, shared, strict=True))
        self._found = tuple(t.clone() for t in work(*self._given))
        self._shared = tuple(len(t) != size for t in self._found)

        def again() -> None:
            for target, value in zip(self._found, work(*self._given), strict=True):
                target.copy_(value)

        self._graph = recorded(again)

    def __call__(self, batch: int, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Copy in, replay, copy out."""
        for target, value in zip(self._given, given, strict=True):
            target[: len(value)].copy_(value)
        self._graph.replay()
        return tuple((t if s else t[:batch]).clone() for t, s in zip(self._found, self._shared, strict=True))


def recorded(work: Callable[[], None]) -> Any:
    """A graph of what a function does."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Twice by hand: lazily made constants and workspaces must not be recorded.
        work()
        work()
        graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
        torch.cuda.synchronize()
        # As ``torch.cuda.graph`` does, but without collecting garbage and emptying caches each time, which takes ten
        # times as long as the rest; no garbage may be collected meanwhile.
        gc.disable()
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
            if collecting:
                gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def rounded(items: int, width: int) -> int:
    """The size of the recording that serves a batch of vectors so wide.

    Each size is recorded when it is first met, which takes as long as some replays, and a search meets many: so there
    are few, 8, 32, 128 …, as long as padding takes no time. Beyond, they are 256, 384, 512, 768 …, or a multiple of 100
    near by; a multiple of 100, as the sizes of batches are, stays what it is.
    """
    if items and items % 100 == 0:
        return items
    coarse = 8
    while coarse < items:
        coarse *= 4
    if coarse * width <= FLAT:
        return coarse
    power = 1 << max(items - 1, 0).bit_length()
    size = power * 3 // 4 if power >= 4 and items <= power * 3 // 4 else power
    return min(size, -(-items // 100) * 100)

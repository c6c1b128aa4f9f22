"""The interior-point method on a GPU, recorded once and replayed.

A step is some hundreds of small kernels, whose launching takes far longer than their running. For programs of one
structure and a batch of one size the start and one step are recorded as CUDA graphs over buffers of their own; a solve
then copies its numbers in, replays the start once and the step until all items have finished. Finished items stay in
the batch, frozen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drolayers.conic import ipm
from drolayers.conic.interior.system import Data, SystemPlan
from drolayers.conic.ipm import CHECK_EVERY, FIRST_CHECK, ROUGH_STEPS, Iterate, Outcome, Progress

KEPT = 32
"""Recordings that are kept; each holds the workspace of its batch."""


@dataclass(frozen=True, eq=False)
class Recording:
    """Graphs for one structure, size of batch, tolerance and level, with their buffers."""

    data: Data
    current: Iterate
    progress: Progress
    steps: Tensor
    begin: Any
    rough: Any
    step: Any
    lock: threading.Lock

    @classmethod
    def of(cls, example: Data, tolerance: float, level: float) -> Recording:
        """Record; the numbers of the example do not matter, their shapes do."""
        data = example.buffered()
        current = ipm.start(data)
        progress = Progress.fresh(current)
        steps = torch.zeros_like(progress.idle)

        def begin() -> None:
            data.refix()
            current.copy(ipm.start(data))
            progress.restart(current)
            steps.zero_()

        def step(refine: int) -> None:
            progress.update(data, current, tolerance, level)
            current.copy(ipm.advanced(data, current, progress, refine))
            steps.add_(progress.running)

        graphs = (_recorded(begin), _recorded(lambda: step(0)), _recorded(lambda: step(1)))
        return cls(data, current, progress, steps, *graphs, threading.Lock())

    def solve(self, data: Data, tolerance: float, max_iter: int, level: float) -> Outcome:
        """Copy in, replay, copy out."""
        with self.lock:
            self.data.copy(data)
            self.begin.replay()
            for k in range(max_iter):
                if k >= FIRST_CHECK and k % CHECK_EVERY == 0 and not bool(self.progress.running.any()):
                    break
                (self.rough if k < ROUGH_STEPS else self.step).replay()
            self.progress.update(self.data, self.current, tolerance, level)
            every = torch.arange(self.steps.numel(), device=self.steps.device)
            found = self.progress.pick(every)
            return Outcome(found.best, found.anchor, found.verdict, self.steps.clone())


@dataclass(frozen=True, eq=False)
class PullRecording:
    """The derivative on the central path, recorded: from an anchor and dx to x, z, g and h."""

    data: Data
    anchor: Iterate
    incoming: Tensor
    found: tuple[Tensor, ...]
    graph: Any
    lock: threading.Lock

    @classmethod
    def of(cls, example: Data, level: float, anchor: Iterate, dx: Tensor) -> PullRecording:
        """Record."""
        data = example.buffered()
        every = torch.arange(anchor.tau.numel(), device=anchor.tau.device)
        held, incoming = anchor.pick(every), dx.clone()
        found = tuple(torch.empty_like(t) for t in (data.q, data.b, data.q, data.b))

        def pull() -> None:
            data.refix()
            for target, value in zip(found, ipm.pull(data, level, held, incoming), strict=True):
                target.copy_(value)

        return cls(data, held, incoming, found, _recorded(pull), threading.Lock())

    def pull(self, data: Data, anchor: Iterate, dx: Tensor) -> tuple[Tensor, ...]:
        """Copy in, replay, copy out."""
        with self.lock:
            self.data.copy(data)
            self.anchor.copy(anchor)
            self.incoming.copy_(dx)
            self.graph.replay()
            return tuple(t.clone() for t in self.found)


class Recordings:
    """Recordings by what they are for; the least recently used are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Any, tuple[SystemPlan, Any]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recordings, ()

    def solve(self, data: Data, tolerance: float, max_iter: int, level: float) -> Outcome:
        """As ``ipm.solve``."""
        recording = self._get(data, (tolerance, level), lambda: Recording.of(data, tolerance, level))
        return recording.solve(data, tolerance, max_iter, level)

    def pull(self, data: Data, level: float, anchor: Iterate, dx: Tensor) -> tuple[Tensor, ...]:
        """As ``ipm.pull``."""
        recording = self._get(data, ("pull", level), lambda: PullRecording.of(data, level, anchor, dx))
        return recording.pull(data, anchor, dx)

    def _get(self, data: Data, purpose: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The recording for a purpose, made when first asked for."""
        shapes = tuple(tuple(t.shape) for t in (data.A, data.P, data.q, data.b, data.D, data.E))
        key = (id(data.plan), shapes, purpose)
        with self._lock:
            if key not in self._known:
                # The plan is kept with its recording, so that its identity is not given to another.
                self._known[key] = (data.plan, make())
            self._known.move_to_end(key)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            return self._known[key][1]


def _recorded(work: Any) -> Any:
    """A graph of what a function does."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Twice by hand: lazily made constants and workspaces must not be recorded.
        work()
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    return graph

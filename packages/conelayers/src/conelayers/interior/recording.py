"""The interior-point method on a GPU, recorded once and replayed.

A step is some hundreds of small kernels, whose launching takes far longer than their running. For programs of one
structure and a batch of one size the start, a look and a step are recorded as CUDA graphs over buffers of their own; a
solve then copies its numbers in and replays them. Finished items stay in the batch, frozen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from conelayers.interior import method
from conelayers.interior.method import Goal, Iterate, Progress, Residuals
from conelayers.interior.torch_algebra import TorchAlgebra
from conelayers.program.replay import recorded

Work = Callable[..., tuple[Tensor, ...]]
"""From an algebra and tensors to tensors."""

KEPT = 64
"""Recordings that are kept; each holds the workspace of its batch."""


@final
class RecordedSteps:
    """Graphs for one structure, size of batch and goal, with their buffers; keeps the contract of ``method.Steps``."""

    def __init__(self, example: TorchAlgebra, goal: Goal) -> None:
        self.on, self.goal, self.lock = example.buffered(), goal, threading.Lock()
        self.state = method.begin(self.on, goal)
        self._residuals = Residuals(*(t.clone() for t in method.look(self.on, self.state, goal)))
        self._begin = recorded(self._fresh)
        self._look = recorded(self._judge)
        self._steps = [recorded(partial(self._advance, refine)) for refine in (0, 1)]

    def begin(self) -> Progress:
        """Replay the start."""
        self._begin.replay()
        return self.state

    def look(self) -> None:
        """Replay a look."""
        self._look.replay()

    def step(self, refine: int) -> None:
        """Replay a step."""
        self._steps[refine].replay()

    def _fresh(self) -> None:
        self.on.refix()
        _put(self.state, method.begin(self.on, self.goal))

    def _judge(self) -> None:
        for old, new in zip(self._residuals, method.look(self.on, self.state, self.goal), strict=True):
            old.copy_(new)

    def _advance(self, refine: int) -> None:
        method.step(self.on, self.state, self._residuals, refine)


@final
class RecordedWork:
    """Any work on a batch, recorded: from tensors to tensors."""

    def __init__(
        self, example: TorchAlgebra, work: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, ...]
    ) -> None:
        # The work is kept: a graph refers to the memory of tensors that it closes over, not to the tensors.
        self.on, self._work, self.lock = example.buffered(), work, threading.Lock()
        self._given = tuple(t.clone() for t in given)
        self._found = tuple(t.clone() for t in work(self.on, *self._given))

        def again() -> None:
            self.on.refix()
            for target, value in zip(self._found, work(self.on, *self._given), strict=True):
                target.copy_(value)

        self._graph = recorded(again)

    def __call__(self, on: TorchAlgebra, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Copy in, replay, copy out."""
        with self.lock:
            self.on.take(on)
            for target, value in zip(self._given, given, strict=True):
                target.copy_(value)
            self._graph.replay()
            return tuple(t.clone() for t in self._found)


class Recordings:
    """Recordings by what they are for; the least recently used are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()

    def solve(self, on: TorchAlgebra, goal: Goal) -> Progress:
        """As ``method.solve``."""
        recording: RecordedSteps = self._get(
            on, (goal.tolerance, goal.level, goal.stop), lambda: RecordedSteps(on, goal)
        )
        with recording.lock:
            recording.on.take(on)
            state = method.solve(recording, goal.max_iter)
            # The buffers are the recording's: the caller gets a copy.
            passed = None if state.passed is None else state.passed.copy()
            told = (state.score, state.idle, state.verdict, state.steps)
            return Progress(state.current, state.best.copy(), passed, *(t.clone() for t in told))

    def work(self, on: TorchAlgebra, name: Any, work: Work, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What a function makes of a batch; it is known by its name."""
        recording: RecordedWork = self._get(on, name, lambda: RecordedWork(on, work, given))
        return recording(on, given)

    def _get(self, on: TorchAlgebra, purpose: Any, make: Callable[[], Any]) -> Any:
        """The recording for a purpose, made when first asked for."""
        key = (id(on.plan), tuple(tuple(t.shape) for t in on.numbers), purpose)
        with self._lock:
            if key not in self._known:
                # The plan is kept with its recording, so that its identity is not given to another.
                with torch.inference_mode(False), torch.no_grad():
                    self._known[key] = (on.plan, make())
            self._known.move_to_end(key)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            return self._known[key][1]


def _put(state: Progress, fresh: Progress) -> None:
    """Take over another state, in place."""
    for f in fields(state):
        old, new = getattr(state, f.name), getattr(fresh, f.name)
        pairs = zip(old.parts, new.parts, strict=True) if isinstance(old, Iterate) else [(old, new)]
        for target, value in pairs:
            if target is not None:
                target.copy_(value)

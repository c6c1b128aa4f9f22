"""A batch of programs with the algebra that suits its device: where the method's functions are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from conelayers.errors import ModelError
from conelayers.interior import method
from conelayers.interior.elimination import Structure
from conelayers.interior.face import ConeRows, cone_rows
from conelayers.interior.method import Goal, Iterate
from conelayers.interior.numba_algebra import NumbaAlgebra
from conelayers.interior.recording import Recordings
from conelayers.interior.torch_algebra import SystemPlan, TorchAlgebra
from conelayers.program.program import ConeProgram, Values, once
from conelayers.program.replay import rounded

AlgebraName = Literal["numba", "torch"]

Work = Callable[..., tuple[Any, ...]]
"""From an algebra and arrays, batch last, to arrays, batch last."""

LANES = 32
"""Programs that are stepped through together at least, and at most four times as many: measured, fewer leave too much
of the time to the interpreter, and more wait for the slowest."""

ALONE = 1 << 19
"""Numbers that the lanes of a thread must have for a batch to be shared by several: with less, threads spend their time
waiting for the interpreter."""

CACHE = 1 << 21
"""Bytes that more than the least number of lanes may take, so that they stay in the cache."""

OUT_OF_MEMORY = ("SUPERLU_MALLOC", "not enough memory", "can't allocate memory")
"""Parts of messages of SuperLU, torch and numpy."""

SHARED = 512
"""Items of the recording that serves later rounds of some work, or those of the first round where these are fewer."""


class Solved(NamedTuple):
    """The best iterates of a batch, those that were remembered, verdicts, numbers of steps, and distances."""

    best: Iterate
    passed: Iterate | None
    verdict: Tensor
    steps: Tensor
    score: Tensor


_RECORDINGS = Recordings()


def system_plan(program: ConeProgram, device: torch.device) -> SystemPlan:
    """The block-arrow plan of a program on a device, made once."""
    with enough_memory(program):
        return once(program, ("arrow", device), lambda: SystemPlan.of(program, device))


@contextmanager
def enough_memory(program: ConeProgram) -> Iterator[None]:
    """Raise a ``ModelError`` with the size of a program whose systems do not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # SuperLU, and torch on a CPU, raise plain RuntimeErrors.
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in OUT_OF_MEMORY):
            raise
        raise ModelError(
            f"There is not enough memory to factor the systems of a program with {program.rows:,} rows, "
            f"{program.columns:,} columns and {program.nonzeros:,} non-zeros: use fewer atoms or pieces, "
            "a smaller batch, or a machine with more memory."
        ) from error


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Programs of one structure, balanced (``conic/units.py``); points are given and returned batch last.

    So are the numbers, ``(entries, batch)``; an A that all items share has batch one.
    """

    program: ConeProgram
    algebra: AlgebraName
    A: Tensor
    P: Tensor
    q: Tensor
    b: Tensor

    @classmethod
    def of(cls, program: ConeProgram, values: Values, algebra: AlgebraName | None = None) -> Batch:
        """From the numbers of a batch; compiled code runs on the CPU alone."""
        usual: AlgebraName = "numba" if values.q.device.type == "cpu" else "torch"
        shared = values.A.stride(0) == 0 and len(values.q) > 1
        numbers = (values.A[:1] if shared else values.A, values.P, values.q, values.b)
        return cls(program, algebra or usual, *(t.detach().T.contiguous() for t in numbers))

    def __len__(self) -> int:
        return self.q.shape[1]

    def __getitem__(self, items: Tensor) -> Batch:
        """Some items."""
        chosen = (t if t.shape[1] == 1 < len(self) else t[:, items] for t in self.numbers)
        return Batch(self.program, self.algebra, *chosen)

    @property
    def numbers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order in which algebras take them."""
        return self.A, self.P, self.q, self.b

    def filled(self, items: Tensor, least: int = 0) -> Tensor:
        """The same items, some of them twice: on a GPU sizes are rounded up, so that few are recorded.

        What is recorded may be asked to hold so many at least.
        """
        if self.algebra == "numba" or not len(items):
            return items
        size = rounded(max(len(items), least if self.recorded else 0), len(self.A))
        return items[torch.arange(size, device=items.device) % len(items)]

    @property
    def recorded(self) -> bool:
        """Whether work is recorded and replayed; a dense coupling is worth pivoting, for which the host waits."""
        return self.q.device.type == "cuda" and bool(self._plan.arrow.pivot_free)

    @property
    def _plan(self) -> SystemPlan:
        """The block-arrow plan."""
        return system_plan(self.program, self.q.device)

    @property
    def cone_rows(self) -> ConeRows:
        """Where the rows of cones stand, as the algebra takes them."""
        cones, device = self.program.cones, None if self.algebra == "numba" else self.q.device
        return once(self.program, ("cone rows", device), lambda: cone_rows(cones, device))

    def solve(self, goal: Goal) -> Solved:
        """The best iterates, and what became of each item."""
        if self.recorded:
            state = _RECORDINGS.solve(TorchAlgebra(self._plan, *self.numbers), goal)
            return Solved(state.best, state.passed, state.verdict, state.steps, state.score)
        x, z, s, *found = self.each(partial(method.directly, goal=goal))
        tau, kappa, verdict, steps, score = (t[0] for t in found[:5])
        passed = Iterate(*found[5:8], *(t[0] for t in found[8:])) if len(found) > 5 else None  # type: ignore[call-arg]
        return Solved(Iterate(x, z, s, tau, kappa), passed, verdict, steps, score)

    def each(self, work: Work, *given: Tensor, name: Any = None) -> tuple[Tensor, ...]:
        """Do some work on all items; on a GPU it is recorded under its name, if it has one."""
        if self.algebra == "torch":
            on = TorchAlgebra(self._plan, *self.numbers)
            if name is not None and self.recorded:
                return _RECORDINGS.work(on, name, work, given)
            return work(on, *given)
        return self._in_lanes(work, given)

    def _in_lanes(self, work: Work, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A few items at a time, on as many threads as torch has."""
        with enough_memory(self.program):
            structure = once(self.program, "elimination", lambda: Structure.of(self.program))
        items, arrays = len(self), [t.numpy() for t in (*self.numbers, *given)]
        crowd = structure.numbers * min(lane_count(structure.numbers, items, 1), items)
        threads = torch.get_num_threads() if crowd > ALONE else 1
        lanes = lane_count(structure.numbers, items, threads)
        parts = [slice(start, min(start + lanes, items)) for start in range(0, items, lanes)]
        threads = min(threads, len(parts))

        def some(chosen: slice) -> tuple[Any, ...]:
            width = chosen.stop - chosen.start
            cut = [
                np.ascontiguousarray(t[:, chosen] if t.shape[1] == items else np.broadcast_to(t, (len(t), width)))
                for t in arrays
            ]
            # What is no number is looked for where it matters.
            with np.errstate(all="ignore"):
                return work(NumbaAlgebra(structure, *cut[:4]), *cut[4:])

        with enough_memory(self.program):
            if threads == 1:
                found = [some(part) for part in parts]
            else:
                with ThreadPoolExecutor(threads) as pool:
                    found = list(pool.map(some, parts))
        return tuple(torch.from_numpy(np.concatenate(parts, -1)) for parts in zip(*found, strict=True))


def lane_count(numbers: int, items: int, threads: int) -> int:
    """How many programs are stepped through together, given how many numbers each takes."""
    share = -(-items // threads)
    return max(1, min(max(LANES, CACHE // (8 * max(numbers, 1))), 4 * LANES, share))

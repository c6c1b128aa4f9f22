"""Properties of every program: batches, copies, and items without an answer.

``SETTLED`` names the invariants that every run checks; ``--invariants all`` also sends each problem to another process,
which takes seconds.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import drolayers as dro
from conelayers import Derivative
from conelayers.errors import SolveError
from research.attack.draw import Program
from research.attack.library import Inputs, decisions, gradient

Array = Any
SAME_VALUE_REL = 1e-6
"""By how much values of the same item may differ, relative to one plus their size."""

SAME_DECISION_REL = 1e-9
"""By how much the decision of an item whose derivative is FACE may depend on its batch."""

COPY_EVERY = 4
"""Every so many programs are pickled and copied."""

SPAWN_EVERY = 100
"""Every so many programs are sent to another process."""

RULE_REL = 1e-5
"""By how much adaptive decisions may violate their constraints, relative to one plus the size of y."""

SPAWN_SECONDS = 120
"""Time that such a process may take."""


@dataclass(frozen=True)
class Answered:
    """A program and the layer's answer.

    Attributes:
        program: the program.
        names: what its source text defines.
        layer: of its problem.
        inputs: of the whole batch, with gradients.
        decision: the answer.
    """

    program: Program
    names: dict[str, Any]
    layer: dro.DROLayer
    inputs: Inputs
    decision: dro.Decision

    @property
    def values(self) -> Array:
        """Values at size one, ``(batch,)``."""
        return self.decision.value.detach().numpy() / self.program.choices.cost_unit


Broken = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class Invariant:
    """A property; ``check`` yields the items that break it, with a sentence.

    Attributes:
        check: of an answer and the program's number.
        expected: whether every run checks it; a process for each program takes seconds.
    """

    check: Callable[[Answered, int], Broken]
    expected: bool = True


def _differ(a: Array, b: Array) -> Array:
    """Where values differ; NaN equals NaN."""
    return ~(np.isclose(a, b, rtol=SAME_VALUE_REL, atol=SAME_VALUE_REL, equal_nan=True))


def unsolved_are_nan(answered: Answered, number: int) -> Broken:
    """Values and decisions of unsolved items are NaN, those of others are finite."""
    x, ok = decisions(answered.program, answered.names, answered.decision), answered.decision.ok.numpy()
    for k in range(len(ok)):
        numbers = np.append(x[k], answered.values[k])
        if not (np.isfinite(numbers).all() if ok[k] else np.isnan(numbers).all()):
            yield k, f"{answered.decision.statuses[k]}: value and decision {numbers.tolist()}"


def unsolved_have_no_gradient(answered: Answered, number: int) -> Broken:
    """The gradient of unsolved items is zero."""
    ok = answered.decision.ok
    if bool(ok.all()):
        return
    total = answered.decision.value.nan_to_num().sum()
    total = total + sum(v.nan_to_num().sum() for v in answered.decision.best.values())
    for grad in gradient(total, answered.inputs.leaves):
        for k in range(len(ok)):
            if not ok[k] and not bool((grad[k] == 0).all()):
                yield k, f"{answered.decision.statuses[k]}: gradient {grad[k].reshape(-1).tolist()[:6]}"
                return


def unsolved_cost_nan(answered: Answered, number: int) -> Broken:
    """The expected loss of unsolved items is NaN, so that they never look like a perfect loss."""
    first = answered.program.cost.names[0][0]
    losses = answered.decision.expected(lambda x: x[answered.names[first]].flatten(2).sum(2) + 1.0)
    for k, solved in enumerate(answered.decision.ok.tolist()):
        if not solved and not bool(losses[k].isnan()):
            yield k, f"expected is {float(losses[k])}"


def mean_of_nothing_raises(answered: Answered, number: int) -> Broken:
    """``mean`` raises if no item was solved."""
    if bool(answered.decision.ok.any()):
        return
    try:
        answered.decision.mean(lambda x: x[answered.names[answered.program.cost.names[0][0]]].flatten(2).sum(2))
    except SolveError:
        return
    yield -1, "mean returned a number although no item was solved"


def empty_batch(answered: Answered, number: int) -> Broken:
    """A batch without items has an answer without items."""
    inputs = Inputs.of(answered.program, []).differentiable()
    decision = answered.layer(*inputs.arguments)
    shapes = {v.name(): tuple(value.shape) for v, value in decision.best.items() if value.shape[0]}
    if len(decision.value) or len(decision.status) or shapes:
        yield -1, f"shapes {tuple(decision.value.shape)}, {shapes}"
    for grad in gradient(decision.value.sum(), inputs.leaves):
        if len(grad):
            yield -1, "a gradient has items"


def _alone(answered: Answered) -> tuple[int, Array, Array, Array]:
    """The last item of the batch by itself: position, value, decision and status."""
    k = len(answered.program.items) - 1
    decision = answered.layer(*Inputs.of(answered.program, [answered.program.items[k]]).arguments)
    x = decisions(answered.program, answered.names, decision)
    return k, decision.value.detach().numpy() / answered.program.choices.cost_unit, x[0], decision.statuses[0]


def value_alone(answered: Answered, number: int) -> Broken:
    """The value and status of an item do not depend on its batch."""
    if len(answered.program.items) < 2:
        return
    k, value, _, status = _alone(answered)
    if _differ(value[0], answered.values[k]) and status.ok == answered.decision.statuses[k].ok:
        yield k, f"value {value[0]} alone, {answered.values[k]} in the batch"
    elif status.ok != answered.decision.statuses[k].ok:
        yield k, f"{status} alone, {answered.decision.statuses[k]} in the batch"


def decision_alone(answered: Answered, number: int) -> Broken:
    """The decision of an item whose derivative is FACE does not depend on its batch."""
    if len(answered.program.items) < 2 or answered.program.cost.integers:
        return
    k = len(answered.program.items) - 1
    if Derivative(int(answered.decision.derivative[k, 0])) is not Derivative.FACE:
        return
    k, _, x, _ = _alone(answered)
    batched = decisions(answered.program, answered.names, answered.decision)[k]
    error = np.abs(x - batched).max()
    if not error <= SAME_DECISION_REL * (1 + np.abs(x).max()):
        yield k, f"decisions differ by {error:.1e}"


def _same(answered: Answered, layer: dro.DROLayer, how: str) -> Broken:
    """Whether a copy of the layer answers the same."""
    with torch.no_grad():
        decision = layer(*Inputs.of(answered.program, answered.program.items).arguments)
    if decision.status.tolist() != answered.decision.status.tolist():
        yield -1, f"{how}: statuses {decision.counted}, not {answered.decision.counted}"
        return
    values = decision.value.numpy() / answered.program.choices.cost_unit
    for k in np.flatnonzero(_differ(values, answered.values)):
        yield int(k), f"{how}: value {values[k]}, not {answered.values[k]}"


def copies(answered: Answered, number: int) -> Broken:
    """Pickled and copied layers answer the same."""
    if number % COPY_EVERY:
        return
    fresh = dro.DROLayer(answered.names["problem"])
    yield from _same(answered, pickle.loads(pickle.dumps(fresh)), "pickled")
    yield from _same(answered, copy.deepcopy(fresh), "copied")
    yield from _same(answered, answered.layer if not answered.program.cost.integers else fresh, "asked again")


def rules_obey(answered: Answered, number: int) -> Broken:
    """Adaptive decisions cover the shortage at outcomes that the sets allow, and are never negative."""
    program = answered.program
    if program.cost.upper is None:
        return
    unit, n = program.choices.unit, program.choices.dim
    late = answered.decision.rule[answered.names["late"]]
    for k, item in enumerate(program.items):
        if not answered.decision.ok[k]:
            continue
        quantity = program.cost.quantity(item, decisions(program, answered.names, answered.decision)[k])
        for y in program.outcomes(item):
            rows = torch.tensor(np.tile(unit * y, (len(program.items), 1)))
            values = late(rows)[k].detach().numpy().reshape(n) / unit
            lacking = np.maximum(y - quantity, 0.0) - values
            if lacking.max() > RULE_REL * (1 + np.abs(y).max()):
                yield k, f"at {y.tolist()} the rule is {values.tolist()}, too little by {lacking.max():.1e}"
                return


def _solve_elsewhere(layer: dro.DROLayer, inputs: Inputs, queue: Any) -> None:
    """Runs in another process."""
    with torch.no_grad():
        decision = layer(*inputs.arguments)
    queue.put((decision.status.tolist(), decision.value.tolist()))


def elsewhere(answered: Answered, number: int) -> Broken:
    """Another process answers the same, and so does this one afterwards."""
    if number % SPAWN_EVERY:
        return
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    inputs = Inputs.of(answered.program, answered.program.items)
    process = context.Process(target=_solve_elsewhere, args=(answered.layer, inputs, queue))
    process.start()
    process.join(SPAWN_SECONDS)
    if process.exitcode != 0:
        process.kill()
        yield -1, f"the process ended with {process.exitcode}"
        return
    statuses, values = queue.get()
    if statuses != answered.decision.status.tolist():
        yield -1, f"statuses {statuses} elsewhere"
    values = np.array(values) / answered.program.choices.cost_unit
    for k in np.flatnonzero(_differ(values, answered.values)):
        yield int(k), f"value {values[k]} elsewhere, {answered.values[k]} here"
    # Memory that was freed is used by others.
    junk = [torch.zeros(answered.layer.problem.program.nonzeros, dtype=torch.int64) for _ in range(3)]
    if not answered.program.cost.integers:
        yield from _same(answered, answered.layer, f"after it was sent, beside {len(junk)} tensors")


INVARIANTS: dict[str, Invariant] = {
    "unsolved items are NaN": Invariant(unsolved_are_nan),
    "unsolved items have no gradient": Invariant(unsolved_have_no_gradient),
    "unsolved items have no expected loss": Invariant(unsolved_cost_nan),
    "the mean of nothing raises": Invariant(mean_of_nothing_raises),
    "empty batch": Invariant(empty_batch),
    "value alone": Invariant(value_alone),
    "decision alone": Invariant(decision_alone),
    "copies": Invariant(copies),
    "adaptive decisions obey": Invariant(rules_obey),
    "another process": Invariant(elsewhere, expected=False),
}
SETTLED = tuple(name for name, invariant in INVARIANTS.items() if invariant.expected)

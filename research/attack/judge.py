"""The verdict on one program: values, decisions, statuses and gradients against the reference, item by item."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import drolayers as dro
from conelayers import Derivative
from conelayers.engine.solvers.interior import Interior
from drolayers import Status
from drolayers.layer import SMALL
from research.attack import certificates
from research.attack.draw import Program, generator
from research.attack.drawn import Item
from research.attack.invariants import INVARIANTS, Answered
from research.attack.library import Inputs, along, compiled, decisions, gradient
from research.attack.reference import Answer, Reference

Array = Any
PROMISES = {Status.OPTIMAL: 1e-6, Status.INACCURATE: 1e-4}
"""Relative error of a value, a decision's cost or a constraint from which an answer is wrong, by its status."""

CANDIDATE_REL = 1e-4
"""Error of the cost of an integer point from which it is wrong: points may be INACCURATE without a word."""

GRADIENT_REL = 1e-2
"""Error from which a derivative is wrong, relative to the larger one of the difference and ``FLAT``."""

STABLE_REL = 3e-3
"""Disagreement of differences, relative likewise, from which they say nothing."""

FLAT = 0.05
"""Size of a directional derivative, at size one, below which errors are absolute."""

STEPS = (1e-3, 2.5e-4)
"""Of the differences."""

SIZES = ("sigma", "radius", "weights", "gamma1")
"""Parameters that are sizes, not locations."""

TIGHT = 1e-11
"""Tolerance of the solves whose differences are taken."""

EVERY_VALUE = 3
"""Every so many programs the derivative of the value is compared with differences of the reference as well."""


EVERY_CERTIFICATE = 3
"""Every so many programs worst cases of other decisions, and worst distributions, are compared."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or that was not expected.

    Attributes:
        kind: "wrong value", "wrong status", "wrong decision", "wrong gradient", "wrong value gradient",
            "wrong worst case", "masked worst case", "wrong distribution", "wrong candidate", "raw" or the name of an
            invariant.
        item: position in the batch; -1 for the whole program.
        note: numbers.
    """

    kind: str
    item: int
    note: str

    @property
    def wrong(self) -> bool:
        """Whether an answer is wrong."""
        return self.kind.startswith("wrong")


@dataclass
class Verdict:
    """The outcome of a program.

    Attributes:
        counts: items by outcome: "right", "wrong", "masked: FAILED", "unjudged: …", "derivative: …".
        findings: wrong answers, raw errors and broken invariants.
        refused: the library's own sentence, if it refused the program.
    """

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    refused: str = ""

    def add(self, kind: str, item: int, note: str) -> None:
        """Keep a finding."""
        self.findings.append(Finding(kind, item, note))


def examine(program: Program, seed: int, number: int, invariants: Sequence[str] = ()) -> Verdict:
    """Solve a program with the library and judge the answers."""
    verdict = Verdict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            names = compiled(program)
            answered = answer(program, names, number)
        except dro.LayerError as error:
            verdict.refused = str(error)
            return verdict
        except Exception as error:
            verdict.add("raw", -1, _words(error))
            return verdict
        answers = [_judge_item(verdict, Reference(program, item), answered, k) for k, item in enumerate(program.items)]
        questions: list[Callable[[], None]] = [
            lambda: _judge_gradients(verdict, answered, answers, seed, number),
            lambda: _judge_invariants(verdict, answered, invariants, number),
            lambda: _judge_candidates(verdict, answered, answers),
        ]
        if number % EVERY_CERTIFICATE == 0:
            questions.append(lambda: _judge_certificates(verdict, answered, seed, number))
        for ask in questions:
            try:
                ask()
            except dro.LayerError as error:
                verdict.add("wrong status", -1, f"refused after it had solved: {error}")
            except Exception as error:
                verdict.add("raw", -1, _words(error))
    return verdict


def answer(program: Program, names: dict[str, Any], number: int) -> Answered:
    """The layer's answer for the whole batch; every second program leaves integer points to the oracle."""
    layer = dro.DROLayer(names["problem"], enumerate_up_to=SMALL if number % 2 else 0)
    inputs = Inputs.of(program, program.items).differentiable()
    decision = layer(*inputs.arguments)
    return Answered(program, names, layer, inputs, decision)


def _words(error: Exception) -> str:
    """The exception and where it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "drolayers" in f.filename]
    place = f" at {frames[-1].filename.split('drolayers/')[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{place}"[:300]


# --- Values, decisions and statuses -----------------------------------------------------------------------------------


def _judge_item(verdict: Verdict, reference: Reference, answered: Answered, k: int) -> Answer:
    """One item; the reference's answer."""
    program, status = reference.program, answered.decision.statuses[k]
    best = reference.optimum()
    if not status.ok:
        outcome, note = _of_unsolved(reference, best, status)
    else:
        value = float(answered.decision.value[k]) / program.choices.cost_unit
        x = decisions(program, answered.names, answered.decision)[k]
        outcome, note = _of_solved(reference, best, PROMISES[status], value, x)
        note = f"{status}: {note}"
    if outcome.startswith("wrong"):
        verdict.add(outcome, k, note)
        outcome = "wrong"
    verdict.counts[outcome] += 1
    return best


def _of_solved(reference: Reference, best: Answer, promise: float, value: float, x: Array) -> tuple[str, str]:
    """An item with an answer."""
    cost, program = reference.cost, reference.program
    if not (np.isfinite(value) and np.isfinite(x).all()):
        return "wrong value", f"value {value} and decision {x} of a solved item"
    if best.status == "inaccurate":
        return "unjudged: inaccurate reference", ""
    if program.choices.empty and "infeasible" in reference.empty():
        return "wrong status", f"value {value:.9g}, but the set holds no distribution"
    if not best.accurate:
        truth = _truth(reference, best)
        return ("wrong status", f"value {value:.9g}, but {truth}") if truth else ("unjudged: no certificate", "")
    size = promise * (1.0 + abs(value))
    if value < best.value - size:
        return "wrong value", f"{value:.9g} is below the bound {best.value:.9g}"
    violation, where = reference.violation(x)
    if violation > promise * (1.0 + np.abs(x).max()):
        return "wrong decision", f"it violates {where} by {violation:.2e}"
    fragile = any(worst.kind == "fragility" for worst in cost.worst)
    if not fragile:
        answer = reference.value(x)
        if answer.status == "inaccurate":
            return "unjudged: inaccurate reference", ""
        if not answer.accurate or answer.value > value + size:
            return "wrong decision", f"its worst case is {answer.value:.9g}, not {value:.9g}"
        if cost.upper is None and answer.value < value - size:
            return "wrong value", f"{value:.9g}, but the decision's worst case is {answer.value:.9g}"
    if cost.upper is not None:
        rule = reference.rule()
        if rule.accurate and value > rule.value + size:
            return "wrong value", f"{value:.9g}, but an affine rule costs {rule.value:.9g}"
        return "right", ""
    if value > best.value + size:
        return _better(reference, best, value, size, fragile)
    return "right", ""


def _better(reference: Reference, best: Answer, value: float, size: float, fragile: bool) -> tuple[str, str]:
    """Whether a decision of the reference shows that a better one exists."""
    x = best.x[: reference.cost.size]
    other = best if fragile else reference.value(x)
    violation, _ = reference.violation(x)
    if violation <= 1e-6 and other.accurate and other.value < value - size:
        return "wrong decision", f"value {value:.9g}, but {np.round(x, 6).tolist()} costs {other.value:.9g}"
    return "unjudged: gap of the reference", ""


def _truth(reference: Reference, best: Answer) -> str:
    """The status that certificates prove; empty if they prove nothing."""
    sets = reference.empty()
    if "infeasible" in sets:
        return "EMPTY_SET"
    if any(status != "optimal" for status in sets):
        return ""
    exist = reference.optimum(free=True)
    if exist.status == "infinite":
        return "INFEASIBLE"
    if not exist.accurate:
        return ""
    if best.status == "infinite" and any(worst.kind == "fragility" for worst in reference.cost.worst):
        # No price of a distance meets the target.
        return "INFEASIBLE"
    return {"infinite": "INFINITE_WORST_CASE", "infeasible": "UNBOUNDED"}.get(best.status, "")


def _of_unsolved(reference: Reference, best: Answer, status: Status) -> tuple[str, str]:
    """An item without an answer: masked if there is one, right if its status is."""
    if best.accurate and reference.program.choices.empty and "infeasible" in reference.empty():
        # The program over masses does not see an empty set of a constraint.
        best = Answer("infeasible")
    if best.accurate and reference.cost.upper is not None:
        # The exact cost says nothing of rules.
        rule = reference.rule()
        if not rule.accurate:
            return "unjudged: adaptive", ""
    if best.accurate:
        x = best.x[: reference.cost.size]
        answer = reference.value(x) if all(w.kind != "fragility" for w in reference.cost.worst) else best
        witnessed = answer.accurate and abs(answer.value - best.value) <= 1e-6 * (1 + abs(best.value))
        if not witnessed or reference.violation(x)[0] > 1e-6:
            return "unjudged: no witness", ""
        if status is Status.FAILED:
            return "masked: FAILED", ""
        return "wrong status", f"{status}, but {np.round(x, 6).tolist()} costs {best.value:.9g}"
    truth = _truth(reference, best)
    if not truth:
        return "unjudged: no certificate", ""
    if status is Status.FAILED:
        return f"masked: FAILED for {truth}", ""
    if reference.cost.upper is not None and truth == "INFINITE_WORST_CASE" and status is Status.INFEASIBLE:
        # No rule may exist either, about which the exact cost says nothing.
        return "unjudged: adaptive", ""
    return ("right", "") if str(status) == truth else ("wrong status", f"{status}, but the reference proves {truth}")


def _judge_candidates(verdict: Verdict, answered: Answered, best: list[Answer]) -> None:
    """The integer points of the surrogate: their costs are right, and the best ones are among them."""
    program, decision = answered.program, answered.decision
    for k, answer in enumerate(best):
        if not decision.ok[k] or not answer.by_point or program.cost.upper is not None:
            continue
        valid = decision.probabilities[k] > 0
        costs = decision.objective[k][valid].detach().numpy() / program.choices.cost_unit
        # Integer variables are the last ones.
        name, _ = program.cost.names[-1]
        points = decision.candidates[answered.names[name]][k][valid].detach().numpy().reshape(len(costs), -1)
        for point, cost in zip(points, costs, strict=True):
            truth = answer.by_point.get(tuple((np.round(point) + 0.0).tolist()))
            if truth is None or not abs(cost - truth.value) <= CANDIDATE_REL * (1 + abs(cost)):
                truly = "infeasible" if truth is None else f"worth {truth.value:.9g}"
                verdict.add("wrong candidate", k, f"{point.tolist()} costs {cost:.9g}, but is {truly}")
        count = len(answer.by_point) if answered.layer.enumerate_up_to else min(3, len(answer.by_point))
        truths = sorted(truth.value for truth in answer.by_point.values())[:count]
        lowest = np.sort(costs)[:count]
        if len(lowest) < count or not np.allclose(lowest, truths, rtol=CANDIDATE_REL, atol=CANDIDATE_REL):
            verdict.add("wrong candidate", k, f"the best points cost {truths}, the candidates {lowest.tolist()}")


# --- Gradients --------------------------------------------------------------------------------------------------------


def directions(program: Program, rng: np.random.Generator) -> list[Item]:
    """A random direction of every item, of a size that fits its numbers."""
    ways = []
    for item in program.items:

        def step(value: Array, least: float = 0.3) -> Array:
            return 0.3 * rng.normal(size=np.shape(value)) * np.maximum(np.abs(value), least)

        # Sizes move in proportion, locations by a part of one.
        theta = {n: step(value, 0.0 if n.split(".")[-1] in SIZES else 0.3) for n, value in item.theta.items()}
        known = {name: step(value) for name, value in item.known.items()}
        if item.atoms is None:
            ways.append(Item(theta, None, None, known))
            continue
        slope = 0.3 * rng.normal(size=len(item.weights))
        # Weights keep their sum, and an atom of weight zero keeps it.
        weights = item.weights * (slope - item.weights @ slope)
        ways.append(Item(theta, step(item.atoms), weights, known))
    return ways


def _judge_gradients(verdict: Verdict, answered: Answered, best: list[Answer], seed: int, number: int) -> None:
    """Directional derivatives of values and of a combination of decisions against differences."""
    program, decision = answered.program, answered.decision
    rng = generator(seed, number, 2)
    ways, leaves = directions(program, rng), answered.inputs.leaves
    ok = decision.ok
    if not leaves or not bool(ok.any()):
        return
    weight = rng.normal(size=(len(program.items), program.cost.names[0][1]))
    variable = decision.best[answered.names[program.cost.names[0][0]]].reshape(len(ok), -1)
    combined = torch.where(ok, (variable * torch.tensor(weight)).sum(1), torch.zeros_like(decision.value))
    of_decision = along(program, ways, gradient(combined.sum(), leaves)) / program.cost.unit
    codes = [Derivative(int(code)) for code in decision.derivative[:, 0]]
    value = torch.where(ok, decision.value, torch.zeros_like(decision.value))
    of_value = along(program, ways, gradient(value.sum(), leaves)) / program.choices.cost_unit
    values, combinations = _differences(answered, ways, weight)
    judged_by_reference = False
    for k in range(len(program.items)):
        if not ok[k] or best[k].status != "optimal":
            continue
        truth = _stable(values[:, k])
        if sides := _kink(values[:, k]):
            between = sides[0] - GRADIENT_REL <= of_value[k] <= sides[1] + GRADIENT_REL
            verdict.counts[f"derivative: value, {'between' if between else 'beyond'} both sides of a kink"] += 1
            if not between:
                verdict.add("wrong value gradient", k, f"{of_value[k]:.6g} is not between {sides}")
        if truth is not None and number % EVERY_VALUE == 0 and not judged_by_reference and program.cost.upper is None:
            judged_by_reference = True
            truth = _of_reference(program, k, ways[k])
        verdict.counts[_compared(verdict, "wrong value gradient", k, of_value[k], truth, "value")] += 1
        if program.cost.integers:
            continue
        truth = _stable(combinations[:, k])
        if codes[k].ok and (sides := _kink(combinations[:, k])):
            between = sides[0] - GRADIENT_REL <= of_decision[k] <= sides[1] + GRADIENT_REL
            verdict.counts[f"derivative: {codes[k]}, {'between' if between else 'beyond'} both sides of a kink"] += 1
            if not between:
                verdict.add("wrong gradient", k, f"{codes[k]}: {of_decision[k]:.6g} is not between {sides}")
        elif codes[k].ok:
            verdict.counts[_compared(verdict, "wrong gradient", k, of_decision[k], truth, str(codes[k]))] += 1
        elif of_decision[k] != 0.0:
            verdict.add("wrong gradient", k, f"{codes[k]}, but the derivative is {of_decision[k]:.3g}, not zero")
        else:
            verdict.counts[f"derivative: {codes[k]}, {'unstable' if truth is None else 'stable differences'}"] += 1


def _compared(verdict: Verdict, kind: str, k: int, answer: float, truth: float | None, name: str) -> str:
    """The outcome for one derivative."""
    if truth is None:
        return f"derivative: {name}, unstable differences"
    if abs(answer - truth) <= GRADIENT_REL * max(abs(truth), FLAT):
        return f"derivative: {name}, right"
    verdict.add(kind, k, f"{name}: {answer:.6g}, but differences are {truth:.6g}")
    return f"derivative: {name}, wrong"


def _differences(answered: Answered, ways: list[Item], weight: Array) -> tuple[Array, Array]:
    """Values and combined decisions at steps (0, h, -h, h', -h'), ``(5, batch)``, NaN where not optimal."""
    program, steps = answered.program, (0.0, STEPS[0], -STEPS[0], STEPS[1], -STEPS[1])
    items = [item.moved(way, step) for step in steps for item, way in zip(program.items, ways, strict=True)]
    try:
        layer = dro.DROLayer(answered.names["problem"], engine=Interior(tolerance=TIGHT))
        with torch.no_grad():
            decision = layer(*Inputs.of(program, items).arguments)
    except dro.LayerError:
        with torch.no_grad():
            decision = answered.layer(*Inputs.of(program, items).arguments)
    exact = decision.status.numpy() == int(Status.OPTIMAL)
    values = np.where(exact, decision.value.numpy() / program.choices.cost_unit, np.nan)
    x = decisions(program, answered.names, decision)[:, : weight.shape[1]]
    combined = np.where(exact, (x * np.tile(weight, (len(steps), 1))).sum(1), np.nan)
    return values.reshape(len(steps), -1), combined.reshape(len(steps), -1)


def _stable(values: Array) -> float | None:
    """The central difference, or None where differences disagree: near a kink, or within rounding."""
    here, up, down, near_up, near_down = values
    wide, narrow = (up - down) / (2 * STEPS[0]), (near_up - near_down) / (2 * STEPS[1])
    sides = (near_up - here) / STEPS[1], (here - near_down) / STEPS[1]
    size = STABLE_REL * max(abs(narrow), FLAT)
    stable = abs(wide - narrow) <= size and abs(sides[0] - sides[1]) <= size
    return float(narrow) if stable else None


def _kink(values: Array) -> tuple[float, float] | None:
    """The smaller and the larger one-sided difference where both are stable and differ; else None."""
    here, up, down, near_up, near_down = values
    rights, lefts = (
        ((up - here) / STEPS[0], (near_up - here) / STEPS[1]),
        ((here - down) / STEPS[0], (here - near_down) / STEPS[1]),
    )
    size = max(abs(rights[1]), abs(lefts[1]), FLAT)
    settled = abs(rights[0] - rights[1]) <= STABLE_REL * size and abs(lefts[0] - lefts[1]) <= STABLE_REL * size
    if not settled or abs(rights[1] - lefts[1]) <= 3 * GRADIENT_REL * size:
        return None
    return min(rights[1], lefts[1]), max(rights[1], lefts[1])


def _of_reference(program: Program, k: int, way: Item) -> float | None:
    """The central difference of the reference's value."""
    ends = [Reference(program, program.items[k].moved(way, step)).optimum() for step in (STEPS[0], -STEPS[0])]
    if not all(end.accurate for end in ends):
        return None
    return (ends[0].value - ends[1].value) / (2 * STEPS[0])


def _judge_certificates(verdict: Verdict, answered: Answered, seed: int, number: int) -> None:
    """Worst cases of decisions, and their distributions."""
    for kind, item, note in certificates.check(answered, seed, number):
        verdict.add(kind, item, note)


def _judge_invariants(verdict: Verdict, answered: Answered, names: Sequence[str], number: int) -> None:
    """Check properties of every program."""
    for name in names:
        for item, note in INVARIANTS[name].check(answered, number):
            verdict.add(name, item, note)

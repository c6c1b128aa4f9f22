"""Smaller programs with the same finding: choices are simplified one at a time as long as the finding stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from research.attack.draw import Choices, Program, build, consistent
from research.attack.drawn import Item
from research.attack.judge import Finding, Verdict, examine

FLAGS = tuple(choice.name for choice in fields(Choices) if choice.type == "bool")
"""Choices that can be switched off."""

TRIES = 40
"""Programs that are tried."""


def simpler(choices: Choices) -> Iterator[Choices]:
    """Choices with one thing less, the most drastic first."""
    yield replace(choices, constraints=(), own="")
    for k in range(len(choices.constraints)):
        fewer = choices.constraints[:k] + choices.constraints[k + 1 :]
        yield replace(choices, constraints=fewer, own=choices.own if fewer else "")
    yield replace(choices, own="")
    yield replace(choices, dim=1)
    yield replace(choices, dim=max(1, choices.dim - 1))
    yield replace(choices, items=1)
    yield replace(choices, atoms=2)
    yield replace(choices, unit=1.0, cost_unit=1.0)
    yield replace(choices, unit=1.0)
    yield replace(choices, cost_unit=1.0)
    for flag in FLAGS:
        off: dict[str, Any] = {flag: False}
        yield replace(choices, **off)
    for support in ("reals", "nonnegative", "box"):
        yield replace(choices, support=support)
    for cost in ("portfolio", "newsvendor", "pooled"):
        yield replace(choices, cost=cost)


def finding_of(verdict: Verdict, kind: str) -> Finding | None:
    """The first finding of a kind."""
    return next((finding for finding in verdict.findings if finding.kind == kind), None)


def only(program: Program, position: int) -> Program:
    """The program with a single item."""
    items: tuple[Item, ...] = program.items[position : position + 1]
    return replace(program, items=items, choices=replace(program.choices, items=1))


def shrink(choices: Choices, seed: int, number: int, finding: Finding, invariants: tuple[str, ...]) -> Program:
    """The smallest program seen with a finding of the same kind.

    Programs of other choices have other numbers, drawn by the same generator.
    """
    position, tries, progress = finding.item, 0, True
    while progress and tries < TRIES:
        progress = False
        for candidate in simpler(choices):
            smaller = consistent(candidate)
            if smaller == choices or tries >= TRIES:
                continue
            tries += 1
            again = finding_of(examine(build(smaller, seed, number), seed, number, invariants), finding.kind)
            if again is not None:
                choices, position, progress = smaller, again.item, True
                break
    program = build(choices, seed, number)
    if position >= 0 and len(program.items) > 1:
        alone = only(program, position)
        if finding_of(examine(alone, seed, number, invariants), finding.kind) is not None:
            return alone
    return program

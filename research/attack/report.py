"""The log of an attack: one line of JSON a program, counts, and reproductions as scripts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from research.attack.draw import Choices, Program, inputs
from research.attack.judge import Finding, Verdict

TOTALS = ("tried", "judged", "wrong", "raw", "refused", "masked", "unjudged", "broken")


@dataclass(frozen=True)
class Line:
    """The log's line about a program.

    Attributes:
        number: of the program.
        words: the choices in one line.
        counts: items by outcome.
        findings: kind, item and note of each.
        refused: the library's sentence.
        seconds: processor time.
    """

    number: int
    words: str
    counts: dict[str, int]
    findings: list[dict[str, Any]]
    refused: str
    seconds: float

    @classmethod
    def of(cls, number: int, choices: Choices, verdict: Verdict, seconds: float) -> Line:
        """The line of a verdict."""
        findings = [asdict(finding) for finding in verdict.findings]
        return cls(number, choices.words, dict(verdict.counts), findings, verdict.refused, round(seconds, 3))

    @property
    def text(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))


def read_log(path: Path) -> dict[int, Line]:
    """The lines of a log by number; a line that an interruption cut off is left out."""
    if not path.exists():
        return {}
    lines = {}
    for text in path.read_text().splitlines():
        try:
            line = Line(**json.loads(text))
        except (json.JSONDecodeError, TypeError):
            continue
        lines[line.number] = line
    return lines


def totals(lines: Iterable[Line]) -> dict[str, int]:
    """Count programs (tried, refused), items (judged, masked, unjudged) and findings (wrong, raw, broken)."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts["tried"] += 1
        counts["refused"] += bool(line.refused)
        for name, count in line.counts.items():
            if not name.startswith("derivative"):
                kind = name.split(":")[0]
                counts["judged" if kind in ("right", "wrong") else kind] += count
        for finding in line.findings:
            kind = finding["kind"]
            counts["raw" if kind == "raw" else "wrong" if kind.startswith("wrong") else "broken"] += 1
    return {name: counts[name] for name in TOTALS}


def summary(lines: list[Line]) -> str:
    """Return the counts, and the outcomes, findings and refusals behind them, as text."""
    sums = totals(lines)
    text = [", ".join(f"{name} {count}" for name, count in sums.items())]
    parts: dict[str, Counter[str]] = {"Items": Counter(), "Findings": Counter(), "Refused": Counter()}
    for line in lines:
        parts["Items"].update(line.counts)
        parts["Findings"].update(finding["kind"] for finding in line.findings)
        if line.refused:
            # Sentences that differ in their numbers alone are counted together.
            parts["Refused"][re.sub(r"\d+(\.\d+)*", "#", line.refused)[:100]] += 1
    for title, counts in parts.items():
        if counts:
            text += ["", f"{title}:", *(f"  {count:6d}  {name}" for name, count in counts.most_common())]
    seconds = sum(line.seconds for line in lines)
    return "\n".join([*text, "", f"{seconds:.0f} processor seconds, {seconds / max(1, len(lines)):.2f} a program"])


def script(program: Program, finding: Finding, seed: int, number: int) -> str:
    """A self-contained script that shows a finding."""
    printed = ", ".join(f"decision.best[{name}].tolist()" for name, _ in program.cost.names)
    return "\n".join(
        [
            f'"""{finding.kind}: program {number} of seed {seed}, item {finding.item}.',
            "",
            program.choices.words,
            finding.note,
            '"""',
            "",
            program.source,
            inputs(program),
            "decision = dro.DROLayer(problem)(theta, nominal, known)",
            f"print(decision.statuses, decision.value.tolist(), {printed})",
            "",
        ]
    )

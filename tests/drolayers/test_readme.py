"""The Python blocks of README.md run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def run_blocks(text: str, filename: str = "README.md") -> int:
    """Executes every Python block of a Markdown text; returns how many there were."""
    namespace: dict[str, object] = {"__name__": "__readme__"}
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        # Leading newlines make tracebacks show the line of the Markdown file.
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(source, filename, "exec"), namespace)
    return len(blocks)


def test_readme_runs() -> None:
    # The layer, what trains it, its proof and the learner.
    assert run_blocks(README.read_text(encoding="utf-8"), str(README)) >= 4


def test_blocks_share_a_namespace_and_other_languages_are_left_alone() -> None:
    assert run_blocks("```python\na = 1\n```\n```bash\nfalse\n```\n```python\nassert a == 1\n```\n") == 2
    assert run_blocks("No code.\n") == 0


def test_a_failing_block_fails() -> None:
    with pytest.raises(ZeroDivisionError) as info:
        run_blocks("Text.\n\n```python\na = 1\na / 0\n```\n")
    assert info.traceback[-1].lineno + 1 == 5

"""Notebooks: run, compared with what they show, and turned into pages of the site.

Usage: python docs/notebooks.py      (runs all of examples/notebooks and stores what they print)

A notebook is run cell by cell in one namespace, as Jupyter would; what it shows is text. So nothing of Jupyter is
needed to test the notebooks or to build the site.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    return list(json.loads(path.read_text("utf-8"))["cells"])


def shown(cell: dict[str, Any]) -> str:
    """What a cell of code printed when the notebook was stored."""
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", []))
    return "".join("".join(text) for text in texts)


def run(path: Path) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Run a notebook: number, cell and what it prints, one after the other."""
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{path.name}, cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(StringIO()) as output:
            exec(compile(tree, f"{path.name}, cell {number}", "exec"), namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval"), namespace)
                if value is not None:
                    print(repr(value))
        yield number, cell, output.getvalue()


def markdown(path: Path) -> str:
    """A notebook as a page."""
    parts = [f"*This page is the notebook `examples/notebooks/{path.name}`.*"]
    for cell in cells(path):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source.strip():
            parts.append(f"```python\n{source}\n```")
            if text := shown(cell):
                parts.append(f"```text\n{text.rstrip()}\n```")
    # The title of a notebook stays the first line of its page.
    title, rest = parts[1].split("\n", 1) if "\n" in parts[1] else (parts[1], "")
    return "\n\n".join([title, parts[0], rest, *parts[2:]])


def store(path: Path) -> None:
    """Run a notebook and keep what it prints in it."""
    notebook = json.loads(path.read_text("utf-8"))
    with TemporaryDirectory() as folder, chdir(folder):
        for count, (number, _, text) in enumerate(run(path), 1):
            lines = text.splitlines(keepends=True)
            kept = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
            notebook["cells"][number] |= {"execution_count": count, "outputs": kept}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        store(file)
        print(f"{file.name} runs.", file=sys.stderr)

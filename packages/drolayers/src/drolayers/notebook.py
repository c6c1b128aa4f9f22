"""HTML for notebooks: a block of code and small tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


def code_block(text: str) -> str:
    """Format text as a block of code."""
    return f"<pre>{escape(text)}</pre>"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as an HTML table.

    Args:
        header: one name a column.
        rows: one entry a column; printed with ``str``.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(entry))}</td>" for entry in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

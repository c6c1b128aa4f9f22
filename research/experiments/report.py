"""One self-contained HTML page with all results, and the same tables as Markdown."""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from conelayers.checks import directory
from conelayers.errors import ModelError
from research.experiments.runner import collect, write_whole
from research.experiments.sections import all_sections
from research.experiments.summary import Plot, Section, Table, present
from research.experiments.task import Row

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
p, li { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; }
.caption { font-weight: 600; margin: 1.5rem 0 .3rem; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; border-bottom: 1px solid #eee; }
tbody tr:nth-child(even) { background: #fafafa; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; } figcaption { font-size: .85rem; color: #555; }
pre { overflow-x: auto; background: #f5f5f5; padding: .7rem; font-size: .85rem; }
"""


def write_report(source: Path, out: Path, markdown: Path | None = None) -> list[Path]:
    """Write the page, and the tables as Markdown where asked for.

    Args:
        source: the folder that ``reproduce`` wrote.
        out: the page.
        markdown: the Markdown file.

    Returns:
        The files that were written.
    """
    if not (source / "tasks").is_dir():
        raise ModelError(f"{source} holds no results: run 'python -m research reproduce --out {source}' first.")
    rows = collect(source)
    if not rows:
        raise ModelError(
            f"{source} holds no finished task yet: wait for 'python -m research reproduce --out {source}'."
        )
    sections = all_sections(rows, source)
    directory(out.parent)
    write_whole(out, page(sections, rows, source))
    if markdown is None:
        return [out]
    directory(markdown.parent)
    write_whole(markdown, markdown_tables(sections))
    return [out, markdown]


def page(sections: Sequence[Section], rows: Sequence[Row], source: Path) -> str:
    """The whole page; nothing in it comes from elsewhere."""
    body = "".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>drolayers: experiments</title><style>{STYLE}</style></head><body>"
        "<h1>drolayers: the experiments</h1>"
        "<p>Figures are mean ± standard error over seeds, with the number of seeds in brackets; test data only. "
        "Protocol <em>paper</em> trains as the paper and its scripts do, <em>paper-published-weights</em> also weights "
        "outside draws as they do, <em>strong</em> is ours, chosen on validation data.</p>"
        f"{body}{_environment(rows, source)}</body></html>\n"
    )


def markdown_tables(sections: Sequence[Section]) -> str:
    """All tables, section by section."""
    parts = []
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts += [f"{paragraph}\n" for paragraph in section.paragraphs]
        for table in section.tables:
            lines = [table.header, ["---"] * len(table.header), *table.rows]
            drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            parts.append(f"**{table.caption}**\n\n{drawn}\n")
    return "\n".join(parts)


def _section(section: Section) -> str:
    """One experiment."""
    text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs)
    inner = "".join(map(_plot, section.plots)) + "".join(map(_table, section.tables))
    return f"<section><h2>{html.escape(section.title)}</h2>{text}{inner}</section>"


def _table(table: Table) -> str:
    """A table that scrolls inside its own box, so that the page never does."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.header)
    lines = ("".join(f"<td>{html.escape(entry)}</td>" for entry in line) for line in table.rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    drawn = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f'<p class="caption">{html.escape(table.caption)}</p>{drawn}'


def _plot(plot: Plot) -> str:
    """An image inside the page."""
    data = BytesIO()
    plot.figure.savefig(data, format="png", dpi=160)
    code = base64.b64encode(data.getvalue()).decode()
    caption = html.escape(plot.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{code}"><figcaption>{caption}</figcaption></figure>'
    )


def _environment(rows: Sequence[Row], source: Path) -> str:
    """Where the numbers come from."""
    facts = {
        "drolayers": present(rows, "version"),
        "Python": present(rows, "python"),
        "PyTorch": present(rows, "torch"),
        "platform": present(rows, "platform"),
        "cores": present(rows, "cores"),
    }
    items = "".join(
        f"<li>{name}: {html.escape(', '.join(str(v) for v in values))}</li>" for name, values in facts.items()
    )
    runs = {(r["experiment"], r["protocol"], r["seed"], r["wall_seconds"], r["cpu_seconds"]) for r in rows}
    hours = sum(float(wall) for *_, wall, _ in runs) / 3600
    items += f"<li>{len(runs)} tasks, {hours:.2f} hours of one process each</li>"
    items += f"<li>page written {time.strftime('%Y-%m-%d %H:%M')}</li>"
    commands = html.escape(
        f"python -m research reproduce --out {source.name}\npython -m research report --from {source.name}"
    )
    return f"<section><h2>Environment and commands</h2><ul>{items}</ul><pre>{commands}</pre></section>"

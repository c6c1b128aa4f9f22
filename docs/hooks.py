"""What MkDocs cannot do by itself: formulas as MathML, pages that are files of the repository, figures made by code."""

from __future__ import annotations

import html
import importlib.util
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
INCLUDE = re.compile(r"^<!-- include: (?P<path>\S+)(?: or (?P<otherwise>.*?))? -->$", re.MULTILINE)
LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
LIMITS = re.compile(r"<msub><mo>(max|min|sup|inf|argmin)</mo>(<m\w+>(?:(?!<msub>).)*?)</msub>")
ROLE = re.compile(r":(?:class|meth|func|mod|attr|data):(?=<code>|<a |<autoref )")
PAGES = {
    "README.md": "index.md",
    "RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files of the repository that are pages of the site."""


def on_pre_build(config: Any) -> None:
    """Make the figures that are missing or older than the code that draws them, and run the tutorial if it changed."""
    _script("figures").make()
    try:
        _script("run").run_if_changed()
    except RuntimeError as error:
        raise PluginError(str(error)) from error


def on_files(files: Files, config: Any) -> Files:
    """Pictures that included files show become files of the site."""
    for page in [file for file in files if file.src_uri.endswith(".md")]:
        for found in INCLUDE.finditer(page.content_string):
            source = ROOT / found["path"]
            for picture in _pictures(source):
                uri = f"assets/included/{picture}"
                if files.get_file_from_path(uri) is None:
                    files.append(File.generated(config, uri, abs_src_path=str(ROOT / picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put in the files that a page includes, and tables that the code knows."""

    def included(found: re.Match[str]) -> str:
        source = ROOT / found["path"]
        if source.exists() and source.suffix == ".ipynb":
            return str(_script("notebooks").markdown(source))
        if source.exists():
            return _relinked(source, page.file.src_uri)
        if found["otherwise"] is None:
            raise PluginError(f"{page.file.src_uri} includes {found['path']}, which does not exist.")
        return found["otherwise"]

    markdown = INCLUDE.sub(included, markdown)
    for name, table in {"statuses": _statuses, "commands": _commands, "checks": _checks}.items():
        mark = f"<!-- {name} -->"
        markdown = markdown.replace(mark, table()) if mark in markdown else markdown
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Formulas as MathML, which browsers show without scripts; roles of other documentation tools are dropped."""
    return ROLE.sub("", FORMULA.sub(_formula, html))


def _script(name: str) -> Any:
    """A script beside this one, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _statuses() -> str:
    """One row for every status."""
    from drolayers import Status

    return "\n".join(f"| `{status.name}` | {status.advice} |" for status in Status)


def _checks() -> str:
    """One row for every check of scikit-learn that is meant to fail."""
    from drolayers.learning.policy import EXPECTED_FAILED_CHECKS

    return "\n".join(f"| `{name}` | {why} |" for name, why in EXPECTED_FAILED_CHECKS.items())


def _commands() -> str:
    """Every command with its help, arguments and options."""
    import typer

    from drolayers.cli import app

    def described(command: Any, name: str) -> list[str]:
        inner = getattr(command, "commands", {})
        if inner:
            return [line for key, sub in inner.items() for line in described(sub, f"{name} {key}")]
        lines = [f"## {name}", "", _plain(command.help), "", "| setting | default | meaning |", "|---|---|---|"]
        for setting in command.params:
            option = setting.param_type_name == "option"
            called = ", ".join(f"`{opt}`" for opt in setting.opts) if option else f"`{setting.name.upper()}`"
            default = "" if setting.default is None or setting.required else f"`{setting.default}`"
            lines.append(f"| {called} | {default} | {_plain(getattr(setting, 'help', '') or '')} |")
        return [*lines, ""]

    return "\n".join(described(typer.main.get_command(app), "drolayers"))


def _plain(text: str) -> str:
    """Help without the marks of its colours; a bar would end a cell."""
    return re.sub(r"\[/?\w*\]", "", text).replace("|", "or").strip()


def _formula(found: re.Match[str]) -> str:
    """One formula; its source stays in the page for those who copy it."""
    inline = found[2] is not None
    latex = html.unescape(found[2] if inline else found[3]).strip()
    # The converter knows brackets that grow by themselves, not those of a given size.
    known = re.sub(r"\\[bB]igg?([lr])\b", lambda size: r"\left" if size[1] == "l" else r"\right", latex)
    rendered = convert(known, display="inline" if inline else "block")
    if "\\" in rendered:
        raise PluginError(f"A formula holds a command that the converter does not know: {latex}")
    if not inline:
        rendered = LIMITS.sub(r"<munder><mo>\1</mo>\2</munder>", rendered)
    quoted = html.escape(latex, quote=True)
    return rendered if inline else f'<div class="formula" role="math" aria-label="{quoted}">{rendered}</div>'


def _pictures(source: Path) -> list[str]:
    """Pictures of a file, by their path in the repository."""
    if not source.exists():
        return []
    paths = [_inside(source, found["target"]) for found in LINK.finditer(source.read_text("utf-8")) if found["bang"]]
    return [path for path in paths if path is not None and (ROOT / path).is_file()]


def _relinked(source: Path, page: str) -> str:
    """A file's text with links that hold from a page of the site; what is not on the site is only named."""
    up = posixpath.dirname(page) or "."

    def link(found: re.Match[str]) -> str:
        path = _inside(source, found["target"])
        if path is None:
            return found[0]
        if found["bang"]:
            target: str | None = f"assets/included/{path}" if (ROOT / path).is_file() else None
        else:
            target = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is None:
            return f"{found['text']} (`{path}`)" if found["text"] != path else f"`{path}`"
        return f"{found['bang']}[{found['text']}]({posixpath.relpath(target, up)})"

    return LINK.sub(link, source.read_text("utf-8"))


def _inside(source: Path, target: str) -> str | None:
    """The path in the repository that a link of a file means; None for links that lead elsewhere."""
    if re.match(r"[a-z]+:|#|/", target):
        return None
    resolved = (source.parent / target.split("#")[0]).resolve()
    return resolved.relative_to(ROOT).as_posix() if resolved.is_relative_to(ROOT) else None

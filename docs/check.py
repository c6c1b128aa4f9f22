"""Walks a built site: every link, anchor and picture within it exists, and no page asks the network for anything.

Usage: python docs/check.py [site]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("object", "data"),
}
"""What a browser fetches without being asked; a link element is fetched unless it only names something."""

NAMES = {"canonical", "alternate", "next", "prev", "author", "license", "edit"}


class Page(HTMLParser):
    """The anchors, links and fetched files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag names, links to or fetches."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and "href" in values and values.get("rel") not in NAMES:
            self.fetched.append(values["href"])
        self.fetched += [values[name] for kind, name in FETCHED if kind == tag and name in values]


def problems(site: Path) -> list[str]:
    """Everything that is wrong with a built site, one sentence each."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} holds no pages."]
    found = []
    for path, page in pages.items():
        here = path.relative_to(site).as_posix()
        if path.name == "404.html":
            # It stands for every address, so its links are absolute.
            continue
        for target in (*page.links, *page.fetched):
            found += [f"{here}: {text}" for text in _defects(site, pages, path, target)]
        found += [f"{here} fetches {target} from the network." for target in page.fetched if _remote(target)]
    for path in sorted(site.rglob("*.css")):
        for target in re.findall(r"url\(\s*['\"]?([^'\")]+)", path.read_text("utf-8")):
            if _remote(target):
                found.append(f"{path.relative_to(site)} fetches {target} from the network.")
    return found


def _remote(target: str) -> bool:
    """Whether an address leads to another machine."""
    return target.startswith("//") or urlsplit(target).scheme in ("http", "https", "ftp")


def _defects(site: Path, pages: dict[Path, Page], path: Path, target: str) -> Iterator[str]:
    """What is wrong with one link."""
    parts = urlsplit(target)
    if parts.scheme or target.startswith("//"):
        return
    goal = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if goal.is_dir():
        goal = goal / "index.html"
    if not goal.is_relative_to(site) or not goal.exists():
        yield f"{target} does not exist."
    elif parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].anchors:
        yield f"{target} has no such anchor."


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    wrong = problems(site)
    print("\n".join(wrong) if wrong else f"{site}: all links, anchors and pictures exist; nothing is fetched.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

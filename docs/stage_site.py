"""Gather the pages of the site: docs/ as it is, the documents of the repository's root, and the examples.

On the site, docs/ is the root. Documents outside of it get a place there, an example becomes a page with its program,
and links are rewritten to these places. A link to a file that is not on the site is an error.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

__all__ = ["BrokenLink", "pages"]

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "site-pages"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("http://", "https://", "mailto:")
TITLES = {"docs/adr": "docs/adr/README.md", "examples": "examples/README.md", "README.md": "docs/index.md"}
"""What a link to a folder means; the front page of the repository is that of the site."""


class BrokenLink(Exception):
    """A page links to something that the site does not have."""


def pages() -> dict[str, str]:
    """The text of every page by its path on the site."""
    places = _places()
    return {place: _page(source, places) for source, place in places.items() if place.endswith(".md")}


def _places() -> dict[str, str]:
    """For every file of the site, by its path in the repository, its path on the site."""
    places = {
        "ARCHITECTURE.md": "architecture.md",
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
    }
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in (".md", ".svg", ".png", ".json"):
            name = path.relative_to(ROOT / "docs").as_posix()
            places[f"docs/{name}"] = name.replace("README.md", "index.md")
    for path in sorted((ROOT / "examples").glob("*")):
        if path.suffix in (".md", ".py"):
            name = "index.md" if path.name == "README.md" else f"{path.stem}.md"
            places[f"examples/{path.name}"] = f"examples/{name}"
    return places


def _page(source: str, places: dict[str, str]) -> str:
    text = (ROOT / source).read_text()
    if source.endswith(".py"):
        return f"# {Path(source).stem[3:].replace('_', ' ').capitalize()}\n\n```python\n{text.rstrip()}\n```\n"
    parts = FENCE.split(text)
    parts[::2] = [
        LINK.sub(lambda found: f"{found[1]}{_link(found[2], source, places)}{found[3]}", each) for each in parts[::2]
    ]
    return "".join(parts)


def _link(link: str, source: str, places: dict[str, str]) -> str:
    target, mark, anchor = link.partition("#")
    if not target or link.startswith(ELSEWHERE):
        return link
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    place = places.get(TITLES.get(wanted, wanted))
    if place is None:
        raise BrokenLink(f"{source} links to {wanted}, which is not on the site; name the file in `code` instead")
    return posixpath.relpath(place, posixpath.dirname(places[source]) or ".") + mark + anchor


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    for place, text in pages().items():
        (TARGET / place).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / place).write_text(text)
    for source, place in _places().items():
        if not place.endswith(".md"):
            os.makedirs((TARGET / place).parent, exist_ok=True)
            shutil.copyfile(ROOT / source, TARGET / place)
    print(f"{len(pages())} pages in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())

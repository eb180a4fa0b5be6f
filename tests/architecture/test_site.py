"""docs/ as a site: the navigation has every page, and every link and anchor leads somewhere.

``make site`` has the same checks, by the site's generator; here they are cheap, and part of ``make check``.
"""

from __future__ import annotations

import importlib
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
RIDDLES = ("anew", "nought", "whoever", "mends?", "mended", "(is|are|was) told", "left alone")
"""Say: rebuilt, zero, a client that, fixes, is reported, is not changed."""


def staged() -> dict[str, str]:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        pages: dict[str, str] = importlib.import_module("stage_site").pages()
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return pages


PAGES = staged()


def in_navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from in_navigation(value if isinstance(value, list) else [value])


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip())


def anchors(page: str) -> set[str]:
    return {slug(heading) for heading in HEADING.findall(FENCE.sub("", PAGES[page]))}


def links(page: str) -> Iterator[tuple[str, str]]:
    """(page or file on the site, anchor) of every link to a place on the site."""
    for link in LINK.findall(FENCE.sub("", PAGES[page])):
        if not link.startswith(("http://", "https://", "mailto:")):
            target, _, anchor = link.partition("#")
            yield posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page, anchor


def test_the_navigation_has_every_page_once() -> None:
    """Examples and decisions are many: their own pages list them, which other tests and the next one check."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())
    listed = list(in_navigation(settings["project"]["nav"]))
    listed_elsewhere = re.compile(r"(examples/\d\d_.*|adr/\d{4}-.*)\.md")
    wanted = sorted(page for page in PAGES if not listed_elsewhere.fullmatch(page))
    assert sorted(listed) == wanted, "add the page to nav in zensical.toml"


@pytest.mark.parametrize("folder", ["adr", "examples"])
def test_a_folder_of_many_pages_has_a_page_that_lists_them(folder: str) -> None:
    listed = {target for target, _ in links(f"{folder}/index.md")}
    assert {page for page in PAGES if page.startswith(f"{folder}/")} - listed <= {f"{folder}/index.md"}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_anchor_of_a_page_leads_somewhere(page: str) -> None:
    broken = []
    for target, anchor in links(page):
        if target in PAGES:
            found = not anchor or anchor in anchors(target)
        else:
            found = (ROOT / "docs" / target).is_file()
        if not found:
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(("examples/", "benchmarks"))])
def test_a_page_has_no_word_that_needs_a_second_reading(page: str) -> None:
    prose = FENCE.sub("", PAGES[page])
    assert [word for word in RIDDLES if re.search(rf"\b{word}\b", prose, re.IGNORECASE)] == []


def test_a_broken_link_would_be_found() -> None:
    assert slug("What recovery says, and what to do") == "what-recovery-says-and-what-to-do"
    assert "what-to-alert-on" in anchors("operations.md")
    assert "no-such-heading" not in anchors("operations.md")

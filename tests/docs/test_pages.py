"""What the pages point at is there: links, anchors, and every path of the repository that stands in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.imports import located
from tests.support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
#: A path in backticks: from a folder at the top of the repository on.
PATH = re.compile(r"(?<![\w./-])(?:solver|models|runtime|weft|tests|experiments|docs|\.ci)/[\w./*-]*")
#: Stands for any name.
ANY = re.compile(r"NAME|\*")
FENCES = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def ids(page: Path) -> str:
    return page.name


def links(page: Path) -> Iterator[str]:
    """The targets of the page's links, but for those to the web."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCES.sub("", page.read_text(encoding="utf-8"))):
        if not target.startswith(("http://", "https://", "mailto:")):
            yield target


def paths(page: Path) -> Iterator[str]:
    """Every path in backticks on the page that stands for one file or folder."""
    for code in re.findall(r"`([^`\n]+)`", FENCES.sub("", page.read_text(encoding="utf-8"))):
        for path in PATH.findall(code):
            if not ANY.search(path):
                yield path.rstrip(".,/")


def anchors(page: Path) -> set[str]:
    """What GitHub calls the page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCES.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        file, _, anchor = target.partition("#")
        where = located(ROOT, (page.parent / file).resolve().relative_to(ROOT).as_posix()) if file else page
        assert where.exists(), f"{page.name} links {target}, which is not there"
        assert not anchor or anchor in anchors(where), f"{page.name} links {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    missing = sorted({path for path in paths(page) if not located(ROOT, path).exists()})
    assert not missing, f"{page.name} names what is not there: {', '.join(missing)}"


def test_every_page_is_reached_from_the_readme() -> None:
    named = {(ROOT / target.partition("#")[0]).resolve() for target in links(ROOT / "README.md")}
    assert {page.name for page in PAGES if page.name != "README.md" and page.resolve() not in named} == set()

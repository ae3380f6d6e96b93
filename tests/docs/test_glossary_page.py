"""docs/GLOSSARY.md: inner words are used in their rooms, and what it says things are called now, they are called."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from experiments.house.imports import ROOMS, located
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "GLOSSARY.md").read_text(encoding="utf-8")
PARTS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def rows(part: str) -> list[list[str]]:
    """The cells of a part's table, without its head."""
    lines = re.findall(r"^\|(.+)\|$", PARTS[part], re.MULTILINE)[2:]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


@cache
def files(room: str) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in located(ROOT, room).rglob("*.py")}


@cache
def definitions() -> set[str]:
    """The names of all classes and functions."""
    return {node.name for room in ROOMS[1:] for text in files(room).values() for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.parametrize(("word", "room", "_"), rows("Inner words of the rooms"))
def test_an_inner_word_is_used_in_its_room(word: str, room: str, _: str) -> None:
    assert located(ROOT, room).is_dir(), room
    for one in re.sub(r"\([^)]*\)|`", "", word).split(","):
        stem = re.escape(one.strip().removesuffix("s")).replace(r"\ ", r"\W")
        pattern = re.compile(rf"(?<![A-Za-z]){stem}", re.IGNORECASE)
        assert any(pattern.search(text) for text in files(room).values()), f"{one} is not in {room}"


def test_words_stand_once_and_in_order() -> None:
    for part in ("The field's words", "weft's own words", "Inner words of the rooms"):
        words = [re.sub(r"[*`]", "", cells[0]).lower() for cells in rows(part)]
        assert len(words) == len(set(words)), part


def test_old_names_are_gone() -> None:
    """Those in backticks, unless the line says that one stays."""
    for old, now in rows("Old words"):
        if "still" not in now:
            assert set(re.findall(r"`(\w+)`", old)) & definitions() == set(), old


def test_every_room_with_inner_words_is_a_room() -> None:
    assert {cells[1].split("/")[0] for cells in rows("Inner words of the rooms")} <= set(ROOMS)

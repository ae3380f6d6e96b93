"""The front door's rooms use only those below them, in annotations and inside functions too: cli, app, then figures
and text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.imports import imported
from tests.support.paths import ROOT

#: Room -> the rooms of the front door that it may use, beside itself.
BELOW = {
    "cli": {"app", "figures", "text"},
    "app": {"figures", "text"},
    "figures": {"text"},
    "text": set(),
}


def used_by(file: Path) -> set[str]:
    """The modules that ``file`` imports anywhere, also for types alone, and the names from them."""
    return set(imported(ast.parse(file.read_text(encoding="utf-8")), types_too=True))


@pytest.mark.parametrize("room", BELOW)
def test_arrows_point_down_only(room: str) -> None:
    files = sorted((ROOT / "weft" / room).rglob("*.py"))
    assert files
    for file in files:
        used = {name.split(".")[1] for name in used_by(file) if name.startswith("weft.")}
        assert used & BELOW.keys() <= BELOW[room] | {room}, file
        assert "weft" not in used_by(file), f"{file} imports weft itself, which stands above all rooms"


@pytest.mark.parametrize("below", ["solver", "models", "runtime"])
def test_nothing_below_uses_the_front_door(below: str) -> None:
    for file in sorted((ROOT / "weft" / below).rglob("*.py")):
        used = {name.split(".")[1] for name in used_by(file) if name.startswith("weft.")}
        assert not used & BELOW.keys(), file


def test_only_the_command_line_prints() -> None:
    for room in ("app", "figures", "text"):
        for file in sorted((ROOT / "weft" / room).rglob("*.py")):
            calls = [node for node in ast.walk(ast.parse(file.read_text()))
                     if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"]
            if file.name != "ranks.py":  # a program of its own, whose errors its parent reads
                assert not calls, file

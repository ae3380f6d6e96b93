"""docs/ARCHITECTURE.md: every room is named, every file and what is named in it exist, and the picture is drawn."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from experiments.house.imports import Sources, located
from experiments.house.picture import PICTURE, Picture
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)`\s+`([A-Za-z_][\w.]*)`", PAGE)))
JOURNEYS = re.split(r"^### ", PAGE.partition("## Four journeys")[2], flags=re.MULTILINE)[1:]


def rooms() -> set[str]:
    """Every folder with code of its own, and ``solver``, whose files are the ground floor."""
    sources = Sources(ROOT)
    return {sources.folder(module) for module, path in sources.files.items() if path.name != "__init__.py"} - {"weft"}


def defined(file: Path) -> set[str]:
    """What stands in a file: functions, classes, methods, and names that are assigned or annotated."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.add(prefix + node.name)
                case ast.ClassDef():
                    found.add(prefix + node.name)
                    walk(node.body, f"{prefix}{node.name}.")
                case ast.Assign():
                    found.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    walk(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


def test_every_room_has_a_line() -> None:
    listed = re.findall(r"^\| `([\w/]+)` \|", PAGE, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == rooms()


def test_every_room_says_question_in_and_out() -> None:
    for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE):
        assert len([cell for cell in line.strip("|").split("|") if cell.strip()]) == 4, line


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{file}:{name}" for file, name in NAMED])
def test_what_is_named_stands_in_its_file(file: str, name: str) -> None:
    where = located(ROOT, file)
    assert where.exists(), f"{file} is not there"
    assert name in defined(where), f"{file} has no {name}"


def test_the_journeys_are_four_and_every_step_names_a_file() -> None:
    assert len(JOURNEYS) == 4
    for journey in JOURNEYS:
        steps = re.split(r"^\d+\. ", journey, flags=re.MULTILINE)[1:]
        assert len(steps) >= 5, journey
        # The last step of a journey may only say what comes out.
        assert [step for step in steps[:-1] if not re.search(r"`[\w/]+\.py`", step)] == [], journey


@pytest.mark.slow
def test_the_picture_is_that_of_today_s_imports() -> None:
    assert PICTURE.read_text(encoding="utf-8") == Picture().svg(), "python -m experiments.house.picture draws it anew"
    assert PICTURE.with_suffix(".png").exists()

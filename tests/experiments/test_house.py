"""What is read of the house from its source: imports, circles, sizes, parameters; and how its picture is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.house import picture
from experiments.house.imports import ROOMS, Sources
from experiments.house.measures import WORDS, _circles, _functions, _tests, _words, table

FILES = {
    "solver/__init__.py": "",
    "solver/a.py": "from {}solver.deep.b import f\n\n\ndef g(x, *, y=1, **more):\n    return f(x)\n",
    "solver/deep/__init__.py": "",
    "solver/deep/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {}solver.a import g\n\n\n"
                        "class Rows:\n    def f(self, turn):\n        from {}models import c\n        return c, turn\n",
    "models/__init__.py": "",
    "models/c.py": "import {}solver.a\n",
    "runtime/__init__.py": "",
    "weft/__init__.py": "from {}models.c import a_turn  # no turning\n",
    "tests/test_a.py": "from {}solver.deep import b\n",
}


@pytest.fixture(params=["", "weft."], ids=["packages of their own", "weft.*"])
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Sources:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("{}", request.param))
    if request.param:
        for room in ROOMS[1:]:
            (tmp_path / "weft" / room).symlink_to(Path("..") / room)
    return Sources(tmp_path)


def test_imports_inside_functions_count_and_those_for_types_do_not(sources: Sources) -> None:
    def name(module: str) -> str:
        return sources.prefix + module

    assert set(sources.graph.edges) == {
        (name("solver.a"), name("solver.deep.b")), (name("solver.deep.b"), name("models.c")),
        (name("models.c"), name("solver.a")), ("weft", name("models.c"))}
    assert _circles(sources)["files"] == [sorted(map(name, ("solver.a", "solver.deep.b", "models.c")))]
    assert _circles(sources)["rooms"] == [["models", "solver", "solver/deep"]]
    assert ("weft", "models") in sources.between(1).edges
    assert f"{sources.prefix}solver" in sources.entrances and "weft" not in sources.entrances


def test_functions_tests_and_words(sources: Sources) -> None:
    functions = _functions(sources)
    assert functions["widest"] == {f"{sources.prefix}solver.a.g": 3, f"{sources.prefix}solver.deep.b.Rows.f": 1}
    assert _tests(sources) == {"files": 3, "imported_by_no_test": 2}
    words = _words(sources)
    assert (words["rows"], words["turn"]) == (1, 3)


def test_a_room_without_a_place_and_an_arrow_upward_are_refused(sources: Sources,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    places = {area: dict[str, picture.Place]() for area in ROOMS}
    monkeypatch.setattr(picture, "PLACES", places)
    with pytest.raises(ValueError, match=r"without a place in .*: \['models', 'solver', 'solver/deep', 'weft/api'\]"):
        picture.Picture(sources.root)


@pytest.mark.slow
def test_boxes_of_the_picture_lie_apart_and_inside_the_page() -> None:
    drawn = picture.Picture()
    boxes = sorted((box.y, box.x) for box in drawn.boxes.values())
    for y, x in boxes:
        assert picture._WIDTH / 2 < x < picture._PAGE - picture._WIDTH / 2 and y + picture._HEIGHT < drawn.height
    assert not [(one, other) for one in boxes for other in boxes if one < other
                and abs(one[0] - other[0]) < picture._HEIGHT and abs(one[1] - other[1]) < picture._WIDTH]


@pytest.mark.slow
def test_what_stands_in_a_box_fits_into_it() -> None:
    """At most so many characters as have room in the widest usual letters of Helvetica."""
    for box in picture.Picture().boxes.values():
        assert len(box.name) <= 16 and len(box.says) <= 22, box


def test_the_table_has_a_row_a_measure() -> None:
    of = {"folders": {"largest": {"solver": 3}, "over": 0, "count": 2}, "files": {"count": 4, "over": 0, "largest":
          {"solver/a.py": 5}}, "circles": {"files": [], "rooms": [], "longest_chain_of_imports": 3},
          "functions": {"widest": {"f": 2}, "over_parameters": 0, "over_lines": 0, "longest": {"g": 9}, "count": 6},
          "solve": {"files_imported": 3, "files_entered": 2, "deepest_stack": 4},
          "tests": {"files": 3, "imported_by_no_test": 1}, "lines": {**dict.fromkeys(ROOMS, 10), "tests": 5},
          "words": dict.fromkeys(WORDS, 0)}
    lines = table(of, of).splitlines()
    assert lines[0] == "| measure | before | after |" and "| longest function, lines | 9 (g) | 9 (g) |" in lines

"""What the tests of arrows read of the sources: imports inside functions count, those for types do not."""

from __future__ import annotations

from pathlib import Path

from tests.support.imports import ROOMS, Sources

FILES = {
    "solver/__init__.py": "",
    "solver/a.py": "from weft.solver.deep.b import f\n",
    "solver/deep/__init__.py": "",
    "solver/deep/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from weft.solver.a import g\n\n\n"
                        "def f():\n    from weft.models import c\n    return c\n",
    "models/__init__.py": "",
    "models/c.py": "import weft.solver.a\n",
    "runtime/__init__.py": "",
    "weft/__init__.py": "from weft.models.c import turn\n",
}


def test_imports_inside_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for room in ROOMS[1:]:
        (tmp_path / "weft" / room).symlink_to(Path("..") / room)
    sources = Sources(tmp_path)
    assert set(sources.graph.edges) == {
        ("weft.solver.a", "weft.solver.deep.b"), ("weft.solver.deep.b", "weft.models.c"),
        ("weft.models.c", "weft.solver.a"), ("weft", "weft.models.c")}
    assert ("weft", "models") in sources.between(1).edges
    assert "weft.solver" in sources.entrances and "weft" not in sources.entrances

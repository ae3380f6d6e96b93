"""What the house measures: nothing of it grows but by a limit that moves, with a line in the changelog that says why.

``python -m tests.test_house`` prints today's numbers, to be written into ``LIMITS`` where they have fallen.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.support.imports import WEFT, Sources, statements
from tests.support.paths import ROOT

#: What there may be at most. Lines of code are those with more than comments, without docstrings; private classes of
#: two files may share a name, as may a room's file and the room itself.
LIMITS: Mapping[str, int] = {
    "lines of code of the product": 78_470,
    "files of the product above 350 lines": 0,
    "rooms of more than fifteen files": 1,
    "class names in several files": 0,
    "functions of more than eight parameters": 0,
}
#: Likewise of what is beside the product; all of it is parsed for that.
LINES_BESIDE: Mapping[str, int] = {"tests": 48_472, "experiments": 5_000}
#: Lines of a file, files of a room, and parameters of a function, above which they count.
LONG, MANY, WIDE = 350, 15, 8


def lines_of_code(text: str, tree: ast.Module) -> int:
    documented: set[int] = set()
    for node in statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
                node, clean=False) is not None:
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return sum(number not in documented and bool(line.strip()) and not line.lstrip().startswith("#")
               for number, line in enumerate(text.splitlines(), 1))


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller sees: those of ``self`` and what collects the rest are none."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    own = bool(arguments) and arguments[0].arg in ("self", "cls")
    return len(arguments) - own + len(node.args.kwonlyargs)


def measured(sources: Sources) -> dict[str, int]:
    texts = {name: path.read_text(encoding="utf-8") for name, path in sources.files.items()}
    rooms = Counter(sources.folder(name) for name, path in sources.files.items() if path.name != "__init__.py")
    nodes = [(name, node) for name, tree in sources.trees.items() for node in statements(tree)]
    classes = Counter(name for name, _ in {(node.name, place) for place, node in nodes
                                           if isinstance(node, ast.ClassDef)})
    return {
        "lines of code of the product": sum(lines_of_code(texts[name], tree) for name, tree in sources.trees.items()),
        "files of the product above 350 lines": sum(len(text.splitlines()) > LONG for text in texts.values()),
        "rooms of more than fifteen files": sum(count > MANY for count in rooms.values()),
        "class names in several files": sum(count > 1 for count in classes.values()),
        "functions of more than eight parameters": sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and parameters(node) > WIDE for _, node in nodes),
    }


def lines_beside(folder: str) -> int:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))
    return sum(lines_of_code(text, ast.parse(text)) for text in texts)


def test_the_house_does_not_grow() -> None:
    found = measured(WEFT)
    assert found.keys() == LIMITS.keys()
    assert not {name: (number, LIMITS[name]) for name, number in found.items() if number > LIMITS[name]}


@pytest.mark.slow
def test_nothing_beside_the_product_grows() -> None:
    assert not {name: lines for name, limit in LINES_BESIDE.items() if (lines := lines_beside(name)) > limit}


if __name__ == "__main__":
    for what, number in (*measured(WEFT).items(), *((name, lines_beside(name)) for name in LINES_BESIDE)):
        print(f"{number:7,} {what}")

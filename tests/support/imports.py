"""Who imports whom, read from the source: files of the four rooms ``weft``, ``runtime``, ``models`` and ``solver``.

Everything is imported as ``weft.*``; the folders of three rooms stand at the top of the repository. Imports inside
functions count, those for types alone (``if TYPE_CHECKING``) do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import networkx as nx

#: The folders at the top of the repository that are weft, from the front door down.
ROOMS = ("weft", "runtime", "models", "solver")


def located(root: Path, name: str) -> Path:
    """Where the file or folder ``name`` of the repository is: in an sdist the folders that are links in ``weft`` are
    there, and not at the top."""
    path = root / name
    return path if path.exists() or name.split("/")[0] not in ROOMS[1:] else root / "weft" / name


class Sources:
    """The Python files of the repository at ``root``, by the name that they are imported by."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {self._module(path): path for room in ROOMS for path in sorted(located(root, room).rglob("*.py"))
                      if not any(folder.is_symlink() for folder in path.parents)}

    def name(self, path: Path) -> str:
        """The path of a file from the root of the repository."""
        name = path.relative_to(self.root).as_posix()
        return name.removeprefix("weft/") if name.startswith(tuple(f"weft/{room}/" for room in ROOMS[1:])) else name

    def _module(self, path: Path) -> str:
        parts = self.name(path).removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join(parts) if parts[0] == "weft" else "weft." + ".".join(parts)

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Every file, parsed."""
        return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in self.files.items()}

    def folder(self, module: str) -> str:
        """The folder of a module, from the root of the repository."""
        return self.name(self.files[module]).rpartition("/")[0]

    def imports(self, module: str) -> Iterator[str]:
        """The modules of weft that ``module`` imports."""
        for name in imported(self.trees[module]):
            found = name if name in self.files else name.rpartition(".")[0]
            if found in self.files and found != module:
                yield found

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """An edge from each file to each that it imports."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.files)
        graph.add_edges_from((module, other) for module in self.files for other in self.imports(module))
        return graph

    @property
    def entrances(self) -> set[str]:
        """The modules that only give the rooms' public names, or start the command line; what these import is above
        them, and no arrow between rooms."""
        return {"weft.__main__", *(f"weft.{room}" for room in ROOMS[1:])}

    def between(self, level: int) -> nx.DiGraph[str]:
        """The same between folders of at most ``level`` names, where these differ, without the entrances."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        place = {module: "/".join(self.folder(module).split("/")[:level]) for module in self.files
                 if module not in self.entrances}
        graph.add_nodes_from(place.values())
        graph.add_edges_from((place[one], place[other]) for one, other in self.graph.edges
                             if one in place and other in place and place[one] != place[other])
        return graph


def imported(tree: ast.AST, *, types_too: bool = False, at_module_level: bool = False) -> Iterator[str]:
    """Every dotted name that the statements of ``tree`` import: of ``from a import b`` both ``a.b`` and, as what stands
    before the last dot, ``a``. ``types_too``: those for types alone count as well. ``at_module_level``: those inside
    functions do not."""
    for node in statements(tree, types_too, at_module_level):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(tree: ast.AST, types_too: bool = True, at_module_level: bool = False) -> Iterator[ast.AST]:
    """All nodes of ``tree`` whose imports count, by default all, but for expressions, which hold none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if at_module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and _is_for_types(node.test) and not types_too:
            waiting.extend(node.orelse)
        else:
            waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


def _is_for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


#: The repository's own, parsed once for all tests that a process runs.
WEFT = Sources(Path(__file__).resolve().parents[2])

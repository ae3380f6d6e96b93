"""What docstrings and comments point at is there: ``:mod:`` and the like by name, files by path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from experiments.house.imports import ROOMS, Sources, located
from tests.support.paths import ROOT

FOLDERS = (*ROOMS, "tests", "experiments")
REFERENCE = re.compile(r":(?:mod|func|class|meth|data|attr|exc):`~?([\w.]+)`")
#: A file of the repository, by its path; ``NAME`` and the like stand for any.
PATH = re.compile(r"(?<![\w./-])(?:solver|models|runtime|weft|tests|experiments|docs)/[\w/]+\.(?:py|md|json|yaml)\b")
#: Names in docstrings that only show what a path looks like, or are in another kind of file.
EXAMPLES = {"models/model.json", "solver/a.py", "solver/period/b.py"}


@cache
def sources() -> dict[Path, str]:
    """All Python files by path, each once: not by way of the links in ``weft``."""
    paths = [*Sources(ROOT).files.values(), *(path for folder in FOLDERS[len(ROOMS):]
                                             for path in sorted((ROOT / folder).rglob("*.py")))]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def module_file(name: str) -> Path | None:
    """The file of a module: ``weft.solver.timing`` is solver/timing.py."""
    parts = name.split(".")
    if parts[0] == "weft" and len(parts) > 1 and parts[1] in ROOMS[1:]:
        parts = parts[1:]
    place = located(ROOT, "/".join(parts))
    beside = located(ROOT, "/".join(parts) + ".py")
    return next((path for path in (beside, place / "__init__.py") if path.is_file()), None)


@cache
def names(path: Path) -> set[str]:
    """What a module has: definitions, methods and attributes of classes, assignments, imports; ``__all__`` of lazy
    names too."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(prefix + name)
                    if isinstance(node, ast.ClassDef):
                        walk(node.body, f"{prefix}{name}.")
                    else:  # what a constructor sets
                        found.update(prefix + inner.attr for inner in ast.walk(node)
                                     if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store))
                case ast.Assign():
                    found.update(prefix + inner.id for target in node.targets for inner in ast.walk(target)
                                 if isinstance(inner, ast.Name))
                    if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
                        found.update(inner.value for inner in ast.walk(node.value)
                                     if isinstance(inner, ast.Constant) and isinstance(inner.value, str))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    found.update(prefix + (alias.asname or alias.name) for alias in aliases)
                case ast.If():
                    walk(node.body, prefix)

    walk(ast.parse(sources()[path]).body, "")
    return found


def leads_somewhere(target: str, path: Path) -> bool:
    """Whether ``target`` is a module or a name in one, or stands in the file or one beside it; names of other
    packages do."""
    parts = target.split(".")
    if parts[0] not in ("weft", "tests", "experiments"):
        own = {name for beside in path.parent.glob("*.py") for name in names(beside)}
        return parts[0] not in _ours() or any(f".{name}".endswith(f".{target}") for name in own)
    for cut in range(len(parts), 0, -1):
        file = module_file(".".join(parts[:cut]))
        if file is not None:
            rest = parts[cut:]
            # Of a name that the module imports, attributes are not looked up.
            return not rest or ".".join(rest) in names(file) or (rest[0] in names(file) and len(rest) > 1)
    return False


@cache
def _ours() -> set[str]:
    """All that weft's own files define."""
    return {name.split(".")[-1] for path in sources() for name in names(path)} - {"time"}


def broken() -> Iterator[str]:
    for path, text in sources().items():
        for target in REFERENCE.findall(re.sub(r"(?<=[\w.])\s*\n\s*(?=[\w.]*`)", "", text)):
            if not leads_somewhere(target, path):
                yield f"{path.relative_to(ROOT)}: {target}"


@pytest.mark.slow
def test_references_of_docstrings_lead_somewhere() -> None:
    found = sorted(set(broken()))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_paths_in_docstrings_and_comments_exist(folder: str) -> None:
    missing = sorted({f"{path.relative_to(ROOT)}: {named}" for path, text in sources().items()
                      if path.is_relative_to(located(ROOT, folder))
                      for named in PATH.findall(_told(text))
                      if not located(ROOT, named).exists() and named not in EXAMPLES})
    assert not missing, "\n".join(missing)


def _told(text: str) -> str:
    """The comments and docstrings of a file."""
    tree = ast.parse(text)
    documented = [ast.get_docstring(node, clean=False) or "" for node in ast.walk(tree)
                  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    return "\n".join([*documented, *re.findall(r"^\s*#.*$", text, re.MULTILINE)])

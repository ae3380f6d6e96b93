"""What commits have changed in the files that an experiment measures, wherever these stood at the time.

A file is followed through renames: a commit that touched ``solver/a.py`` counts for ``solver/period/b.py`` if that is
its name today. A commit counts where it changed what a file does: Python files are compared as syntax trees without
imports, docstrings and comments, so a commit that only moves files and mends their imports does not count. (Neither
does one that imports another function of the same name; whoever does that writes a function, which counts.) Renaming a
function or a variable does count: that nothing else was meant cannot be told.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

__all__ = ["Changes", "is_measured"]

_EXCLUDED = ":(exclude)"
#: What git says of a file that is not there.
_NOTHING = "0" * 40


def is_measured(path: str, measures: Sequence[str]) -> bool:
    """Whether ``path`` is one of ``measures`` or lies in one, and in none that is excluded (``:(exclude)folder``)."""
    def within(folders: Sequence[str]) -> bool:
        return any(path == folder or path.startswith(f"{folder}/") for folder in folders)

    excluded = [measure.removeprefix(_EXCLUDED) for measure in measures if measure.startswith(_EXCLUDED)]
    return within([measure for measure in measures if not measure.startswith(_EXCLUDED)]) and not within(excluded)


@dataclass(frozen=True)
class _Change:
    """One file in one commit: its name today, and the blobs before and after."""

    today: str
    before: str
    after: str


@dataclass(frozen=True)
class Changes:
    """The commits after ``since`` up to HEAD in the repository at ``root``, newest first."""

    root: Path
    since: str

    def count(self, measures: Sequence[str]) -> int | None:
        """How many commits changed what the measured files do; ``None`` where git does not know ``since``."""
        if self._commits is None:
            return None
        return sum(any(is_measured(change.today, measures) and not self._is_alike(change) for change in changes)
                   for changes in self._commits)

    @cached_property
    def _commits(self) -> list[list[_Change]] | None:
        told = _git(self.root, "log", "--topo-order", "--raw", "--no-abbrev", "-M", "-l0", "--format=%x00",
                         f"{self.since}..HEAD")
        if told is None:
            return None
        today: dict[str, str] = {}  # by the name at the time, where that was another
        commits = []
        for commit in told.decode("utf-8", "surrogateescape").split("\0")[1:]:
            changes, older = [], {}
            for line in commit.splitlines():
                if line.startswith(":"):
                    said, *paths = line.split("\t")
                    _, _, before, after, _ = said.split(" ")
                    name = today.get(paths[-1], paths[-1])
                    changes.append(_Change(name, before, after))
                    if len(paths) == 2:
                        older[paths[0]] = name
            today.update(older)  # with all of the commit: a file may take the name of another
            commits.append(changes)
        return commits

    def _is_alike(self, change: _Change) -> bool:
        """Whether the file does the same before and after, as far as that can be told."""
        if change.before == change.after:
            return True
        if _NOTHING in (change.before, change.after) or not change.today.endswith(".py"):
            return False
        return _are_alike(self.root, change.before, change.after)


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        ended = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except OSError:
        return None
    return ended.stdout if ended.returncode == 0 else None


@cache
def _are_alike(root: Path, before: str, after: str) -> bool:
    """Whether two Python files, as git's blobs, mean the same."""
    texts = [_git(root, "cat-file", "blob", blob) or b"" for blob in (before, after)]
    try:
        one, other = (ast.dump(_Bare().visit(ast.parse(text))) for text in texts)
    except SyntaxError:
        return False
    return one == other


class _Bare(ast.NodeTransformer):
    """A syntax tree without imports and docstrings."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body and (
                    isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)):
                body = body[1:]
            node.body = [child for child in body  # type: ignore[attr-defined]
                         if not isinstance(child, ast.Import | ast.ImportFrom)]
        return super().generic_visit(node)

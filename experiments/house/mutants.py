"""Which faults in what proves and judges would the tests see? One small change at a time, and the room's tests.

    python -m experiments.house.mutants [--per-file 4 | --sample 30] [--seed 0] [--room judge ...] [--again]

A mutant is a file with one change: a comparison, an operator, a constant, a function (``min`` for ``max``, ``any`` for
``all``, ``floor`` for ``ceil``), a condition, ``and`` for ``or``, ``break`` for ``continue``. Texts, types and
assertions stay. Of each file so many are drawn, or of each room, where ``--sample`` says how many. Each runs in a copy
of the tree against the tests of its file and then its room's quick tests, which stop at the first failure; one that
they do not end within :data:`LIMIT` seconds counts as killed. What survives may be equal to the original in all it
does: the survivors are listed, to be read. ``--again`` runs only those that survived the last time, and keeps how many
were killed at first. Writes results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, ROOT, Record

__all__ = ["ROOMS", "Mutant", "mutants_of"]

#: Seconds that the tests of one mutant may take, and one test of them.
LIMIT, LIMIT_OF_ONE = 400, 60
#: How pytest ends where all tests passed, or where there were none.
GOOD, NO_TESTS = 0, 5
#: What is changed, and the tests that must notice.
ROOMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "judge": (("solver/judge",), ("tests/solver/judge", "tests/properties/test_judge.py",
                                  "tests/properties/test_judge_wide.py", "tests/properties/test_judge_lanes.py",
                                  "tests/properties/test_columns.py", "tests/properties/test_claims.py")),
    "bounds": (("solver/bounds",), ("tests/solver/bounds", "tests/properties/test_bounds.py")),
    "refuters": (("solver/period/refuters",), ("tests/solver/period",)),
    "choices": (("solver/choices",), ("tests/solver/choices", "tests/properties/test_wide_problems.py")),
    "cuts": (("models/cuts", "solver/variants", "weft/app/cuts"),
             ("tests/models/cuts", "tests/solver/variants", "tests/weft/app/cuts", "tests/weft/app/test_all_cuts.py",
              "tests/properties/test_unequal_cuts.py")),
    "layouts": (("models/layouts", "models/communication/passes"),
                ("tests/models/layouts", "tests/models/communication/passes")),
}
_COMPARED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
_OPERATED: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Mult}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}


@dataclass(frozen=True)
class Mutant:
    """The change ``number`` of ``file``: ``change`` at ``line``."""

    file: str
    number: int
    line: int
    change: str


class _Change(ast.NodeTransformer):
    """Walks what may be changed, in order; with ``wanted`` makes that change, and notes all in ``found``."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.found: list[tuple[int, str]] = []

    def _takes(self, node: ast.AST, change: str) -> bool:
        self.found.append((getattr(node, "lineno", 0), change))
        return len(self.found) - 1 == self.wanted

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.AnnAssign, ast.arg)):
            node = copy.copy(node)
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                node.value = self.visit(node.value)
            return node
        if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)) or _is_text(node):
            return node
        if isinstance(node, ast.FunctionDef):
            node.returns, node.decorator_list, returns, decorators = None, [], node.returns, node.decorator_list
            node = self.generic_visit(node)
            assert isinstance(node, ast.FunctionDef)
            node.returns, node.decorator_list = returns, decorators
            return node
        return self._changed(self.generic_visit(node))

    def _changed(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Compare(ops=[first, *rest]) if type(first) in _COMPARED:
                other = _COMPARED[type(first)]
                if self._takes(node, f"{type(first).__name__} becomes {other.__name__}"):
                    node.ops = [other(), *rest]
            case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATED:
                other_op = _OPERATED[type(node.op)]
                if self._takes(node, f"{type(node.op).__name__} becomes {other_op.__name__}"):
                    node.op = other_op()
            case ast.BoolOp():
                if self._takes(node, "and/or"):
                    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            case ast.Call(func=ast.Name(id=name) as called) if name in _CALLED:
                if self._takes(node, f"{name} becomes {_CALLED[name]}"):
                    node.func = ast.copy_location(ast.Name(_CALLED[name], ast.Load()), called)
            case ast.Constant(value=bool(value)):
                if self._takes(node, f"{value} becomes {not value}"):
                    return ast.copy_location(ast.Constant(not value), node)
            case ast.Constant(value=int(value)):
                if self._takes(node, f"{value} becomes {value + 1}"):
                    return ast.copy_location(ast.Constant(value + 1), node)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                if self._takes(node, f"no {type(node.op).__name__}"):
                    return node.operand
            case ast.If() | ast.IfExp():
                if self._takes(node, "the condition is turned round"):
                    node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            case ast.Break():
                if self._takes(node, "break becomes continue"):
                    return ast.copy_location(ast.Continue(), node)
            case ast.Continue():
                if self._takes(node, "continue becomes break"):
                    return ast.copy_location(ast.Break(), node)
        return node


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        listed = isinstance(target, ast.Name) and target.id == "__all__"
        return listed or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    return isinstance(node, ast.Raise)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of ``source``, the text of ``file``."""
    walk = _Change()
    walk.visit(ast.parse(source))
    return [Mutant(file, number, line, change) for number, (line, change) in enumerate(walk.found)]


def mutated(source: str, number: int) -> str:
    """``source`` with the change ``number``."""
    return ast.unparse(ast.fix_missing_locations(_Change(number).visit(ast.parse(source))))


def _copied(target: Path) -> Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def _survives(tree: Path, mutant: Mutant, tests: Sequence[str], turn: int) -> bool:
    path = tree / mutant.file
    source = path.read_text()
    path.write_text(mutated(source, mutant.number))
    os.utime(path, (turn, turn))  # bytecode of the mutant before is not taken for this one's
    stem = Path(mutant.file).stem
    first = [name for name in _test_files(tree, tests) if Path(name).stem == f"test_{stem}"]
    others = [name for name in tests if name not in first]
    try:
        for some in ([first] if first else []) + [others]:
            if _status(tree, some, "-x", f"--timeout={LIMIT_OF_ONE}") not in (GOOD, NO_TESTS):
                return False
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(source)
    return True


def _status(tree: Path, tests: Sequence[str], *options: str) -> int:
    """How pytest ends, of the quick ones of ``tests``."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not rare", *options,
               *tests]
    return subprocess.run(command, cwd=tree, capture_output=True, timeout=LIMIT, check=False,
                          env=_environment(tree)).returncode


def _environment(tree: Path) -> dict[str, str]:
    """Bytecode is kept beside the tree, as most of it serves every mutant."""
    inherited = {name: value for name, value in os.environ.items()
                 if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return {**inherited, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": f"{tree}.bytecode"}


def _test_files(tree: Path, tests: Sequence[str]) -> Iterator[str]:
    for entry in tests:
        if (tree / entry).is_dir():
            yield from (str(path.relative_to(tree)) for path in sorted((tree / entry).rglob("test_*.py")))
        else:
            yield entry


def _drawn(room: str, per_file: int, sample: int | None, seed: int) -> list[Mutant]:
    folders, _ = ROOMS[room]
    draw = random.Random(seed)
    files = [mutants_of(str(path.relative_to(ROOT)), path.read_text())
             for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    drawn = ([_some(draw, known, per_file) for known in files] if sample is None
             else [_some(draw, list(chain(*files)), sample)])
    return sorted(chain(*drawn), key=lambda mutant: (mutant.file, mutant.number))


def _some(draw: random.Random, known: list[Mutant], most: int) -> list[Mutant]:
    """``most`` of those ``known``, or all."""
    return draw.sample(known, min(most, len(known)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants, and list those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--per-file", type=int, default=4)
    parser.add_argument("--sample", type=int, help="so many of each room, in place of so many of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", choices=list(ROOMS))
    parser.add_argument("--again", action="store_true", help="only those that survived the last time")
    parser.add_argument("--output", type=Path, default=RESULTS / "mutants.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    found: dict[str, Any] = dict(record.kept().get("rooms", {}))
    turns = count(1_000_000_000)
    with tempfile.TemporaryDirectory() as folder:
        tree = _copied(Path(folder) / "tree")
        for room in options.room or ROOMS:
            if _status(tree, ROOMS[room][1], "--collect-only") != GOOD:
                raise SystemExit(f"the tests of {room} cannot be collected")
            tried = ([Mutant(**entry) for entry in found[room]["survivors"]] if options.again
                     else _drawn(room, options.per_file, options.sample, options.seed))
            survivors = []
            for mutant in tried:
                if _survives(tree, mutant, ROOMS[room][1], next(turns)):
                    survivors.append(asdict(mutant))
                    print(f"survives: {mutant.file}:{mutant.line}: {mutant.change}", flush=True)
            all_of_them = found[room]["mutants"] if options.again else len(tried)
            killed = all_of_them - len(survivors)
            at_first = found[room].get("killed_at_first", killed) if options.again else killed
            found[room] = {"mutants": all_of_them, "killed_at_first": at_first, "killed": killed,
                           "survivors": survivors}
            print(f"{room}: {killed} of {all_of_them} killed", flush=True)
            record.write({"rooms": found}, part=options.again or options.room is not None)
    return 0


if __name__ == "__main__":
    main()

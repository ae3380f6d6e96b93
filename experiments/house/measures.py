"""The house in numbers, before and after it was moved: sizes, circles, parameters, what a solve passes through, words.

    python -m experiments.house.measures [--before COMMIT] [--after COMMIT] [--output house.json]

Each commit is unpacked to a temporary folder and measured there, ``.`` is the working tree. Printed is a table in
Markdown. Both layouts are understood: ``weft.solver`` and the like, and the packages of their own that these were.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networkx as nx

from experiments.house.imports import ROOMS, Sources, imported
from experiments.lib.provenance import RESULTS, ROOT, Record, git
from weft.solver.io.problem_files import problem_to_json
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

__all__ = ["MOVED", "WORDS", "main", "measured"]

#: The last commit before the move.
MOVED = "5bf3b5f"
#: Above these a function, a file or a folder is large; parameters do not count those of a dataclass's constructor.
LINES, FILE_LINES, FILES, PARAMETERS = 50, 350, 15, 8
#: Words that meant several things, or meant something to weft alone: as a word of a text, and as a part of a name.
WORDS = ("rows", "turn", "turns", "fold", "folds", "track", "tracks", "lags", "closure", "contraction", "copies",
         "spans", "seeds", "stray", "wish", "hopeless", "keyed", "asked", "alone", "ties")

#: What runs in a process of its own: one solve, told as JSON. ``argv``: the problem, the root, whether calls are
#: followed.
_PROBE = """
import io, json, os, sys
from contextlib import redirect_stdout
problem, root, follow = sys.argv[1:]
rooms = tuple(os.path.join(os.path.realpath(root), room) + os.sep for room in ("weft", "runtime", "models", "solver"))
known = {}
def ours(name):
    if name not in known:
        real = os.path.realpath(name)
        known[name] = real if real.startswith(rooms) else None
    return known[name]
stack, deepest, entered = [], [], set()
def profile(frame, event, argument):
    global deepest
    if event in ("call", "return"):
        file = ours(frame.f_code.co_filename)
        if file is None:
            return
        if event == "call":
            entered.add(file)
            stack.append((file, frame.f_code.co_name))
            if len(stack) > len(deepest):
                deepest = list(stack)
        elif stack:
            stack.pop()
try:
    from weft.cli.main import main
except ImportError:
    from weft.cli import main
if follow == "yes":
    sys.setprofile(profile)
with redirect_stdout(io.StringIO()):
    status = main(["solve", problem, "--micro-batches", "8", "--effort", "2", "--time-limit", "120", "--json"])
sys.setprofile(None)
files = {ours(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)} - {None}
short = lambda file: os.path.relpath(file, os.path.realpath(root))
print(json.dumps({"status": status, "imported": len(files), "entered": len(entered),
                  "deepest": [short(file) + " " + name for file, name in deepest]}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure both, print the table and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", default=MOVED, metavar="COMMIT")
    parser.add_argument("--after", default="HEAD", metavar="COMMIT")
    parser.add_argument("--output", default=RESULTS / "house.json", type=Path)
    options = parser.parse_args(arguments)
    record, known = Record(options.output), {}
    for commit in {options.before, options.after}:
        with unpacked(commit) as root:
            known[commit] = {"commit": commit if commit == "." else git("rev-parse", commit), **measured(root)}
    found = {"before": known[options.before], "after": known[options.after]}
    print(table(found["before"], found["after"]))
    record.write(found)
    return 0


@contextmanager
def unpacked(commit: str) -> Iterator[Path]:
    """The files of ``commit`` in a temporary folder; of ``.`` those that are here."""
    if commit == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "files.tar"
        subprocess.run(["git", "archive", "--format=tar", f"--output={archive}", commit], cwd=ROOT, check=True)
        root = Path(folder) / "files"
        with tarfile.open(archive) as files:
            files.extractall(root, filter="tar")
        yield root


def measured(root: Path) -> dict[str, Any]:
    """All numbers of the sources at ``root``."""
    sources = Sources(root)
    return {"lines": _lines(sources), "folders": _folders(sources), "files": _files(sources),
            "functions": _functions(sources), "circles": _circles(sources), "solve": _solve(root),
            "tests": _tests(sources), "words": _words(sources)}


def _lines(sources: Sources) -> dict[str, int]:
    found = Counter({room: 0 for room in ROOMS})
    for path in sources.files.values():
        found[sources.name(path).split("/")[0]] += _length(path)
    for folder in ("tests", "experiments"):
        found[folder] = sum(_length(path) for path in (sources.root / folder).rglob("*.py"))
    return dict(found)


def _length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _folders(sources: Sources) -> dict[str, Any]:
    """How many files each has of its own; registries of one file a technique are in the list too."""
    count = Counter(sources.folder(module) for module, path in sources.files.items() if path.name != "__init__.py")
    return {"count": len(count), "largest": dict(count.most_common(8)),
            "over": sum(files > FILES for files in count.values())}


def _files(sources: Sources) -> dict[str, Any]:
    sizes = Counter({sources.name(path): _length(path) for path in sources.files.values()})
    return {"count": sum(path.name != "__init__.py" for path in sources.files.values()),
            "largest": dict(sizes.most_common(5)), "over": sum(lines > FILE_LINES for lines in sizes.values())}


def _functions(sources: Sources) -> dict[str, Any]:
    lines: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    for module, tree in sources.trees.items():
        for name, node in _defined(tree.body, module):
            lines[name] = (node.end_lineno or node.lineno) - node.lineno + 1
            told = node.args
            every = [*told.posonlyargs, *told.args, *told.kwonlyargs, *filter(None, (told.vararg, told.kwarg))]
            parameters[name] = sum(argument.arg not in ("self", "cls") for argument in every)
    return {"count": len(lines), "longest": dict(lines.most_common(5)),
            "over_lines": sum(count > LINES for count in lines.values()),
            "widest": dict(parameters.most_common(5)),
            "over_parameters": sum(count > PARAMETERS for count in parameters.values())}


def _defined(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods; those inside functions belong to these."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{prefix}.{node.name}")


def _circles(sources: Sources) -> dict[str, Any]:
    def in_circles(graph: nx.DiGraph[str]) -> list[list[str]]:
        return sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)

    chains = nx.dag_longest_path_length(nx.condensation(sources.graph)) + 1
    return {"files": in_circles(sources.graph), "rooms": in_circles(sources.between(2)),
            "longest_chain_of_imports": chains}


def _solve(root: Path) -> dict[str, Any]:
    """One solve of a small problem: files imported, files with a function that ran, and the deepest stack of calls."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        path.write_text(json.dumps(problem_to_json(_small())))
        plain, followed = (_probe(root, path, follow) for follow in ("no", "yes"))
    assert plain["status"] == followed["status"] == 0
    return {"files_imported": plain["imported"], "files_entered": followed["entered"],
            "deepest_stack": len(followed["deepest"]), "deepest": followed["deepest"]}


def _probe(root: Path, problem: Path, follow: str) -> dict[str, Any]:
    ended = subprocess.run([sys.executable, "-c", _PROBE, str(problem), str(root), follow], cwd=root, check=True,
                           capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)})
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def _small() -> Problem:
    """Four stages on two devices in a V, of unequal durations, with room for three activations."""
    devices = (0, 1, 1, 0)
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (devices[s],), duration, (1,), (),
                    (Dependency(f"F{s - 1}"),) if s else ()) for s, duration in enumerate((2, 1, 3, 3))]
    blocks += [Block(f"B{s}", BlockKind.BACKWARD, (devices[s],), duration, (-1,), (),
                     (Dependency(f"B{s + 1}" if s < 3 else "F3"),)) for s, duration in
               sorted(enumerate((2, 1, 1, 2)), reverse=True)]
    return Problem("small V", (Device("gpu0", 3), Device("gpu1", 3)), tuple(blocks))


def _tests(sources: Sources) -> dict[str, Any]:
    """Files that no test imports, without those that only say what a room is."""
    named: set[str] = set()
    for path in (sources.root / "tests").rglob("*.py"):
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            named |= {name, name.rpartition(".")[0]}
    files = {module for module, path in sources.files.items() if path.name not in ("__init__.py", "__main__.py")}
    return {"files": len(files), "imported_by_no_test": len(files - named)}


def _words(sources: Sources) -> dict[str, int]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources.files.values())
    return {word: len(re.findall(rf"(?<![A-Za-z])[{word[0].upper()}{word[0]}]{word[1:]}(?![a-z])", text))
            for word in WORDS}


def table(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Both beside each other, in Markdown."""
    def largest(found: dict[str, int]) -> str:
        return ", ".join(f"{name} {count}" for name, count in list(found.items())[:5])

    def first(found: dict[str, int]) -> str:
        name, count = next(iter(found.items()))
        return f"{count} ({name})"

    rows: list[tuple[str, Any]] = [
        ("files per folder, largest", lambda of: largest(of["folders"]["largest"])),
        (f"folders with more than {FILES} files of their own", lambda of: of["folders"]["over"]),
        ("folders, files", lambda of: f"{of['folders']['count']}, {of['files']['count']}"),
        ("largest file, lines", lambda of: first(of["files"]["largest"])),
        (f"files over {FILE_LINES} lines", lambda of: of["files"]["over"]),
        ("circles of files", lambda of: len(of["circles"]["files"])),
        ("circles of rooms", lambda of: len(of["circles"]["rooms"])),
        ("parameters of the widest function", lambda of: first(of["functions"]["widest"])),
        (f"functions with more than {PARAMETERS} parameters", lambda of: of["functions"]["over_parameters"]),
        (f"functions over {LINES} lines", lambda of: of["functions"]["over_lines"]),
        ("longest function, lines", lambda of: first(of["functions"]["longest"])),
        ("functions", lambda of: of["functions"]["count"]),
        ("longest chain of imports, files", lambda of: of["circles"]["longest_chain_of_imports"]),
        ("files that a small solve imports", lambda of: of["solve"]["files_imported"]),
        ("files whose functions it runs", lambda of: of["solve"]["files_entered"]),
        ("its deepest stack, weft's own frames", lambda of: of["solve"]["deepest_stack"]),
        ("files that no test imports", lambda of: f"{of['tests']['imported_by_no_test']} of {of['tests']['files']}"),
        ("lines: weft, runtime, models, solver", lambda of: ", ".join(f"{of['lines'][room]:,}" for room in ROOMS)),
        ("lines of tests", lambda of: f"{of['lines']['tests']:,}"),
        *((f"uses of *{word}*", lambda of, word=word: of["words"][word]) for word in WORDS)]
    lines = [f"| {name} | {read(before)} | {read(after)} |" for name, read in rows]
    return "\n".join(["| measure | before | after |", "|---|---|---|", *lines])


if __name__ == "__main__":
    main()

"""Where an experiment's numbers come from: the commit, the command and the machine, in every JSON of this folder.

A :mod:`~experiments.lib.script` has a :class:`Record` from its start and writes its file through it. The file's
``provenance`` then holds

* ``commit``: of the working tree when the run began; ``dirty``: whether source files differed from it;
* ``command``: as it was typed, with paths relative to the repository;
* ``machine``: CPU, cores, memory (GiB) and the load on it as the run began; versions of Python, ortools and torch;
* ``date`` (UTC) of the start; ``minutes`` of wall time and of CPU time, child processes included.

Some older files have been made in parts: their ``partial`` are the later runs, each of which wrote a part anew.

What an older file does not tell is :data:`NOT_RECORDED`.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from weft.solver.io.writing import write_atomically

ROOT = Path(__file__).resolve().parents[2]
#: What experiments have written, and published figures that they read.
RESULTS, DATA = ROOT / "experiments" / "results", ROOT / "experiments" / "data"
NOT_RECORDED = "not recorded"
#: One measurement among several of a kind.
Row: TypeAlias = dict[str, Any]
#: What an experiment runs: changes elsewhere (its own output among them) do not make a run dirty.
_SOURCES = ("*.py", "*.yaml", "models/data")


def given(name: str) -> Any:
    """A file of published figures, or of cases."""
    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))


class Record:
    """One run of an experiment, from now on, and the file that it writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began, self._cpu = time.monotonic(), _cpu_seconds()
        changes = git("status", "--porcelain", "--", *_SOURCES)
        self._start: dict[str, Any] = {
            "commit": git("rev-parse", "HEAD") or NOT_RECORDED,
            "dirty": NOT_RECORDED if changes is None else bool(changes),
            "command": _command(sys.orig_argv), "machine": machine(),
            "date": datetime.now(UTC).isoformat(" ", "minutes")}

    @property
    def provenance(self) -> dict[str, Any]:
        """Of this run, as far as it has come."""
        return {**self._start, "minutes": {"wall": round((time.monotonic() - self._began) / 60, 2),
                                           "cpu": round((_cpu_seconds() - self._cpu) / 60, 2)}}

    def write(self, found: Mapping[str, Any]) -> None:
        """Write ``found`` with its provenance, as far as the run has come."""
        write_atomically(self.path, json.dumps({"provenance": self.provenance, **found}, indent=1) + "\n")

    def rows(self, found: Iterable[Row], summed: Callable[[list[Row]], Mapping[str, Any]] = lambda rows: {},
             **beside: Any) -> list[Row]:
        """Print each row as it comes, and write all that have come: with ``beside``, and what sums them up."""
        rows: list[Row] = []
        for row in found:
            rows.append(row)
            print(json.dumps(row), flush=True)
            self.write({**beside, **summed(rows), "rows": rows})
        if not rows:
            self.write({**beside, **summed(rows), "rows": rows})
        return rows


def machine() -> dict[str, Any]:
    """On what, and beside how much else, something is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": _cpu(), "cores": os.cpu_count(), "memory_gib": round(memory, 1),
            "load": round(os.getloadavg()[0], 2), "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(), **{name: _version(name) for name in ("ortools", "torch")}, **_gpu()}


def _gpu() -> dict[str, str]:
    """The GPU of an experiment that has loaded torch, where there is one."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_available() else {}


def git(*arguments: str) -> str | None:
    """What git says of this repository; ``None`` where there is no git or no repository."""
    try:
        ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or NOT_RECORDED


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command(words: Sequence[str]) -> str:
    """``words`` without this machine's paths: the interpreter by its name, files relative to the repository, no output
    elsewhere."""
    said = ["python", *(word.replace(f"{ROOT}/", "") for word in words[1:])]
    if "--output" in said and Path(said[(at := said.index("--output")) + 1]).is_absolute():
        del said[at:at + 2]
    return shlex.join(said)


def _cpu_seconds() -> float:
    return sum(usage.ru_utime + usage.ru_stime
               for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))

"""Ranks for tests, forked from one process that has imported everything once.

A Python that imports torch takes seconds of a core, and these tests start some eighty ranks. So a *nursery*, a process
without threads or groups of its own, imports a rank's module when it is first asked for it, and forks each rank: a
process of its own from then on, with its own output, environment and death. (A test
or two start theirs by :func:`weft.runtime.ranks.launch.launch_local`, as users' ranks are started: each a new Python.)

Run as a program (``python -m tests.support.ranks``), this file is the nursery.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.support.paths import ROOT
from weft.runtime.ranks.children import end_with_parent
from weft.runtime.ranks.launch import Ended, free_port, rank_environment

#: Seconds that ranks have, and that each of them waits for others: far more than a busy machine needs, as only what
#: hangs should meet it. It is less than a test has (``timeout`` in ``pyproject.toml``).
PATIENCE = 900.0

#: What torch imports at the first optimizer, and what the executor imports late.
LATE = ("torch._dynamo", "torch.distributed.checkpoint", "torch.profiler", "weft.runtime.replay.replay",
        "weft.runtime.replay.run", "weft.runtime.checkpoint.checkpoint", "weft.cli.main")


def launch_forked(ranks: int, command: Sequence[str], *, timeout: float = PATIENCE,
                  environment: Mapping[str, str] | None = None) -> list[Ended]:
    """:func:`~weft.runtime.ranks.launch.launch_local` for a ``command`` of the form ``[python, "-m", module, ...]``, in
    this tree."""
    python, option, module, *arguments = command
    assert (python, option) == (sys.executable, "-m")
    with tempfile.TemporaryDirectory() as folder:
        own = rank_environment(0, ranks, free_port())
        variables = {**{name: value for name, value in own.items() if os.environ.get(name) != value},
                     **(environment or {})}
        nursery = _nursery()
        assert nursery.stdin is not None and nursery.stdout is not None
        nursery.stdin.write(json.dumps([ranks, module, arguments, variables, timeout, folder]) + "\n")
        nursery.stdin.flush()
        ends = json.loads(nursery.stdout.readline())
        return [Ended(code, _read(folder, f"{rank}.out"), _read(folder, f"{rank}.err"), seconds, late)
                for rank, (code, seconds, late) in enumerate(ends)]


def finished(ranks: int, module: str, *arguments: str, **options: Any) -> list[Ended]:
    """The ends of ranks that run ``module``, all of which come to theirs."""
    ended = launch_forked(ranks, [sys.executable, "-m", module, *arguments], **options)
    assert [end.code for end in ended] == [0] * ranks, "\n".join(end.errors[-3000:] for end in ended)
    return ended


def found_by_parts(ranks: int, module: str, folder: Path, parts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What each rank found, by the part of ``module`` that it ran."""
    import torch

    finished(ranks, module, str(folder), *parts)
    return {part: [torch.load(folder / f"{part}.{rank}.pt") for rank in range(ranks)] for part in parts}


def _read(folder: str, name: str) -> str:
    return (Path(folder) / name).read_text(errors="replace")


@cache
def _nursery() -> subprocess.Popen[str]:
    """It ends when its standard input does, which is when this process ends."""
    started = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    atexit.register(started.communicate, timeout=60)
    return started


def nursery() -> None:
    """Start ranks for as long as somebody asks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what importing prints is no answer
    for line in iter(sys.stdin.readline, ""):
        answers.write(json.dumps(_raise(*json.loads(line))) + "\n")
        answers.flush()


def _raise(ranks: int, module: str, arguments: list[str], variables: dict[str, str], timeout: float,
           folder: str) -> list[tuple[int, float, bool]]:
    """Fork the ranks and wait for them: exit code, seconds, and whether it had to be killed, for each. Ranks that a
    signal has stopped are killed when all others have ended."""
    for name in LATE:
        importlib.import_module(name)
    with suppress(ImportError):  # the ranks say so
        importlib.import_module(module)
    begun = time.monotonic()
    rank_of = {_fork(rank, module, arguments, variables, folder): rank for rank in range(ranks)}
    found: dict[int, tuple[int, float, bool]] = {}
    stopped, late = set[int](), False
    while len(found) < ranks:
        process, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if process in rank_of and os.WIFSTOPPED(status):
            stopped.add(rank_of[process])
        elif process in rank_of:
            found[rank_of[process]] = os.waitstatus_to_exitcode(status), time.monotonic() - begun, late
        elif not late and (time.monotonic() - begun > timeout or len(stopped | found.keys()) == ranks):
            late = True
            for other, rank in rank_of.items():
                if rank not in found:
                    os.kill(other, signal.SIGKILL)
        else:
            time.sleep(0.01)
    return [found[rank] for rank in range(ranks)]


def _fork(rank: int, module: str, arguments: list[str], variables: dict[str, str], folder: str) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    nursery = os.getpid()
    process = os.fork()
    if not process:
        end_with_parent(nursery)
        _be(rank, module, arguments, variables, folder)
    return process


def _be(rank: int, module: str, arguments: list[str], variables: dict[str, str], folder: str) -> NoReturn:
    """Be that rank, to the end, with what Python does at the end of a script: a pipeline leaves its ranks there."""
    code = 1
    atexit._clear()  # what the nursery has registered is its own
    try:
        written = os.O_WRONLY | os.O_CREAT
        for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, os.open(f"{folder}/{rank}.out", written)),
                             (2, os.open(f"{folder}/{rank}.err", written))):
            os.dup2(file, number)
        os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    nursery()

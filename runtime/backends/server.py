"""The process that measures: it loads the model once, and each trial is a process of its own, forked from it.

It is started by :mod:`weft.runtime.backends.measuring`, as ``python -m weft.runtime.backends.server ADDRESS PARENT``,
with one thread, runs no kernel in several, and so may be forked. A trial that crashes or hangs ends alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import Any

from weft.runtime.backends.build import captured_of, example_of
from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.trial import (
    Found,
    Recorded,
    boundary_seconds,
    require_usable,
    try_eager,
    try_part,
    try_whole,
)
from weft.runtime.ranks.children import end_with_parent


@dataclass(frozen=True, slots=True)
class Opening:
    """What is measured: a ``.pt2`` file; ``sources``: files that register further backends."""

    path: str
    sources: tuple[str, ...]
    trains: bool
    repeats: int


@dataclass(frozen=True, slots=True)
class TrialJob:
    """``what``: ``"part"``, the first of ``choice``; ``"whole"``, all of it; ``"eager"``, each unit; or ``"boundary"``,
    between the backends of its first two, of so many ``numbers``. ``limit``: seconds of the clock. ``beside``: what a
    whole is timed beside (empty: eager)."""

    what: str
    choice: tuple[tuple[str, tuple[int, ...]], ...]
    limit: float
    numbers: int = 0
    beside: tuple[tuple[str, tuple[int, ...]], ...] = ()


class _Tries:
    def __init__(self, opening: Opening) -> None:
        self.opening, self.prepared = opening, set[str]()
        for number, source in enumerate(opening.sources):
            spec = importlib.util.spec_from_file_location(f"weft_backend_{number}", source)
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        self.graph = UnitGraph(captured_of(opening.path))
        args, kwargs = example_of(opening.path)
        from torch.utils._pytree import tree_flatten

        self.recorded = Recorded(self.graph, tree_flatten((args, kwargs))[0])

    def prepare(self, job: TrialJob) -> None:
        """Load what the backends of ``job`` are slow to load, once for all trials."""
        for name in {name for name, _ in (*job.choice, *job.beside)} - self.prepared:
            self.prepared.add(name)
            with contextlib.suppress(Exception):  # a trial will say it
                require_usable(name).prepare()

    def go(self, job: TrialJob) -> Found:
        """What ``job`` finds, in this process."""
        trains, repeats = self.opening.trains, self.opening.repeats
        if job.what == "whole":
            return try_whole(self.graph, self.recorded, job.choice, job.beside, trains=trains,
                             repeats=repeats)
        if job.what == "eager":
            return try_eager(self.graph, self.recorded, trains=trains, repeats=repeats)
        if job.what == "boundary":
            a, b = (require_usable(name) for name, _ in job.choice)
            return Found(boundary_seconds(a, b, job.numbers, repeats=repeats))
        (name, units), = job.choice
        return try_part(self.graph, self.recorded, require_usable(name), units, trains=trains, repeats=repeats)


def _in_child(try_it: Callable[[], Found], limit: float) -> Found:
    """What ``try_it`` gives in a process of its own, or why it gives nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setpgid(0, 0)
        _serve(try_it, writing)
    os.close(writing)
    told, until = b"", time.monotonic() + limit
    while (left := until - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        piece = os.read(reading, 65536)
        if not piece:
            break
        told += piece
    os.close(reading)
    late = time.monotonic() >= until
    if late:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # what it has started itself
            os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if late:
        return Found(refused=f"did not end within {limit:g} s")
    if os.WIFSIGNALED(status):
        return Found(refused=f"crashed by signal {os.WTERMSIG(status)} ({signal.Signals(os.WTERMSIG(status)).name})")
    if not told:
        return Found(refused=f"ended by itself with status {os.waitstatus_to_exitcode(status)}")
    found: Found = pickle.loads(told)
    return found


def _serve(try_it: Callable[[], Found], writing: int) -> None:
    """The child: it never returns. What backends print is nobody's."""
    end_with_parent(os.getppid())
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        found = try_it()
    except BaseException as error:  # whatever a backend raises
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        found = Found(refused=f"raised {type(error).__name__}: {lines[0] if lines else 'no message'}"[:300])
    data = pickle.dumps(found)
    while data:
        data = data[os.write(writing, data):]
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Answer jobs until there are no more."""
    address, parent = arguments
    end_with_parent(int(parent))
    with Client(address, authkey=bytes.fromhex(os.environ["WEFT_BACKENDS_KEY"])) as connection:
        try:
            import torch

            torch.set_num_threads(1)
            tries: Any = _Tries(connection.recv())
        except Exception as error:
            connection.send(f"{(str(error) or type(error).__name__).splitlines()[0]}")
            return
        connection.send(None)
        while (job := connection.recv()) is not None:
            tries.prepare(job)
            connection.send(_in_child(lambda job=job: tries.go(job), job.limit))  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1:])

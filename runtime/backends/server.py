"""The measuring process: it loads the model once, and each trial is a separate process, forked from it.

:mod:`weft.runtime.backends.measuring` starts it as ``python -m weft.runtime.backends.server ADDRESS PARENT``. It has
one thread, runs no multi-threaded kernels, and so may be forked. A trial that crashes or hangs ends alone.

A fork cannot use a GPU that was in use before it. There the forked process loads the model itself, which takes seconds,
and does one trial after another; a trial that crashes, hangs or raises ends it, and the next one has a new process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection
from typing import NoReturn

import torch

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
    """The measured model: a ``.pt2`` file; ``sources``: files that register further backends. ``shared``: trials share
    a process until one fails, as on a GPU; its loading ends within ``patience`` seconds."""

    path: str
    sources: tuple[str, ...]
    trains: bool
    repeats: int
    shared: bool = False
    patience: float = 300.0


@dataclass(frozen=True, slots=True)
class TrialJob:
    """``what``: ``"part"``, the first of ``choice``; ``"whole"``, all of it; ``"eager"``, each unit; or ``"boundary"``,
    between the backends of its first two, with tensors of ``numbers`` elements. ``limit``: wall seconds. ``beside``:
    the choice that a whole is timed beside (empty: eager)."""

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
        """Load the slow dependencies of the backends of ``job``, once for all trials."""
        for name in {name for name, _ in (*job.choice, *job.beside)} - self.prepared:
            self.prepared.add(name)
            with contextlib.suppress(Exception):  # a trial will report it
                require_usable(name).prepare()

    def go(self, job: TrialJob) -> Found:
        """The result of ``job``, in this process."""
        trains, repeats = self.opening.trains, self.opening.repeats
        if job.what == "whole":
            return try_whole(self.graph, self.recorded, job.choice, job.beside, trains=trains,
                             repeats=repeats)
        if job.what == "eager":
            return try_eager(self.graph, self.recorded, trains=trains, repeats=repeats)
        if job.what == "boundary":
            a, b = (require_usable(name) for name, _ in job.choice)
            return Found(boundary_seconds(a, b, job.numbers, self.recorded.device, repeats=repeats))
        (name, units), = job.choice
        return try_part(self.graph, self.recorded, require_usable(name), units, trains=trains, repeats=repeats)


class _TrialProcess:
    """A forked process for jobs of ``opening``; ``tries``: already loaded state."""

    def __init__(self, opening: Opening, tries: _Tries | None) -> None:
        self.connection, others = Pipe()
        self.process = os.fork()
        if self.process == 0:
            self.connection.close()
            os.setpgid(0, 0)
            _serve(opening, tries, others)
        others.close()

    def do(self, job: TrialJob | None, limit: float) -> Found:
        """The result of ``job``, or why there is none; ``None``: load the model. A process that can no longer be used
        has been ended."""
        try:
            self.connection.send(job)
            if self.connection.poll(limit):
                found, goes_on = self.connection.recv()
                if not goes_on:
                    self.end()
                return found  # type: ignore[no-any-return]
        except (EOFError, OSError):
            status = os.waitpid(self.process, 0)[1]
            self.process = 0
            if os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
                return Found(refused=f"crashed by signal {number} ({signal.Signals(number).name})")
            return Found(refused=f"ended by itself with status {os.waitstatus_to_exitcode(status)}")
        self.end()
        return Found(refused=f"did not end within {limit:g} s")

    def end(self) -> None:
        """Kill it and its own children."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = 0
        self.connection.close()


def _serve(opening: Opening, tries: _Tries | None, connection: Connection) -> NoReturn:
    """The child: it ends after one job, or, where it is shared, after one that raised. Backends' output is
    discarded."""
    end_with_parent(os.getppid())
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    goes_on, raised = True, False
    while goes_on:
        try:
            job = connection.recv()
        except EOFError:
            break
        try:
            tries = tries or _Tries(opening)
            found = Found() if job is None else tries.go(job)
        except BaseException as error:  # anything that a backend raises
            lines, raised = [line.strip() for line in str(error).splitlines() if line.strip()], True
            found = Found(refused=f"raised {type(error).__name__}: {lines[0] if lines else 'no message'}"[:300])
        connection.send((found, goes_on := opening.shared and not raised))
        if goes_on:
            gc.collect()
            torch.cuda.empty_cache()
    os._exit(0)


class _Trials:
    """Jobs of ``opening``, one after another."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.child = opening, None  # type: Opening, _TrialProcess | None
        self.tries = None if opening.shared else _Tries(opening)
        if opening.shared:
            self._shared()

    def do(self, job: TrialJob) -> Found:
        """The result of ``job``, or why there is none."""
        if self.tries is None:
            return self._shared().do(job, job.limit)
        self.tries.prepare(job)
        return _TrialProcess(self.opening, self.tries).do(job, job.limit)

    def _shared(self) -> _TrialProcess:
        """The process that trials share, with the model loaded. Raises ``RuntimeError`` if that fails."""
        if self.child is None or not self.child.process:
            self.child = _TrialProcess(self.opening, None)
            if (refused := self.child.do(None, self.opening.patience).refused) is not None:
                raise RuntimeError(refused)
        return self.child


def main(arguments: Sequence[str]) -> None:
    """Run jobs until there are no more."""
    address, parent = arguments
    end_with_parent(int(parent))
    with Client(address, authkey=bytes.fromhex(os.environ["WEFT_BACKENDS_KEY"])) as connection:
        try:
            torch.set_num_threads(1)
            trials = _Trials(connection.recv())
        except Exception as error:
            connection.send(f"{(str(error) or type(error).__name__).splitlines()[0]}")
            return
        connection.send(None)
        while (job := connection.recv()) is not None:
            connection.send(trials.do(job))


if __name__ == "__main__":
    main(sys.argv[1:])

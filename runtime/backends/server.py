"""The measuring process: it loads the model once, and runs each trial in a process forked from it.

:mod:`weft.runtime.backends.measuring` starts it as ``python -m weft.runtime.backends.server ADDRESS PARENT``. It has
one thread and runs no multi-threaded kernels, so it may be forked. A trial that crashes or hangs ends alone.

A forked process cannot use CUDA if its parent has initialised it. On a GPU the forked process therefore loads the model
itself, which takes seconds, and runs several trials; one that crashes, hangs or raises ends the process, and the next
trial gets a new one.
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
    RecordedValues,
    TrialResult,
    boundary_seconds,
    require_usable,
    try_eager,
    try_part,
    try_whole,
)
from weft.runtime.ranks.children import end_with_parent


@dataclass(frozen=True, slots=True)
class Opening:
    """The first message: the model's ``.pt2`` file ``path``, and the ``sources`` that register further backends.
    ``shared``: trials share a process until one fails, as on a GPU; it must load the model within ``patience`` seconds.
    """

    path: str
    sources: tuple[str, ...]
    trains: bool
    repeats: int
    shared: bool = False
    patience: float = 300.0


@dataclass(frozen=True, slots=True)
class TrialJob:
    """A trial to run. ``what``: ``"part"``, the only part of ``choice``; ``"whole"``, the model by ``choice``;
    ``"eager"``, each unit; or ``"boundary"``, between the two backends of ``choice``, with tensors of ``numbers``
    elements. ``limit``: wall seconds. ``beside``: the choice timed in turn with a ``"whole"`` (empty: eager)."""

    what: str
    choice: tuple[tuple[str, tuple[int, ...]], ...]
    limit: float
    numbers: int = 0
    beside: tuple[tuple[str, tuple[int, ...]], ...] = ()


class _TrialState:
    def __init__(self, opening: Opening) -> None:
        self.opening, self.prepared = opening, set[str]()
        for number, source in enumerate(opening.sources):
            spec = importlib.util.spec_from_file_location(f"weft_backend_{number}", source)
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        self.graph = UnitGraph(captured_of(opening.path))
        args, kwargs = example_of(opening.path)
        from torch.utils._pytree import tree_flatten

        self.recorded = RecordedValues(self.graph, tree_flatten((args, kwargs))[0])

    def prepare(self, job: TrialJob) -> None:
        """Load the slow dependencies of the backends of ``job``, once for all trials."""
        for name in {name for name, _ in (*job.choice, *job.beside)} - self.prepared:
            self.prepared.add(name)
            with contextlib.suppress(Exception):  # the trial will report it
                require_usable(name).prepare()

    def go(self, job: TrialJob) -> TrialResult:
        """The result of ``job``, in this process."""
        trains, repeats = self.opening.trains, self.opening.repeats
        if job.what == "whole":
            return try_whole(self.graph, self.recorded, job.choice, job.beside, trains=trains,
                             repeats=repeats)
        if job.what == "eager":
            return try_eager(self.graph, self.recorded, trains=trains, repeats=repeats)
        if job.what == "boundary":
            a, b = (require_usable(name) for name, _ in job.choice)
            return TrialResult(boundary_seconds(a, b, job.numbers, self.recorded.device, repeats=repeats))
        (name, units), = job.choice
        return try_part(self.graph, self.recorded, require_usable(name), units, trains=trains, repeats=repeats)


class _TrialProcess:
    """A forked process that runs jobs. ``state``: the loaded model, or ``None`` to load it in the process."""

    def __init__(self, opening: Opening, state: _TrialState | None) -> None:
        self.connection, others = Pipe()
        self.process = os.fork()
        if self.process == 0:
            self.connection.close()
            os.setpgid(0, 0)
            _serve(opening, state, others)
        others.close()

    def do(self, job: TrialJob | None, limit: float) -> TrialResult:
        """The result of ``job`` (``None``: only load the model), refused if the process crashes, exits or exceeds
        ``limit`` seconds. A process that cannot be reused is ended."""
        try:
            self.connection.send(job)
            if self.connection.poll(limit):
                found, reusable = self.connection.recv()
                if not reusable:
                    self.end()
                return found  # type: ignore[no-any-return]
        except (EOFError, OSError):
            status = os.waitpid(self.process, 0)[1]
            self.process = 0
            if os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
                return TrialResult(refused=f"crashed by signal {number} ({signal.Signals(number).name})")
            return TrialResult(refused=f"ended by itself with status {os.waitstatus_to_exitcode(status)}")
        self.end()
        return TrialResult(refused=f"did not end within {limit:g} s")

    def end(self) -> None:
        """Kill the process and its process group."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = 0
        self.connection.close()


def _serve(opening: Opening, state: _TrialState | None, connection: Connection) -> NoReturn:
    """The forked process: it exits after one job, or if shared, after a job that raised. Its output is discarded."""
    end_with_parent(os.getppid())
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    reusable, raised = True, False
    while reusable:
        try:
            job = connection.recv()
        except EOFError:
            break
        try:
            state = state or _TrialState(opening)
            found = TrialResult() if job is None else state.go(job)
        except BaseException as error:  # a backend may raise anything
            lines, raised = [line.strip() for line in str(error).splitlines() if line.strip()], True
            found = TrialResult(refused=f"raised {type(error).__name__}: {lines[0] if lines else 'no message'}"[:300])
        connection.send((found, reusable := opening.shared and not raised))
        if reusable:
            gc.collect()
            torch.cuda.empty_cache()
    os._exit(0)


class _Trials:
    """Runs jobs in sequence, each in a process of its own or in a shared one."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.child = opening, None  # type: Opening, _TrialProcess | None
        self.state = None if opening.shared else _TrialState(opening)
        if opening.shared:
            self._shared()

    def do(self, job: TrialJob) -> TrialResult:
        """The result of ``job``; a failure is a refused result."""
        if self.state is None:
            return self._shared().do(job, job.limit)
        self.state.prepare(job)
        return _TrialProcess(self.opening, self.state).do(job, job.limit)

    def _shared(self) -> _TrialProcess:
        """The process that trials share, with the model loaded. Raises ``RuntimeError`` if that fails."""
        if self.child is None or not self.child.process:
            self.child = _TrialProcess(self.opening, None)
            if (refused := self.child.do(None, self.opening.patience).refused) is not None:
                raise RuntimeError(refused)
        return self.child


def main(arguments: Sequence[str]) -> None:
    """Run the jobs that arrive until the end."""
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

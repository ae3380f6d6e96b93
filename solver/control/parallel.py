"""Work in parallel in processes that end when their parent is stopped or dies.

Ctrl-C, SIGTERM and SIGHUP go to all processes of a terminal or a batch job. The workers here block them: the parent
decides whether to keep their results, and ends them. (Threads that share a budget:
:meth:`weft.solver.cpsat.budget.Budget.side_by_side`.)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from types import ModuleType
from typing import ParamSpec, TypeVar

from weft.solver.control.stopping import SIGNALS, STOP

_P = ParamSpec("_P")
_S = TypeVar("_S")
_T = TypeVar("_T")


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def mapped(function: Callable[[_S], _T], items: Sequence[_S], workers: int) -> Iterator[_T]:
    """``function`` of each of ``items``, in their order, in ``workers`` processes; in this one if one is enough. The
    function may be of the script that runs.

    Function, items and results must be picklable. Ctrl-C ends the workers and raises ``KeyboardInterrupt``; an
    exception of the function is raised in the place of its result.
    """
    if min(workers, len(items)) <= 1:
        yield from map(function, items)
        return
    with processes(workers, len(items), script=True) as pool:
        yield from pool.map(function, items)


@contextlib.contextmanager
def processes(workers: int, tasks: int, *, script: bool = False) -> Iterator[Executor]:
    """A pool of ``workers`` processes for ``tasks`` tasks, or this process if one is enough. At the end of the block,
    and on Ctrl-C, its workers end at once, even in the middle of a task. They import the caller's ``script`` only if
    tasks are functions of it: one without ``if __name__ == "__main__":`` would start workers of its own."""
    if min(workers, tasks) == 1:
        yield _InThisProcess()
        return
    context = multiprocessing.get_context("spawn")  # fork copies the locks of threads that the copy does not have
    watched, held = context.Pipe(duplex=False)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(workers, tasks), context, _end_with_parent, (watched,))
    try:
        with _starting(script):
            for _ in range(min(workers, tasks)):  # each starts a worker, as none is idle yet
                pool.submit(int)
        yield pool
    finally:
        held.close()
        if STOP.requested:  # workers that are still importing do not watch yet
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _starting(script: bool) -> Iterator[None]:
    """Processes started inside block the three signals from their first moment on: they end when their parent says so,
    not when a terminal or a batch system signals a whole group. Without ``script`` they see an empty one."""
    main, masks = sys.modules["__main__"], hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if masks else None
    sys.modules["__main__"] = main if script else ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(watched: Connection) -> None:
    """In a new worker, which blocks signals: end when the parent closes its end of ``watched`` or dies."""
    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            watched.recv()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class _InThisProcess(Executor):
    """Runs each submitted task at once, in this process."""

    def submit(self, function: Callable[_P, _T], /, *arguments: _P.args, **options: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future

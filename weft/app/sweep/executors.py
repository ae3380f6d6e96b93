"""Where the points of a sweep are solved: in this process, in processes of its own, or on a Dask cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

from weft.app.lib.stop_signals import blocked
from weft.solver.control.stopping import STOP

__all__ = ["dask_executor", "own_executor"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The executor of a Dask cluster whose scheduler is at ``address``.

    Raises ``ImportError`` where Dask is missing and ``OSError`` where no scheduler answers or a worker dies.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise ImportError("--dask needs Dask: install it with  pip install 'weft[dask]'") from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise OSError(f"no Dask scheduler answers at {address!r} ({error or type(error).__name__})") from None
    with client:
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise ChildProcessError(f"a Dask worker ended unexpectedly ({error})") from None


@contextlib.contextmanager
def own_executor(processes: int | None, tasks: int) -> Iterator[Executor]:
    """A pool of so many ``processes`` (``None``: one a core), or this process where one worker is enough; Ctrl-C ends
    its workers at once."""
    workers = min(processes or _cores(), tasks)
    if workers == 1:
        yield _InThisProcess()
        return
    context = multiprocessing.get_context("spawn")  # fork copies the locks of threads that the copy does not have
    watched, held = context.Pipe(duplex=False)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _end_with_parent, (watched,))
    try:
        with blocked():  # the first task starts all workers
            pool.submit(int)
        yield pool
    finally:
        held.close()
        if STOP.requested:  # those that are still being imported do not watch yet
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        pool.shutdown(cancel_futures=True)


def _end_with_parent(watched: Connection) -> None:
    """In a new worker, which hears no signals: end when the parent closes its end of ``watched`` or dies."""
    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            watched.recv()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class _InThisProcess(Executor):
    """Runs what is submitted at once, here."""

    def submit(self, function: Callable[_P, _T], /, *arguments: _P.args, **options: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

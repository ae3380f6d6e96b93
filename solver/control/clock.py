"""One clock for everything a command does: long loops check it in passing.

The owner of a limit opens :func:`watching` around the work (a :class:`~weft.solver.cpsat.budget.Budget` does so by
``limited``); the work inside calls :func:`checkpoint` at least every few thousand steps, without a budget as argument.
A checkpoint after the end of the time raises :class:`OutOfTime`, and the owner continues with the best known so far.
Without a watch a checkpoint does nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")


class OutOfTime(BaseException):
    """Time is over in the middle of some work, whose result does not exist.

    Like ``KeyboardInterrupt`` it is not an ``Exception``, so that no code on the way mistakes it for an error.
    """


#: What says that time is over, where anything does.
WATCH: ContextVar[Callable[[], bool] | None] = ContextVar("watch", default=None)


def checkpoint() -> None:
    """Raise :class:`OutOfTime` if the work under way must stop now."""
    if is_over():
        raise OutOfTime


def checked(items: Iterable[_T], every: int = 1) -> Iterator[_T]:
    """``items``, with a checkpoint before each ``every``-th of them."""
    for number, item in enumerate(items):
        if number % every == 0:
            checkpoint()
        yield item


def is_over() -> bool:
    """Whether a checkpoint would stop now."""
    over = WATCH.get()
    return over is not None and over()


def unwatched() -> contextlib.AbstractContextManager[None]:
    """Checkpoints inside never stop: for the little that must be done in any case."""
    return _under(lambda: False)


def watching(over: Callable[[], bool]) -> contextlib.AbstractContextManager[None]:
    """Checkpoints inside stop where ``over`` says so, or a watch that was there before."""
    outer = WATCH.get()
    return _under(lambda: over() or (outer is not None and outer()))


@contextlib.contextmanager
def _under(watch: Callable[[], bool]) -> Iterator[None]:
    before = WATCH.get()
    WATCH.set(watch)
    try:
        yield
    finally:
        if WATCH.get() is watch:  # else a stop has broken this off, and what is left of it ends late
            WATCH.set(before)


def process_start() -> float:
    """The begin of this process, by :func:`time.monotonic`: before Python and all imports if the system reports it,
    else now.

    A shell may have become this process (``exec``, and the last command of ``sh -c``) and be far older, so at most
    twice the CPU time used is counted.
    """
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
        age = up - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic()
    return time.monotonic() - max(0.0, min(age, 2 * time.process_time()))

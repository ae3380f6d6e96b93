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


_watch: ContextVar[Callable[[], bool] | None] = ContextVar("watch", default=None)


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
    over = _watch.get()
    return over is not None and over()


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Checkpoints inside never stop: for the few steps that are always necessary."""
    token = _watch.set(None)
    try:
        yield
    finally:
        _watch.reset(token)


@contextlib.contextmanager
def watching(over: Callable[[], bool]) -> Iterator[None]:
    """Checkpoints inside stop when ``over`` returns true, or when an outer watch does."""
    outer = _watch.get()
    token = _watch.set(over if outer is None else lambda: over() or outer())
    try:
        yield
    finally:
        _watch.reset(token)


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

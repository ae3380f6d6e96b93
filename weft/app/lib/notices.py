"""What a search tells people beside its progress: whoever calls it may listen, and shows the lines as it likes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

__all__ = ["forewarn", "heard_by"]

#: Seconds in which one operation is ordered, timed, judged, summed up and written: 15 s of one core for two million.
_SECONDS_EACH = 7.5e-6

_listener: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Inside, ``listener`` gets every notice, a line without its end."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def forewarn(operations: int, elapsed: float, limit: float) -> None:
    """Say at once that a first schedule of so many ``operations`` takes longer than ``limit`` seconds, if it does."""
    listener, seconds = _listener.get(), _SECONDS_EACH * operations
    if listener is not None and elapsed + seconds > limit:
        listener(f"{elapsed:6.1f} s  {operations} operations: to schedule, judge and write them takes about "
                 f"{elapsed + seconds:.0f} s, longer than the limit of {limit:g} s; the first schedule is finished all "
                 "the same")

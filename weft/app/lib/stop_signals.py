"""The signals that ask a command to stop, and how processes are started that are not to hear them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["STOP_SIGNALS", "blocked"]

#: Ctrl-C, the end of a batch job, and a terminal that closes; those that this system has.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Processes that are started inside never hear the three signals, from their first moment on: they are to end when
    their parent says so, not when a terminal or a batch system signals all of a group."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""A stop requested from outside (Ctrl-C, SIGTERM): where it interrupts work, and where it only sets a flag.

The signal handler (of the command line) sets :data:`STOP`; from then on every budget (:mod:`weft.solver.cpsat.budget`)
is spent. ``KeyboardInterrupt`` is raised at most once, and only where it is caught or nothing can be lost: anywhere
before there is an answer (:meth:`Stop.hold`), afterwards only inside :func:`breakable`. Elsewhere, such as while a
result is judged, written or shown, a stop waits. Without a handler, Ctrl-C is Python's own ``KeyboardInterrupt``.
"""

from __future__ import annotations

import signal
import threading
from types import TracebackType

from weft.solver.control.clock import WATCH

#: The signals that ask for a stop, as far as this system has them.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stop:
    """The state of this process's stop. Regions count only in the main thread: signals are handled there."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset: no stop is requested, and there is nothing to lose."""
        self.requested = False
        #: ``KeyboardInterrupt`` was raised for it, or the waiting code has seen it: no further one is raised.
        self.heard = False
        #: Whether there is an answer that must not be lost.
        self.held = False
        #: Whether the innermost region allows an interruption; ``None`` outside all.
        self.region: bool | None = None

    @property
    def may_break(self) -> bool:
        """Whether ``KeyboardInterrupt`` may be raised here and now."""
        return not self.heard and (not self.held if self.region is None else self.region)

    def hold(self) -> None:
        """From now on there is an answer: only :func:`breakable` work is interrupted."""
        self.held = True

    def hear(self) -> bool:
        """Whether a stop was requested; the caller ends by itself, so nothing more is raised."""
        self.heard = self.heard or self.requested
        return self.requested


#: The stop of this process.
STOP = Stop()


class _Region:
    breaks: bool

    def __enter__(self) -> None:
        self._before = STOP.region
        if threading.current_thread() is threading.main_thread():
            STOP.region = self.breaks

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        STOP.region = self._before
        # A stop that came inside a shielded region is raised outside it, where it is caught.
        if kind is None and STOP.requested and STOP.region and STOP.may_break:
            STOP.heard = True
            raise KeyboardInterrupt


class breakable(_Region):
    """Inside, a stop raises ``KeyboardInterrupt`` even where an answer is held: whoever uses it catches that around it
    and keeps the answer. It may break off the end of a watch (:mod:`weft.solver.control.clock`), too, which would stop
    what is done with the answer: there is none afterwards that was not there before."""

    breaks = True

    def __enter__(self) -> None:
        self._watch = WATCH.get()
        super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        WATCH.set(self._watch)
        super().__exit__(kind, error, trace)


class shielded(_Region):
    """Inside, a stop raises nothing: it is visible in :attr:`Stop.requested`, and raised at the end if a
    :func:`breakable` surrounds it."""

    breaks = False

"""A stop that is asked for from outside (Ctrl-C, SIGTERM): what it may break off, and what it only tells.

Whoever listens to signals (the command line) sets :data:`STOP`; from then on every budget
(:mod:`weft.solver.cpsat.budget`) is spent. ``KeyboardInterrupt`` is raised once at most, and only where somebody
catches it or nothing can be lost: anywhere before there is an answer (:meth:`Stop.hold`), afterwards only
:func:`breakable`. Elsewhere, such as while a result is judged, written or shown, a stop waits. Where nobody listens,
Ctrl-C is Python's own ``KeyboardInterrupt``.
"""

from __future__ import annotations

import signal
import threading
from types import TracebackType

from weft.solver.control.clock import WATCH

#: The signals that ask for a stop, as far as this system has them.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stop:
    """The state of this process's stop. Regions count in the main thread alone: signals are handled there."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nobody has asked, and there is nothing to lose."""
        self.requested = False
        #: ``KeyboardInterrupt`` was raised for it, or whoever waits has seen it: there is no need to raise any more.
        self.heard = False
        #: Whether there is an answer that must not be lost.
        self.held = False
        #: What the innermost region says about breaking off; ``None`` outside all.
        self.region: bool | None = None

    @property
    def may_break(self) -> bool:
        """Whether ``KeyboardInterrupt`` may be raised here and now."""
        return not self.heard and (not self.held if self.region is None else self.region)

    def hold(self) -> None:
        """From now on there is an answer: only what is :func:`breakable` is broken off."""
        self.held = True

    def hear(self) -> bool:
        """Whether a stop was asked for; whoever calls ends by itself, so nothing is raised any more."""
        self.heard = self.heard or self.requested
        return self.requested


#: The one of this process.
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
        # What came while it was shielded is raised where it is not: around it somebody catches it.
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
    """Inside, a stop raises nothing: it is seen in :attr:`Stop.requested`, and raised at the end where a
    :func:`breakable` is around."""

    breaks = False

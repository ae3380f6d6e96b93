"""Ctrl-C, SIGTERM and SIGHUP alike: the search ends and its result is kept; a second signal ends the process.

Batch systems send SIGTERM when a job's time is up, terminals SIGHUP when they close.
:mod:`weft.solver.control.stopping` defines what a stop may interrupt.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from weft.cli.lib.command import INTERRUPTED
from weft.solver.control.stopping import SIGNALS, STOP

#: Signals within this time after the first count as the same stop: a terminal sends Ctrl-C to all processes, and a
#: parent may forward it.
_SAME = 0.3
#: Seconds until a stop that arrived where it must not be raised is retried.
_AGAIN = 0.02


class _Listener:
    """Raises ``KeyboardInterrupt`` at most once, where :data:`~weft.solver.control.stopping.STOP` allows it."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self._first = 0.0
        self._number = int(signal.SIGINT)
        self._trying = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._trying:
            self._trying = False
        elif not STOP.requested:
            STOP.requested, self._first, self._number = True, time.monotonic(), number
        elif time.monotonic() - self._first > _SAME:
            _end_at_once("interrupted twice, ended at once")
        if not STOP.may_break:
            return
        if _imports(frame):
            if self.ends and not STOP.held:
                _end_at_once("interrupted")
            self._try_again()
            return
        STOP.heard = True
        raise KeyboardInterrupt

    def _try_again(self) -> None:
        """Retry later: a module interrupted during its import cannot always be imported again."""
        main = threading.main_thread().ident
        assert main is not None

        def later() -> None:
            time.sleep(_AGAIN)
            self._trying = True
            signal.pthread_kill(main, self._number)

        _thread.start_new_thread(later, ())  # acquires no locks that the main thread may hold now

    def lost(self, unraisable: Any, otherwise: Callable[[Any], object]) -> None:
        """``sys.unraisablehook``: an interrupt that Python would drop (in a finaliser) is raised again later."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt) and STOP.requested:
            STOP.heard = False
            self._try_again()
        else:
            otherwise(unraisable)


@contextlib.contextmanager
def listening(*, ends: bool = False) -> Iterator[Callable[[], None]]:
    """Context in which the three signals are stops, until the returned function is called, which restores the previous
    handlers. Only in the main thread; ignored signals stay ignored (``nohup``). ``ends``: the process ends with the
    context, so the previous handlers are not restored."""
    STOP.clear()
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    listener, hook = _Listener(ends), sys.unraisablehook
    before = {number: signal.getsignal(number) for number in SIGNALS}
    sys.unraisablehook = lambda unraisable: listener.lost(unraisable, hook)
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, listener)

    def release() -> None:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        sys.unraisablehook = hook

    try:
        yield release
    finally:
        if not ends:
            release()
            STOP.clear()


def end_with(status: int) -> None:
    """From now on a signal ends the process immediately with ``status``: all output is written, Python only cleans up,
    and garbage collection is skipped (a tenth of a tiny command's time)."""
    gc.freeze()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(status))


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end_at_once(why: str) -> NoReturn:
    from weft.solver.io.writing import discard_partial

    discard_partial()
    with contextlib.suppress(OSError):
        os.write(2, f"weft: {why}\n".encode())
    os._exit(INTERRUPTED)

"""Showing a search while it runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeVar

from weft.app.lib.options import began
from weft.text.units import memory_text, time_text

if TYPE_CHECKING:
    from weft.app.sweep.run import SweepProgress
    from weft.solver.step.search import Progress

__all__ = ["ProgressLine", "SweepLines", "Waiting", "forewarn"]

_P = TypeVar("_P")

#: Elsewhere than on a terminal, a line at most this often (seconds), and one for every better schedule.
_INTERVAL = 5.0
#: Seconds after the command's start when it says that it is at work, if it has said nothing else.
_FIRST_WORD = 0.9
#: Seconds in which one operation is ordered, timed, judged, summed up and written: 15 s of one core for two million.
_SECONDS_EACH = 7.5e-6

#: What says that the command is at work.
_at_work: ContextVar[Waiting | None] = ContextVar("at_work", default=None)


def forewarn(operations: int, elapsed: float, limit: float) -> None:
    """Say at once that a first schedule of so many ``operations`` takes longer than ``limit`` seconds, if it does."""
    waiting, seconds = _at_work.get(), _SECONDS_EACH * operations
    if waiting is not None and not waiting.quiet and elapsed + seconds > limit:
        with contextlib.suppress(OSError):  # the terminal may be gone
            waiting.stream.write(f"{elapsed:6.1f} s  {operations} operations: to schedule, judge and write them takes "
                                 f"about {elapsed + seconds:.0f} s, longer than the limit of {limit:g} s; the first "
                                 "schedule is finished all the same\n")
            waiting.stream.flush()


class Waiting:
    """Says on standard error that the command is at work, as long as there is nothing better to say; a context manager.

    The words come from a thread of their own, so also while modules are imported and inputs read.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self._began = began()
        self._over = threading.Event()

    def __enter__(self) -> Waiting:
        self._before = _at_work.set(self)
        if not self.quiet:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()
        _at_work.reset(self._before)

    def end(self) -> None:
        """From now on there is something to show."""
        self._over.set()

    def before(self, listener: Callable[[_P], object]) -> Callable[[_P], None]:
        """``listener``, whose first word is the end of this."""
        def listen(progress: _P) -> None:
            self.end()
            listener(progress)

        return listen

    def _wait(self) -> None:
        pause = _FIRST_WORD - (time.monotonic() - self._began)
        while not self._over.wait(max(0.0, pause)):
            self.say(time.monotonic() - self._began)
            pause = _INTERVAL

    def say(self, seconds: float) -> None:
        """One line: at work since so many ``seconds``."""
        self.stream.write(f"{seconds:6.1f} s  at work, nothing found yet\n")
        self.stream.flush()


class ProgressLine:
    """A listener for ``on_progress``; a context manager, so that the live line ends before other output.

    Writes to standard error, so that results on standard output can be piped.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.quiet = quiet
        self._last = ""
        self._shown = float("-inf")
        self._makespan = float("inf")
        self._waiting = Waiting(self.stream, quiet=quiet)

    def __enter__(self) -> ProgressLine:
        self._waiting.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._waiting.__exit__(kind, error, trace)
        if self.live and self._last:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.stream.write("\n")
                self.stream.flush()

    def __call__(self, progress: Progress) -> None:
        """Show where the search stands."""
        self._waiting.end()
        if self.quiet:
            return
        best, now = progress.best, time.monotonic()
        better = best.makespan < self._makespan
        if not self.live and not better and now - self._shown < _INTERVAL:
            return
        self._makespan, self._shown = min(self._makespan, best.makespan), now
        text = describe(progress)
        if self.live:
            self.stream.write("\r" + text.ljust(len(self._last)))
        elif text != self._last:
            self.stream.write(text + "\n")
        self._last = text
        self.stream.flush()


def describe(progress: Progress) -> str:
    """``progress`` in one line: best, bound, gap, elapsed."""
    best = progress.best
    unit = best.problem.time_unit
    gap = "optimal" if best.gap == 0 else "no bound yet" if best.gap == float("inf") else f"gap {best.gap:.2%}"
    where = best.solver.get("placement")
    return (f"{progress.elapsed:6.1f} s  best {' '.join(time_text(best.makespan, unit))}"
            f"  bound {' '.join(time_text(best.makespan_bound, unit))}  {gap}"
            f"  [{f'{where}: ' if where else ''}{progress.phase}]")


class SweepLines:
    """A listener for a sweep's ``on_progress``: one line on standard error for each point."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet

    def __call__(self, progress: SweepProgress) -> None:
        """Show what a point gave."""
        from weft.app.sweep.result import LeftOut

        if self.quiet:
            return
        sweep, result = progress.sweep, progress.result
        if isinstance(result, LeftOut):
            what = f"left out: {result.reason}"
        else:
            what = (f"{' '.join(sweep.throughput_text(result.throughput))} with "
                    f"{' '.join(memory_text(result.peak, sweep.memory_unit))}, "
                    + ("proven optimal" if result.gap == 0 else f"gap {result.gap:.2%}")
                    + (" over the placements considered" if result.covered else "")
                    + (" (from the cache)" if progress.cached else ""))
        total = progress.done + len(sweep.unsolved)
        self.stream.write(f"{progress.elapsed:6.1f} s  {progress.done}/{total}  {sweep.label(result.point)}: {what}\n")
        self.stream.flush()

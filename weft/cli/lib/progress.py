"""Showing a search while it runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO, TypeVar

from weft.app.lib.options import began, heard_by
from weft.text.units import shown_memory, shown_time

if TYPE_CHECKING:
    from weft.app.family.run import FamilyProgress
    from weft.app.latency.serving import Serving
    from weft.app.sweep.run import SweepProgress
    from weft.solver.placement.bracket import Standing
    from weft.solver.step.search import Progress

_P = TypeVar("_P")

#: Without a terminal, the minimum seconds between lines; every better schedule also gets one.
_INTERVAL = 5.0
#: On a terminal (seconds).
_LIVE = 1.0
#: Seconds from the command's start to the first sign of life, if there was no other output.
_FIRST_WORD = 0.9


class Waiting:
    """Reports on standard error that the command is at work, until there is other output; a context manager.

    A separate thread writes, so it works also while modules are imported and inputs read.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, every: float = _INTERVAL) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.quiet = quiet
        self.every = every
        self._began = began()
        self._over = threading.Event()
        self._saying = threading.Lock()
        self._listening = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._listening.enter_context(heard_by(self._notice))
        if not self.quiet:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()
        self._listening.close()

    def end(self) -> None:
        """Stop: there is other output now."""
        with self._saying:
            self._over.set()

    def _wait(self) -> None:
        pause = _FIRST_WORD - (time.monotonic() - self._began)
        while not self._over.wait(max(0.0, pause)):
            with self._saying, contextlib.suppress(OSError, ValueError):  # the terminal may be gone, the stream closed
                if not self._over.is_set():
                    self.say(time.monotonic() - self._began)
            pause = self._pause

    @property
    def _pause(self) -> float:
        """Seconds until the next output is due."""
        return self.every

    def say(self, seconds: float) -> None:
        """One line: at work for ``seconds``."""
        self.stream.write(f"{seconds:6.1f} s  at work, nothing found yet\n")
        self.stream.flush()

    def _notice(self, line: str) -> None:
        if not self.quiet:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.stream.write(line + "\n")
                self.stream.flush()


class ProgressLine(Waiting):
    """A listener for ``on_progress``; a context manager, so that the live line ends before other output.

    Writes to standard error, so that results on standard output can be piped: each progress and, after ``every``
    seconds without a new one (by default 1 on a terminal, 5 elsewhere), the last one again with the time.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, every: float | None = None) -> None:
        stream = sys.stderr if stream is None else stream
        self.live = stream.isatty()
        super().__init__(stream, quiet=quiet, every=every or (_LIVE if self.live else _INTERVAL))
        self._last = ""
        self._shown = float("-inf")
        self._value = float("inf")
        self._heard: tuple[Progress, float] | None = None  # and when

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if self.live and self._last:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.stream.write("\n")
                self.stream.flush()

    def __call__(self, progress: Progress) -> None:
        """Show the search's progress."""
        if self.quiet:
            return
        best, now = progress.best, time.monotonic()
        better = best.value < self._value
        with self._saying:
            self._heard = progress, now
            if not self.live and not better and now - self._shown < self.every:
                return
            self._value = min(self._value, best.value)
            self._write(progress, now)

    def say(self, seconds: float) -> None:
        """The last progress again, once that is due; before there is any, that the command is at work."""
        now = time.monotonic()
        if self._heard is None:
            super().say(seconds)
        elif now - self._shown >= self.every:
            progress, at = self._heard
            self._write(replace(progress, elapsed=progress.elapsed + now - at), now)

    @property
    def _pause(self) -> float:
        due = self._shown + self.every - time.monotonic()
        return self.every if self._heard is None else min(self.every, max(0.05, due))

    def _write(self, progress: Progress, now: float) -> None:
        self._shown = now
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
    apart = best.value_gap
    gap = "optimal" if apart == 0 else "no bound yet" if apart == float("inf") else f"gap {apart:.2%}"
    value, bound = best.value, best.value_bound
    if best.objective == "rate" and best.period is None:  # no steady state yet
        value, bound, gap = best.makespan, best.makespan_bound, "a makespan, no rate yet"
    where = best.solver.get("placement")
    bounded = f"bound {shown_time(bound, unit)}  " if bound > 0 else ""
    return (f"{progress.elapsed:6.1f} s  best {shown_time(value, unit)}  {bounded}{gap}"
            f"  [{f'{where}: ' if where else ''}{progress.phase}]")


@contextlib.contextmanager
def lines(said: Callable[[_P], Iterable[str]], *, quiet: bool) -> Iterator[Callable[[_P], None]]:
    """A listener that shows the text ``said`` for a progress on standard error, and before the first one that there is
    none."""
    with Waiting(quiet=quiet) as waiting:
        def listen(progress: _P) -> None:
            waiting.end()
            for line in () if quiet else said(progress):
                print(line, file=sys.stderr, flush=True)

        yield listen


def sweep_lines(progress: SweepProgress) -> Iterator[str]:
    """The result of a point of a sweep."""
    from weft.app.sweep.result import LeftOut

    sweep, result = progress.sweep, progress.result
    if isinstance(result, LeftOut):
        what = f"left out: {result.reason}"
    else:
        what = (f"{' '.join(sweep.throughput_text(result.throughput))} with "
                f"{shown_memory(result.peak, sweep.memory_unit)}, "
                + ("proven optimal" if result.gap == 0 else f"gap {result.gap:.2%}")
                + (" over the placements considered" if result.covered else "")
                + (" (from the cache)" if progress.cached else ""))
    total = progress.done + len(sweep.unsolved)
    yield f"{progress.elapsed:6.1f} s  {progress.done}/{total}  {sweep.label(result.point)}: {what}"


def family_line(progress: FamilyProgress) -> Iterator[str]:
    """The number of solved plans of a family."""
    known = f", {progress.cached} from the cache" if progress.cached else ""
    yield f"solved {progress.done}/{progress.points}{known}"


def point_lines() -> Callable[[Serving], Iterator[str]]:
    """The new points of a trade-off."""
    seen: set[tuple[float, float]] = set()

    def said(serving: Serving) -> Iterator[str]:
        for point in serving.points:
            if (point.period, point.latency) not in seen:
                seen.add((point.period, point.latency))
                yield f"{serving.seconds:6.1f} s  {serving.point_text(point)}"

    return said


def step_lines() -> Callable[[Standing], Iterator[str]]:
    """Each better placement and the search's activity, at most once a second."""
    shown, least = 0.0, float("inf")

    def said(step: Standing) -> Iterator[str]:
        nonlocal shown, least
        now = time.monotonic()
        if step.objective < least or now - shown >= 1.0:
            least, shown = step.objective, now
            best = "nothing yet" if step.objective == float("inf") else f"{step.objective:g}"
            yield f"{step.seconds:6.1f} s  {step.doing}: {best}, bound {step.bound:g}"

    return said


class OperatorLine:
    """Shows the operator being timed on standard error, if that is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> OperatorLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int, kind: str) -> None:
        """``done`` of ``total`` operators have been timed, the next is of ``kind``."""
        if self._shown:
            print(f"\r\x1b[K{done}/{total} {kind}", end="", file=sys.stderr, flush=True)

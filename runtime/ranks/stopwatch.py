"""When something ran, on a CPU and on a GPU, and sleeping until a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from weft.runtime.plan.program import Work
from weft.runtime.ranks.session import Session


class Stopwatch(Protocol):
    """Measures laps, one after another."""

    def begin(self) -> None:
        """Nothing runs now: times count from here."""

    def start(self) -> None:
        """The next call begins a lap."""

    def stop(self, work: Work) -> None:
        """The lap of ``work`` is over."""

    def laps(self) -> list[tuple[Work, float, float]]:
        """Each lap's start and end in seconds on the session's clock. Waits for a GPU to finish."""


def stopwatch(session: Session) -> Stopwatch:
    """The stopwatch for what runs on ``session.device``."""
    return _GpuStopwatch(session) if session.device.type == "cuda" else _CpuStopwatch(session)


class _CpuStopwatch:
    def __init__(self, session: Session) -> None:
        self._offset, self._from = session.offset, 0.0
        self._laps: list[tuple[Work, float, float]] = []

    def begin(self) -> None:
        pass

    def start(self) -> None:
        self._from = time.perf_counter()

    def stop(self, work: Work) -> None:
        self._laps.append((work, self._from, time.perf_counter()))

    def laps(self) -> list[tuple[Work, float, float]]:
        return [(work, start + self._offset, end + self._offset) for work, start, end in self._laps]


class _GpuStopwatch:
    """Events in the stream, so that measuring adds no wait."""

    def __init__(self, session: Session) -> None:
        self._now, self._zero, self._base = session.now, 0.0, _event()
        self._events: list[tuple[Work | None, torch.cuda.Event]] = []

    def begin(self) -> None:
        torch.cuda.synchronize()
        self._base.record()
        torch.cuda.synchronize()
        self._zero = self._now()

    def start(self) -> None:
        self._mark(None)

    def stop(self, work: Work) -> None:
        self._mark(work)

    def _mark(self, work: Work | None) -> None:
        event = _event()
        event.record()
        self._events.append((work, event))

    def laps(self) -> list[tuple[Work, float, float]]:
        torch.cuda.synchronize()
        times = [(work, self._zero + self._base.elapsed_time(event) / 1e3) for work, event in self._events]
        return [(work, start, end) for (_, start), (work, end) in zip(times[::2], times[1::2], strict=True)
                if work is not None]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def sleep_until(moment: float, now: Callable[[], float], late: float = 0.0) -> None:
    """Sleep until ``now()`` is ``moment``; ``late`` is the known overrun of a sleep (seconds)."""
    while (left := moment - late - now()) > 0:
        time.sleep(left)

"""Laps on the clock that all ranks share, and waiting for a moment on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.runtime.plan.program import StageWork
from weft.runtime.ranks.session import Session
from weft.runtime.ranks.stopwatch import sleep_until, stopwatch


def test_laps_are_on_the_shared_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("weft.runtime.ranks.stopwatch.time.perf_counter", lambda: next(times))
    watch: Any = None
    found = stopwatch(Session(0, 1, torch.device("cpu"), watch, offset=100.0))
    found.begin()
    for micro_batch in range(2):
        found.start()
        found.stop(StageWork(0, "F", micro_batch))
    assert found.laps() == [(StageWork(0, "F", 0), 101.0, 103.0), (StageWork(0, "F", 1), 110.0, 110.5)]


def test_a_sleep_that_ends_early_goes_on_and_one_known_to_last_too_long_is_shorter(
        monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds / 2 if len(slept) == 1 else seconds

    monkeypatch.setattr("weft.runtime.ranks.stopwatch.time.sleep", sleep)
    sleep_until(8.0, lambda: clock[0], late=1.0)
    assert slept == [7.0, 3.5] and clock[0] == 7.0
    sleep_until(5.0, lambda: clock[0])
    assert len(slept) == 2

"""Sleeping on a counter."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time

import pytest

from weft.runtime.transports.one_host import futex
from weft.runtime.transports.one_host.futex import Sleeper


def test_who_sleeps_on_a_counter_is_woken_by_another_process() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    counter, sleeper = memoryview(memory)[64:72].cast("q"), Sleeper(memoryview(memory), 64)
    child = os.fork()
    if not child:
        time.sleep(0.05)
        counter[0] = 2**32 + 7
        sleeper.wake()
        os._exit(0)
    begun = time.monotonic()
    while not counter[0]:
        sleeper.sleep(0, 20.0)
    assert time.monotonic() - begun < 10  # it does not sleep to the end
    os.waitpid(child, 0)
    sleeper.sleep(3, 20.0)  # the counter is another one already
    assert time.monotonic() - begun < 10


def test_nobody_wakes_it_then_it_wakes_itself() -> None:
    memory = memoryview(bytearray(8))
    sleeper, done = Sleeper(memory, 0), threading.Event()

    def sleep() -> None:
        sleeper.sleep(0, 0.01)
        done.set()

    threading.Thread(target=sleep, daemon=True).start()
    assert done.wait(10)


@pytest.mark.parametrize("missing", ["_NUMBER", "_CALL"])
def test_without_the_call_a_sleep_is_a_nap(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another kind of machine that number is another call."""
    monkeypatch.setattr(futex, missing, None)
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    sleeper = Sleeper(memoryview(bytearray(8)), 0)
    sleeper.sleep(0, 20.0)
    sleeper.wake()
    assert naps == [futex.NAP]


def test_a_call_that_is_forbidden_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    own, sleep = threading.get_ident(), time.sleep  # threads of other tests may be asleep, too
    monkeypatch.setattr(time, "sleep", lambda seconds: (
        naps.append if threading.get_ident() == own else sleep)(seconds))
    sleeper = Sleeper(memoryview(bytearray(8)), 0)
    sleeper.sleep(1, 20.0)  # the counter is another one: no sleep is needed
    assert not naps
    monkeypatch.setattr(futex, "_call", lambda *arguments: errno.EPERM)
    sleeper.sleep(0, 20.0)
    assert naps == [futex.NAP]

"""Sleeping on a counter."""

from __future__ import annotations

import mmap
import os
import threading
import time

from weft.runtime.transports.futex import Sleeper


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

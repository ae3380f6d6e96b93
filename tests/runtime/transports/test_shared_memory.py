"""Memory that processes share: counters and an emulated link's moments, the peers' processes."""

from __future__ import annotations

import os
import subprocess

from weft.runtime.transports.shared_memory import LANE, _Counters, _Processes


def test_messages_over_an_emulated_link_follow_each_other() -> None:
    clock = [100.0]
    memory = memoryview(bytearray(LANE))
    lane = _Counters(memory, 0, memoryview(bytearray(4 * 8)).cast("d"), (0.5, 1000.0), lambda: clock[0])
    for number in range(3):
        lane.leave(number, 2000)
    assert [lane.arrival(number) for number in range(3)] == [102.5, 104.5, 106.5]
    clock[0] = 200.0
    lane.leave(3, 1000)
    assert lane.arrival(3) == 201.5
    lane.posted, lane.written = 7, 5
    assert (lane.posted, lane.written) == (7, 5)


def test_a_peers_process_is_asked_for_by_a_handle_that_is_given_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    child = subprocess.Popen(["sleep", "60"])
    processes = _Processes({3: child.pid, 4: os.getpid()})
    assert processes.alive(3) and processes.alive(4)
    child.kill()
    child.wait()
    assert not processes.alive(3) and processes.alive(4)
    processes.close()
    assert set(os.listdir("/proc/self/fd")) <= before

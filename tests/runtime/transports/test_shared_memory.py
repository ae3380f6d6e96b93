"""Memory that processes share: GPU slots by handles, counters and an emulated link's moments, the peers' processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.buffer_tensors import allocate, layout_of
from weft.runtime.transports.shared_memory import LANE, _Counters, _gpu_handles, _PeersSlots, _Processes


def test_a_peers_gpu_slot_is_handed_to_each_that_writes_there_and_opened_once() -> None:
    """PyTorch counts the openings of a handle. What makes and opens handles works on CPU tensors too."""
    layout = layout_of({"": ((2,), torch.float32)})
    works = [StageWork(0, "F", m) for m in range(4)]
    landings = [Landing(work, peer, layout, 0, 0, 0, slot) for work, peer, slot in zip(
        works, (1, 2, 1, 1), (0, 0, 0, 1), strict=True)]
    slots = allocate([8, 8], torch.device("cpu"))
    handles = _gpu_handles(slots, BufferTable((8, 8), tuple(landings), (), ()))
    assert list(handles) == [(0, 1), (0, 2), (1, 1)]
    calls: list[object] = []

    def counted(build: Callable[..., Tensor], *arguments: object) -> Tensor:
        calls.append(arguments)
        return build(*arguments)

    peers = _PeersSlots(1, {3: {key: (counted, (build, *arguments)) for key, (build, arguments) in handles.items()}})
    first = peers[3, 0]
    assert peers[3, 0] is first and peers[3, 1] is not first and len(calls) == 2
    first.fill_(7)
    assert bool((slots[0] == 7).all()) and not bool(slots[1].any())
    with pytest.raises(KeyError):
        peers[3, 2]


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

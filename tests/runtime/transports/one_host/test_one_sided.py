"""One-sided transfers in plain memory."""

from __future__ import annotations

import pytest
import torch

from tests.support.threads import Lane
from weft.runtime.measure.measure import Memory, memory_of
from weft.runtime.plan.buffers import Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.one_host.one_sided import OneSided, releases
from weft.runtime.transports.tensors import allocate, layout_of, view


def test_what_the_copying_thread_raises_is_raised_where_the_rank_waits() -> None:
    layout = layout_of({"": ((2,), torch.float32)})
    message, lane, closed = Staging(StageWork(0, "F", 0), 1, layout, 0, 0, 0), Lane(), list[bool]()
    target = view(allocate([layout.size], torch.device("cpu"))[0], layout)
    transport = OneSided({}, {message: target}, {}, {1: lane}, lambda peer: True, closed=lambda: closed.append(True))
    leaving = transport.sender(message)({"": torch.ones(3)})  # its slot is not free yet, so the thread will copy
    lane.posted = 1
    with pytest.raises(RuntimeError, match="size"):
        leaving.wait()
    assert lane.written == 0
    transport.close()
    assert closed == [True]


def test_what_the_copying_thread_gives_back_is_counted_where_memory_is_watched() -> None:
    layout = layout_of({"": ((1000,), torch.float32)})
    message, lane = Staging(StageWork(0, "F", 0), 1, layout, 0, 0, 0), Lane()
    target = view(allocate([layout.size], torch.device("cpu"))[0], layout)
    transport = OneSided({}, {message: target}, {}, {1: lane}, lambda peer: True)
    send, kept = transport.sender(message), torch.ones(1000)

    def run() -> None:
        leaving = [send({"": torch.ones(1000)}), send({"": kept})]  # their slots are not free yet
        lane.posted = 2
        for each in leaving:
            each.wait()

    with releases() as elsewhere:
        _, memory = memory_of(run, torch.device("cpu"), elsewhere)
    transport.close()
    assert [size for _, size in elsewhere] == [4000]  # what somebody else has is still there
    assert memory == Memory(0, 4000)

"""One-sided transfers in plain memory."""

from __future__ import annotations

import pytest
import torch

from tests.support.threads import Lane
from weft.runtime.plan.buffers import Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.one_host.one_sided import OneSided
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

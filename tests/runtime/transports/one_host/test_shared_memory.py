"""Memory that processes share: counters and an emulated link's moments, memory that cannot be had."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.ranks.session import Session
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.one_host.shared_memory import LANE, _bytes, _Counters, _own_memory, share

CPU = torch.device("cpu")


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


def test_where_memory_cannot_be_had_all_that_was_taken_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever refuses it says so in a sentence, on all ranks; no file is left, and with it no memory."""
    before = set(os.listdir("/proc/self/fd"))
    for name in ("memfd_create", "posix_fallocate"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refuse)
            with pytest.raises(TransportError, match="rank 2 cannot have 128 bytes of shared memory: no room"):
                _own_memory(2, 128, b"token")
    other = ("rank 1 cannot have 128 bytes", 1, -1, b"", 0)
    session = SimpleNamespace(rank=0, world=2, device=CPU, exchange=lambda value, text: [value, other])
    with pytest.raises(TransportError, match="rank 1 cannot have 128 bytes"):
        share(cast(Session, session), [BufferTable((64,), (), (), ()), BufferTable((), (), (), ())])
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_message_may_have_no_bytes() -> None:
    memory = memoryview(bytearray(64))
    assert _bytes(memory, 64, 0).nbytes == 0 and _bytes(memory, 0, 64).nbytes == 64


def refuse(*arguments: object) -> None:
    raise OSError(28, "no room")

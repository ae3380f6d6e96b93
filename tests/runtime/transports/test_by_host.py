"""Which messages go through shared memory, and which over sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from weft.runtime.plan.buffers import BufferTable, Landing, MessageLayout, Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.ranks.session import Session
from weft.runtime.transports.by_host import by_host, host, memory_of, split
from weft.runtime.transports.tensors import allocate, layout_of, view

KNOWN = layout_of({"": ((100,), torch.uint8)})
UNKNOWN = layout_of({"": ((None,), torch.uint8)})


def table(entries: list[tuple[int, MessageLayout, int]]) -> BufferTable:
    """Messages from and to those peers, in those slots."""
    works = [StageWork(0, "F", m) for m in range(len(entries))]
    slots = [0] * (1 + max(slot for *_, slot in entries))
    for _, layout, slot in entries:
        slots[slot] = layout.size
    return BufferTable(tuple(slots),
                       tuple(Landing(work, peer, layout, step, step, step, slot) for step, (work, (peer, layout, slot))
                             in enumerate(zip(works, entries, strict=True))), (),
                       tuple(Staging(work, peer, layout, step, step, 0) for step, (work, (peer, layout, _))
                             in enumerate(zip(works, entries, strict=True))))


def test_messages_stay_on_the_host_where_they_can() -> None:
    """Rank 1 is on rank 0's host, rank 2 is not. Slot 0 has messages of both: it lies in shared memory, once."""
    given = table([(1, KNOWN, 0), (2, KNOWN, 0), (2, KNOWN, 1), (1, UNKNOWN, 2), (2, UNKNOWN, 2)])
    near, far = split(0, given, ["a", "a", "b"])
    assert near.receives == (given.receives[0], given.receives[3]) and near.sends == (given.sends[0], given.sends[3])
    assert far.receives == tuple(given.receives[i] for i in (1, 2, 4))
    assert far.sends == tuple(given.sends[i] for i in (1, 2, 4))
    assert near.slots == (100, 0, 0) and far.slots == (0, 100, 0)


def test_where_no_memory_can_be_shared_nothing_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    given = table([(1, KNOWN, 0)])
    near, far = split(0, given, [None, None])
    assert not near.receives and not near.sends and near.slots == (0,) and far == given
    assert host() == host()
    monkeypatch.setattr("weft.runtime.transports.by_host.can_share", lambda: False)
    assert host() is None


def test_a_host_that_shares_no_memory_leaves_all_to_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks cannot take part where all ranks must make theirs together."""
    given = [table([(1, KNOWN, 0)]), table([(0, KNOWN, 0)]), BufferTable((), (), (), ())]
    session = SimpleNamespace(rank=0, device=torch.device("cpu"), exchange=lambda value, text: ["a", "a", None])
    monkeypatch.setattr("weft.runtime.transports.by_host.share", lambda *arguments: pytest.fail("is made"))
    monkeypatch.setattr("weft.runtime.transports.by_host.ProcessGroupTransport", lambda *arguments: arguments[1:])
    assert cast(object, by_host(cast(Session, session), given, "gloo")) == (given[0], "gloo")


def test_memory_of_a_slot_is_all_of_it() -> None:
    memory, = allocate([KNOWN.size], torch.device("cpu"))
    found = memory_of(view(memory, KNOWN))
    assert found.data_ptr() == memory.data_ptr() and len(found) == 100

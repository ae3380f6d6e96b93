"""Which messages go through shared memory, and which over sockets."""

from __future__ import annotations

import torch

from weft.runtime.plan.buffers import BufferTable, Landing, Layout, Staging
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.buffer_tensors import allocate, layout_of, view
from weft.runtime.transports.near_and_far import LARGE, memory_of, split

SMALL = layout_of({"": ((LARGE - 1,), torch.uint8)})
LARGEST = layout_of({"": ((LARGE,), torch.uint8)})
UNKNOWN = layout_of({"": ((None,), torch.uint8)})


def table(entries: list[tuple[int, Layout, int]]) -> BufferTable:
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


def test_large_messages_and_those_of_unknown_size_stay_on_the_host() -> None:
    """Rank 1 is on rank 0's host, rank 2 is not. Slot 1 has messages of both: it lies in shared memory, once."""
    given = table([(1, SMALL, 0), (1, LARGEST, 1), (2, LARGEST, 1), (2, LARGEST, 2), (1, UNKNOWN, 3), (2, UNKNOWN, 3)])
    near, far = split(0, given, ["a", "a", "b"])
    assert near.receives == (given.receives[1], given.receives[4])
    assert near.sends == (given.sends[1], given.sends[4])
    assert far.receives == tuple(given.receives[i] for i in (0, 2, 3, 5))
    assert far.sends == tuple(given.sends[i] for i in (0, 2, 3, 5))
    assert near.slots == (0, LARGE, 0, 0) and far.slots == (LARGE - 1, 0, LARGE, 0)


def test_where_no_memory_can_be_shared_nothing_is_near() -> None:
    given = table([(1, LARGEST, 0)])
    near, far = split(0, given, [None, None])
    assert not near.receives and not near.sends and near.slots == (0,) and far == given


def test_memory_of_a_slot_is_all_of_it() -> None:
    memory, = allocate([LARGEST.size], torch.device("cpu"))
    found = memory_of(view(memory, LARGEST))
    assert found.data_ptr() == memory.data_ptr() and len(found) == LARGE

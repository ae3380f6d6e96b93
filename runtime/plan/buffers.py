"""The buffer table of a rank: the buffer of every message, computed before the launch.

Each RECV gets a *slot*. A slot is in use from its RECV to the last instruction that may read the message, and is then
reused by messages of the same size. Intervals form an interval graph, so the greedy assignment in the order of RECVs
uses as many slots as the largest number of overlapping intervals, which is optimal (Golumbic, Algorithmic Graph Theory
and Perfect Graphs, 1980, chapter 8). Messages of different sizes do not share slots: packing them into the least memory
is NP-hard, and a pipeline has few sizes. Messages of unknown shapes have slots of their own, of 0 bytes here; these
grow at run time and are not part of any memory check.

A receive is *posted* as soon as its slot is free and the earlier messages with the same peer, in either direction, have
been started. So the order of messages between two ranks is that of the program, and the proofs for the program
(:mod:`weft.runtime.plan.check`) hold for the postings, even if one stream carries all messages of two ranks. (A posting
does not block, and in the strict run it never waits for anything later than its RECV.)

A SEND reads its result in place. A result that cannot be sent from its memory is copied to a *staging* buffer, assigned
in the same way: a SEND is complete at the latest when the :data:`OPEN_SENDS`-th SEND after it starts.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from weft.runtime.plan.program import Instruction, Recv, Reduce, Send, Work

#: The most pending SENDs of a rank: before another one starts, the rank waits for the oldest.
OPEN_SENDS = 8


class MessageTensor(NamedTuple):
    """One tensor of a message: its name, shape, dtype (``"float32"``), and offset in the buffer in bytes.

    A length of ``None`` is known only when the message is sent.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    offset: int


class MessageLayout(NamedTuple):
    """A message's tensors, and the size of its buffer in bytes.

    For a message with an unknown length, size and offsets are 0: its buffer grows at run time.
    """

    parts: tuple[MessageTensor, ...]
    size: int

    @property
    def is_known(self) -> bool:
        """Whether all lengths of all tensors are known."""
        return all(None not in part.shape for part in self.parts)

    def __str__(self) -> str:
        return " and ".join(f"{part.name} {list(part.shape)} of {part.dtype}".strip() for part in self.parts)


class Landing(NamedTuple):
    """The RECV at ``step`` of a rank: it is posted before the instruction at ``posted`` runs, and its ``slot`` is in
    use up to the instruction at ``last``."""

    what: Work
    peer: int
    layout: MessageLayout
    step: int
    posted: int
    last: int
    slot: int


class Staging(NamedTuple):
    """The SEND at ``step`` of a rank: it is complete at the latest when the instruction at ``last`` is complete."""

    what: Work
    peer: int
    layout: MessageLayout
    step: int
    last: int
    slot: int


@dataclass(frozen=True)
class BufferTable:
    """One rank's buffers. ``slots`` and ``staging_slots``: their sizes in bytes. ``receives`` and ``sends``: in the
    order of the rank's instructions."""

    slots: tuple[int, ...]
    receives: tuple[Landing, ...]
    staging_slots: tuple[int, ...]
    sends: tuple[Staging, ...]

    @property
    def size(self) -> int:
        """Bytes of all slots. (Staging buffers are allocated only for results that cannot be sent in place.)"""
        return sum(self.slots)

    @cached_property
    def postings(self) -> Mapping[int, tuple[Landing, ...]]:
        """The receives posted before each step, in order."""
        found: dict[int, list[Landing]] = defaultdict(list)
        for landing in self.receives:
            found[landing.posted].append(landing)
        return {step: tuple(landings) for step, landings in found.items()}


def buffer_table(instructions: Sequence[Instruction], layouts: Mapping[Instruction, MessageLayout],
                 reads: Callable[[Work], Iterable[Work]], keeps: Callable[[Work], Work], *,
                 early: bool = True) -> BufferTable:
    """The buffer table of a rank that runs ``instructions``.

    ``layouts``: of each SEND and RECV. ``reads(work)``: the work whose results ``work`` waits for or reads.
    ``keeps(work)``: the rank's last instruction that may read these results (``work`` itself, or a backward that needs
    the forward's input). Without ``early``, a receive is posted at its RECV.
    """
    step_of = {instruction: step for step, instruction in enumerate(instructions)}
    last_use: dict[Work, int] = {}
    done = send_done(instructions)
    for step, instruction in enumerate(instructions):
        if isinstance(instruction, Send):
            last_use[instruction.what] = max(last_use.get(instruction.what, 0), done[step])
        elif not isinstance(instruction, (Recv, Reduce)):
            kept = step_of[keeps(instruction)]
            for what in reads(instruction):
                last_use[what] = max(last_use.get(what, 0), kept)

    slots, staging = _Slots(), _Slots()
    receives, sends = [], []
    open_from: dict[int, int] = {}  # peer -> the first step before which its next message may start
    for step, instruction in enumerate(instructions):
        if isinstance(instruction, Recv):
            what, peer = instruction.what, instruction.peer
            last = max(step, last_use.get(what, step))
            slot, free_from = slots.take(layouts[instruction], step, last)
            posted = max(free_from, open_from.get(peer, 0)) if early else step
            open_from[peer] = posted
            receives.append(Landing(what, peer, layouts[instruction], step, posted, last, slot))
        elif isinstance(instruction, Send):
            open_from[instruction.peer] = step + 1
            slot, _ = staging.take(layouts[instruction], step, done[step])
            sends.append(Staging(instruction.what, instruction.peer, layouts[instruction], step, done[step], slot))
    return BufferTable(tuple(slots.sizes), tuple(receives), tuple(staging.sizes), tuple(sends))


def send_done(instructions: Sequence[Instruction]) -> dict[int, int]:
    """For each SEND, by step, the last step during which it may be pending."""
    steps = [step for step, instruction in enumerate(instructions) if isinstance(instruction, Send)]
    ends = [*(step - 1 for step in steps[OPEN_SENDS:]), *[len(instructions) - 1] * OPEN_SENDS]
    return dict(zip(steps, ends, strict=False))


def waiting_bytes(ranks: Sequence[Sequence[Instruction]], tables: Sequence[BufferTable],
                  times: Mapping[Work, tuple[float, float]]) -> list[list[tuple[float, int]]]:
    """For each rank, the changes over time of the bytes of results that wait for a slot of their receiver: ``(time,
    change)``. A SEND writes into the slot as soon as that is posted; work starts and ends at ``times``, and a slot is
    posted at the end of the last work before the posting."""
    landings = {(landing.what, landing.peer, peer): landing for peer, table in enumerate(tables)
                for landing in table.receives}
    found = []
    for rank, own in enumerate(ranks):
        changes: list[tuple[float, int]] = []
        for instruction in own:
            if isinstance(instruction, Send) and instruction.what in times:
                landing = landings[instruction.what, rank, instruction.peer]
                before = (times[work][1] for work in ranks[instruction.peer][:landing.posted]
                          if not isinstance(work, (Send, Recv, Reduce)) and work in times)
                sent, posted = times[instruction.what][1], max(before, default=0.0)
                if posted > sent:
                    changes += [(sent, landing.layout.size), (posted, -landing.layout.size)]
        found.append(changes)
    return found


class _Slots:
    """Assigns slots to intervals in the order of their starts."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        #: By size and whether it is known: a heap of (free from, slot).
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)

    def take(self, layout: MessageLayout, first: int, last: int) -> tuple[int, int]:
        """The slot for steps ``first`` to ``last``, the one that has been free longest, and the step from which it is
        free."""
        ready = self._free[layout.size, layout.is_known]
        if ready and ready[0][0] <= first:
            free_from, slot = heapq.heappop(ready)
        else:
            free_from, slot = 0, len(self.sizes)
            self.sizes.append(layout.size)
        heapq.heappush(ready, (last + 1, slot))
        return slot, free_from

"""Where every message of a rank lands: one table of buffers, computed before the launch.

Each RECV of a rank gets a *slot*. A slot is in use from its RECV to the last instruction that may read the message, and
is then reused by messages of the same size. Intervals on a line are an interval graph, so giving each message, in the
order of their RECVs, any free slot uses as many slots as ever overlap: no colouring uses fewer (Golumbic, Algorithmic
Graph Theory and Perfect Graphs, 1980, chapter 8). Sizes are kept apart: packing different sizes into the least memory
is NP-hard, and a pipeline has few. So are messages whose shapes the plan does not know: their slots have 0 bytes here
and grow as messages come, which no check of memory can count.

A receive is *posted* as soon as its slot is free and the earlier messages with the same peer, in either direction, have
been started: the order of messages between two ranks stays that of the program, so the proofs for the program
(:mod:`weft.runtime.plan.check`) hold for the postings, even where one stream carries all messages of two ranks. (A
posting does not block, and along the strict run it never waits for anything later than its RECV.)

A SEND reads its result in place. A result that cannot be sent from there is copied to a *staging* buffer, planned in
the same way: a SEND is over at the latest when the :data:`OPEN_SENDS`-th SEND after it starts.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from weft.runtime.plan.program import Instruction, Recv, Reduce, Send, Work

#: How many SENDs of a rank may be unfinished; before one more starts, the oldest is waited for.
OPEN_SENDS = 8


class MessageTensor(NamedTuple):
    """One tensor of a message: its name, shape, the name of its type (``"float32"``), and its offset in a buffer.

    A length of ``None`` is known only when the message is sent.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    offset: int


class MessageLayout(NamedTuple):
    """A message's tensors, and the bytes of a buffer for them.

    Of a message with an unknown length, the size is 0 and the offsets too: its buffer grows as messages come.
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
    """The SEND at ``step`` of a rank: it is over when the instruction at ``last`` is done, or before."""

    what: Work
    peer: int
    layout: MessageLayout
    step: int
    last: int
    slot: int


@dataclass(frozen=True)
class BufferTable:
    """One rank's buffers. ``slots`` and ``staging_slots`` hold sizes in bytes; ``receives`` and ``sends`` are in the
    order of the rank's instructions."""

    slots: tuple[int, ...]
    receives: tuple[Landing, ...]
    staging_slots: tuple[int, ...]
    sends: tuple[Staging, ...]

    @property
    def size(self) -> int:
        """Bytes of all slots (staging buffers are made only where a result cannot be sent as it is)."""
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
    """The table of a rank that runs ``instructions``.

    ``layouts`` has each of their SENDs and RECVs; ``reads(work)`` is the work whose results ``work`` waits for or
    reads, and ``keeps(work)`` is the rank's last instruction that may read these (``work`` itself, or a backward that
    still needs the forward's input). With ``early`` false a receive is posted at its RECV.
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
    """Per SEND of ``instructions``, by step, the last step at which it may still be under way."""
    steps = [step for step, instruction in enumerate(instructions) if isinstance(instruction, Send)]
    ends = [*(step - 1 for step in steps[OPEN_SENDS:]), *[len(instructions) - 1] * OPEN_SENDS]
    return dict(zip(steps, ends, strict=False))


def waiting_bytes(ranks: Sequence[Sequence[Instruction]], tables: Sequence[BufferTable],
                  times: Mapping[Work, tuple[float, float]]) -> list[list[tuple[float, int]]]:
    """Of each rank, the moments at which the bytes of results that wait for a slot of their receivers change, and by
    how many, where a SEND writes into a slot as soon as it is posted and works start and end at ``times``: a slot is
    posted behind the last work before."""
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
    """Slots handed out to intervals in the order of their starts."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        #: By size and whether it is known: a heap of (free from, slot).
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)

    def take(self, layout: MessageLayout, first: int, last: int) -> tuple[int, int]:
        """A slot for steps ``first`` to ``last``, the one free for longest, and the step from which it is free."""
        ready = self._free[layout.size, layout.is_known]
        if ready and ready[0][0] <= first:
            free_from, slot = heapq.heappop(ready)
        else:
            free_from, slot = 0, len(self.sizes)
            self.sizes.append(layout.size)
        heapq.heappush(ready, (last + 1, slot))
        return slot, free_from

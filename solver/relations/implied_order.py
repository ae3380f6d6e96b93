"""Which operation must precede which: by dependencies, micro-batch order and memory.

``order[i, j] = h`` says that block i of micro-batch m ends before block j of micro-batch m + h starts, for every m for
which both exist (and so for every larger distance, as a block's micro-batches run in order). It is true of every
schedule; durations play no part.

*Memory.* Let x and y share a device. If "x of micro-batch m runs before y of micro-batch m - K" leaves some block no
room to start, y comes first: ``order[y, x] <= K``. When block z starts on a device, all that must precede it there has
run, and all that must follow it has not. The blocks that every other micro-batch has run by then are some set closed
under "must precede"; the set with the least memory gives a lower bound on the level. Only micro-batches m - K to m are
counted, which exist wherever the statement is used; the level of others is at least 0, which is required.

The test foresees deadlocks: with room for two activations, one kept for long (a first chunk) and one briefly (a last
chunk), the next micro-batch's first chunk has to wait, because this one's last would find no room.

*Rounds.* As durations play no part, the micro-batches of a round are ordered like those of one problem
(:mod:`weft.solver.relations.turns`): what must precede what there does so among the blocks of rounds, too.
"""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint
from weft.solver.relations.graph import RelationGraph, graph_of
from weft.solver.relations.turns import RoundTurns, turns_of
from weft.solver.ticks import TickProblem

Order = npt.NDArray[np.int32]

#: Distance of two blocks neither of which has to precede the other.
NEVER = 2**29

#: A device with more sets of blocks closed under "must precede" than this takes no part in the memory argument.
_MOST_STATES = 512
#: Micro-batches in flight beyond this many are not counted.
_DEEPEST = 256
_MOST_ROUNDS = 4


def implied_order(instance: TickProblem, graph: RelationGraph, micro_batches: int) -> Order:
    """The matrix ``order`` over the nodes of ``graph``, for schedules of ``micro_batches`` micro-batches."""
    order = _by_waits(graph)
    limited = [d for d in instance.distinct_devices if instance.limited(d)]
    if limited and (turns := turns_of(instance)).width > 1:
        _learn_from_turns(turns, micro_batches, order)
    if micro_batches > 1:
        for _ in range(_MOST_ROUNDS):
            before = order.copy()
            for d in limited:
                _learn(instance, d, min(micro_batches - 1, _DEEPEST), order)
            if np.array_equal(before, order):
                break
    return order


def _by_waits(graph: RelationGraph) -> Order:
    """The order implied by the waits alone: within a micro-batch along its graph, producers first; then, wait by wait,
    the paths from one micro-batch to a later one."""
    n = len(graph.durations)
    before: list[list[int]] = [[] for _ in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for wait in graph.waits:
        if not wait.distance:
            before[wait.target].append(wait.source)
            after[wait.source].append(wait.target)
    open_ = [len(waits) for waits in before]
    ready = [i for i in range(n) if not open_[i]]
    to = np.full((n, n), NEVER, dtype=np.int32)  # transposed: a row has all that precede one node
    np.fill_diagonal(to, 1)
    while ready:
        checkpoint()
        j = ready.pop()
        for i in before[j]:
            np.minimum(to[j], to[i], out=to[j])
            to[j, i] = 0
        to[j, j] = 1
        for k in after[j]:
            open_[k] -= 1
            if not open_[k]:
                ready.append(k)
    order = np.ascontiguousarray(to.T)
    for source, target, distance in sorted({(wait.source, wait.target, wait.distance) for wait in graph.waits
                                            if wait.distance}):
        checkpoint()
        if distance < order[source, target]:
            _add(order, source, target, distance)
    return order


def _learn_from_turns(turns: RoundTurns, rounds: int, order: Order) -> None:
    """Raise the precedences by those of one problem whose micro-batches a round runs in turn."""
    width, blocks = turns.width, turns.blocks
    known = implied_order(turns.alike, graph_of(turns.alike), rounds * width)
    for i, j in np.argwhere(known < rounds * width).tolist():
        for turn in range(width) if i != j else ():
            later, other = divmod(turn + int(known[i, j]), width)
            if later < order[blocks[i][turn], blocks[j][other]]:
                _add(order, blocks[i][turn], blocks[j][other], later)


def _learn(instance: TickProblem, device: int, deepest: int, order: Order) -> None:
    """Raise the precedences on ``device`` by the memory argument."""
    memory = _DeviceMemory(instance, device, order)
    if not memory.usable:
        return
    for x, y in itertools.product(memory.takers, range(len(memory.blocks))):
        if x == y:
            continue
        checkpoint()
        low = 1 if memory.order[x, y] == 0 else 0  # x of a micro-batch precedes its own y
        high = int(memory.order[y, x])
        if high > deepest:
            high = deepest
            if low > high or not memory.refutes(x, y, high):
                continue
        while low < high:
            middle = (low + high) // 2
            if memory.refutes(x, y, middle):
                high = middle
            else:
                low = middle + 1
        if high < memory.order[y, x]:
            _add(order, memory.blocks[y], memory.blocks[x], high)
            memory = _DeviceMemory(instance, device, order)


def _add(order: Order, source: int, target: int, distance: int) -> None:
    into = order[:, source].copy()
    into[source] = 0
    out = order[target].copy()
    out[target] = 0
    np.minimum(order, into[:, None] + out[None, :] + distance, out=order)
    np.minimum(order, NEVER, out=order)


class _DeviceMemory:
    """One device's blocks by their place on it, and their memory."""

    def __init__(self, instance: TickProblem, device: int, order: Order) -> None:
        self.blocks = list(instance.blocks_on[device])
        self.capacity = instance.capacity[device] or 0
        self.take = [instance.take[device][i] for i in self.blocks]
        self.change = [instance.change[device][i] for i in self.blocks]
        self.takers = [place for place, amount in enumerate(self.take) if amount > 0]
        self.order = order[np.ix_(self.blocks, self.blocks)]
        #: Like ``order``, but a block of a micro-batch precedes itself.
        self.reflexive = self.order.copy()
        np.fill_diagonal(self.reflexive, 0)
        self.bits = 1 << np.arange(len(self.blocks), dtype=np.int64)
        self._least: dict[tuple[int, int], int | None] = {}

    @cached_property
    def states(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """All sets of a micro-batch's blocks that may have run, as bits, and the memory of each; None if too many."""
        needs = [sum(1 << j for j in range(len(self.blocks)) if j != i and self.order[j, i] == 0)
                 for i in range(len(self.blocks))]
        known = {0}
        fresh = [0]
        while fresh:
            state = fresh.pop()
            for i, need in enumerate(needs):
                larger = state | 1 << i
                if larger != state and need & state == need and larger not in known:
                    known.add(larger)
                    fresh.append(larger)
                    if len(known) > _MOST_STATES:
                        return None
        masks = np.array(sorted(known), dtype=np.int64)
        held = np.array([sum(self.change[i] for i in range(len(self.blocks)) if state >> i & 1)
                         for state in sorted(known)], dtype=np.int64)
        return masks, held

    @property
    def usable(self) -> bool:
        """Whether the device has few enough states, and the memory of each is at least 0."""
        return bool(self.takers) and self.states is not None and int(self.states[1].min()) >= 0

    def refutes(self, x: int, y: int, distance: int) -> bool:
        """Whether x of micro-batch ``distance`` cannot run before y of micro-batch 0."""
        turns = np.arange(distance + 1)
        # by x: who precedes x of `distance`; from y: whom y of 0 precedes. Rows: blocks, columns: micro-batches.
        by_x = distance - turns[None, :] >= self.reflexive[:, x, None]
        from_y = turns[None, :] >= self.reflexive[y, :, None]
        if np.any(by_x & from_y):
            return True  # y precedes x already
        for z in self.takers:
            first_after_y, last_before_x = int(np.argmax(from_y[z])), int(np.count_nonzero(by_x[z])) - 1
            for s in {0, distance, first_after_y, max(0, last_before_x)}:
                if not self._has_room(z, s, turns, by_x, from_y):
                    return True
        return False

    def _has_room(self, z: int, s: int, turns: npt.NDArray[np.int64], by_x: npt.NDArray[np.bool_],
                  from_y: npt.NDArray[np.bool_]) -> bool:
        """Whether z of micro-batch s may find room, if x runs before y as in :meth:`refutes`."""
        before = s - turns[None, :] >= self.reflexive[:, z, None]
        after = turns[None, :] - s >= self.reflexive[z, :, None]
        if from_y[z, s]:
            before |= by_x
        if by_x[z, s]:
            after |= from_y
        before[z, s] = False
        level = self.take[z]
        for must, never in zip((self.bits @ before).tolist(), (self.bits @ after).tolist(), strict=True):
            least = self._least_held(must, never)
            if least is None:
                return False
            level += least
        return level <= self.capacity

    def _least_held(self, must: int, never: int) -> int | None:
        """The least memory of a micro-batch that has run all of ``must`` and none of ``never``; None: impossible."""
        key = (must, never)
        if key not in self._least:
            assert self.states is not None
            masks, held = self.states
            possible = held[(masks & must == must) & (masks & never == 0)]
            self._least[key] = int(possible.min()) if possible.size else None
        return self._least[key]

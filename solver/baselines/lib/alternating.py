"""One forward, one backward by turns, with several stages a device and micro-batches in groups or in pieces.

The common part of 1F1B, its interleaved form, both with deferred weight gradients, and Seq1F1B. A device lists its
forwards and its backwards; the k-th backward comes right after forward k + *ahead*. Both lists go by *groups* of
micro-batches: all of a group pass through the device's first chunk, then through its next one; backwards start with the
last chunk. If a micro-batch comes in k pieces (chunks of its sequence), forwards run them first to last and backwards
last to first.

*Why no order deadlocks.* Let a_r be the lead of device r of p. Backward n waits for backward n of the next device,
which is further on there if a_r falls from each device to the next; the last device's first backward needs the forwards
up to its own micro-batch, so a_(p-1) is at least (v - 1) G k + k - 1 for v chunks and the largest group G. Backward n
of a chunk that is not the last waits, from the last device to the first, for backward n - G k there, which is behind
forward n - G k + a_0, and that behind forward n - 2 G k + a_0 of the last device, which must not be behind backward n:
a_0 - a_(p-1) <= 2 G k. Published rules take groups of at least p, for which that is true; smaller groups, which need
less memory, are capped to it here. Trials decide the cases that this leaves open (groups of unequal sizes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from weft.solver.baselines.lib.base import Row
from weft.solver.pipeline import Stage

#: A stage's blocks for each piece of a micro-batch; a single one if micro-batches are whole.
Pieces = Sequence[Stage]
#: From a number of micro-batches to the sizes of their groups.
Grouping = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TurnRule:
    """The rule. ``groups``: the sizes of the groups, in micro-batches; their excess over the number of micro-batches is
    planned and omitted, which leaves an order an order.

    Device r of p is ahead by ``slope`` for each device behind it, and by ``extra`` more. Its weight gradients, if they
    are separate blocks, run as many backwards later as its rank, ``put_off`` at most.
    """

    groups: tuple[int, ...]
    slope: int
    extra: int = 0
    put_off: int = 0

    def row(self, rank: int, p: int, stages: Sequence[Pieces], micro_batches: int) -> Row:
        """The order on device ``rank`` with ``stages``, in the order of a micro-batch's forwards."""
        forwards: Row = []
        backwards: list[tuple[tuple[tuple[int, ...], ...], int]] = []  # blocks of gradients, of weights
        ends = [[(piece.gradient, piece.weights) for piece in reversed(pieces)] for pieces in reversed(stages)]
        first = 0
        for size in self.groups:
            group = range(first, first + size)
            first += size
            forwards += [(piece.forward, m) for pieces in stages for m in group for piece in pieces]
            backwards += [(piece, m) for pieces in ends for m in group for piece in pieces]
        ahead = min(self._ahead(rank, p, len(stages), len(stages[0])), len(forwards))
        behind = min(rank, self.put_off)
        every, turns = forwards, list(range(0, 3 * len(forwards), 3))
        for part, begin in enumerate((ahead, ahead + behind)):
            every += [(block, m) for piece, m in backwards for block in piece[part]]
            turns += [3 * turn + part + 1 for turn, (piece, _) in enumerate(backwards, begin) for _ in piece[part]]
        return [op for op in map(every.__getitem__, sorted(range(len(turns)), key=turns.__getitem__))
                if op[1] < micro_batches]

    def _ahead(self, rank: int, p: int, chunks: int, pieces: int) -> int:
        down = self.slope * (p - 1 - rank)
        if chunks > 1:
            down = min(down, 2 * min(self.groups) * pieces)
        return (chunks - 1) * max(self.groups) * pieces + pieces - 1 + down + self.extra


def groupings(p: int, micro_batches: int) -> tuple[list[Grouping], list[Grouping]]:
    """The relevant groups for ``micro_batches``, if groups should have at least ``p``: those of programs first, each
    once; and smaller ones, which need less memory.

    Equal rounds; groups of p, and of twice that; half and all of the micro-batches. Then three quarters, a half and a
    quarter of p, and one.
    """
    usual: list[Grouping] = [partial(_even_groups, least=p), partial(_whole_groups, size=p),
                             partial(_whole_groups, size=2 * p), partial(_even_groups, parts=2),
                             partial(_even_groups, parts=1)]
    less: list[Grouping] = [partial(_whole_groups, size=max(1, -(-p * quarters // 4))) for quarters in (3, 2, 1, 0)]
    once: dict[tuple[int, ...], Grouping] = {}
    for groups in (*usual, *less):
        once.setdefault(groups(micro_batches), groups)
    return ([groups for groups in once.values() if groups in usual],
            [groups for groups in once.values() if groups in less])


def _whole_groups(micro_batches: int, size: int) -> tuple[int, ...]:
    """Groups of ``size``, the last one filled up, as Megatron-LM makes them of a multiple of ``size``."""
    size = min(size, micro_batches)
    return (size,) * -(-micro_batches // size)


def _even_groups(micro_batches: int, least: int = 1, parts: int | None = None) -> tuple[int, ...]:
    """As many groups of at least ``least`` as possible, or ``parts``, of sizes that differ by one at most, larger ones
    first: PyTorch's rounds, which it requires to be equal."""
    count = max(1, micro_batches // least) if parts is None else min(parts, micro_batches)
    size, larger = divmod(micro_batches, count)
    return (size + 1,) * larger + (size,) * (count - larger)

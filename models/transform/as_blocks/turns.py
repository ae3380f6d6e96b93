"""Micro-batches that may change places: parts in turn that are alike in all that counts.

Where swapping two neighbouring micro-batches changes nothing, some best order runs each block's in turn: of any
schedule, rename micro-batches at each block by when they run there. The k-th start of a block is then not before the
k-th end of what it waits for, so waits hold; devices and memory see the same blocks at the same times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from weft.models.transform.as_blocks.grouping import Grouped
from weft.models.transform.plan import Preserved

__all__ = ["Turns", "folded", "twins"]

_Look: TypeAlias = tuple[object, ...]


def twins(done: Preserved, blocks: Sequence[Grouped], seconds: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs of blocks, one micro-batch's and the next one's; none where micro-batches differ.

    A micro-batch is the first number of a block's turn. Alike are blocks of equal operators, devices, times and bytes
    that wait for blocks that are alike or the same.
    """
    turns = sorted({block.turn[0] for block in blocks if block.turn})
    by_turn: dict[int, dict[_Look, int]] = {turn: {} for turn in turns}
    for i, block in enumerate(blocks):
        if block.turn:
            look = _look(done, block, seconds[i])
            if look in by_turn[block.turn[0]]:
                return []  # two alike in one micro-batch: which is which is not known
            by_turn[block.turn[0]][look] = i
    found: list[tuple[int, int]] = []
    for one, other in pairwise(turns):
        if by_turn[one].keys() != by_turn[other].keys() or not _swaps(blocks, by_turn[one], by_turn[other]):
            return []
        found += [(i, by_turn[other][look]) for look, i in by_turn[one].items()]
    return found


@dataclass(frozen=True)
class Turns:
    """A plan that is one micro-batch's blocks many times: ``rows[m][k]`` is micro-batch m's block that is the k-th of
    the first micro-batch."""

    rows: tuple[tuple[int, ...], ...]


def folded(blocks: Sequence[Grouped], pairs: Sequence[tuple[int, int]]) -> Turns | None:
    """The micro-batches of a plan whose blocks are all of one, by the pairs of :func:`twins`; ``None`` where blocks
    belong to the step as a whole, or one micro-batch's wait for another's."""
    if not pairs or not all(block.turn for block in blocks):
        return None
    following = dict(pairs)
    first = min(block.turn[0] for block in blocks)
    rows = [tuple(i for i, block in enumerate(blocks) if block.turn[0] == first)]
    while all(i in following for i in rows[-1]):
        rows.append(tuple(following[i] for i in rows[-1]))
    turn_of = {i: m for m, row in enumerate(rows) for i in row}
    if len(turn_of) < len(blocks) or any(turn_of[before] != turn_of[i] for i, block in enumerate(blocks)
                                         for before in block.after):
        return None
    return Turns(tuple(rows))


def _look(done: Preserved, block: Grouped, seconds: float) -> _Look:
    return (block.phase, block.devices, block.turn[1:], round(seconds, 12),
            tuple((part.operation, *_sizes(done, part)) for part in block.parts),
            tuple(sorted((done.joined[i].tensor, done.joined[i].kinds, done.joined[i].bytes) for i in block.joined)))


def _sizes(done: Preserved, part: object) -> tuple[int, ...]:
    spans = done.planned.spans(part)  # type: ignore[arg-type]
    return tuple(high - low for low, high in spans.values())


def _swaps(blocks: Sequence[Grouped], one: dict[_Look, int], other: dict[_Look, int]) -> bool:
    """Whether exchanging the two micro-batches leaves all waits as they are."""
    swapped = {i: other[look] for look, i in one.items()} | {other[look]: i for look, i in one.items()}
    waits = {(before, i) for i, block in enumerate(blocks) for before in block.after}
    touched = {(before, i) for before, i in waits if before in swapped or i in swapped}
    return {(swapped.get(before, before), swapped.get(i, i)) for before, i in touched} == touched

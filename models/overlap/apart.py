"""A pass of a stage with its collectives as blocks of their own, on the network lanes.

Each piece of the pass (:func:`weft.models.overlap.flow.pieces`) is a block, and pieces on one engine keep their order.
Between them the GPU is free: for other micro-batches, and for other stages on it. The last block bears the name of the
pass and comes behind all others, so that whoever waits for the pass waits for it.

*Memory.* The first block takes what the pass keeps and all its workspace, the last one gives back the workspace and
what the pass gives back: never less than what lives between. What a block on a lane takes or gives counts on its GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.models.overlap.flow import Piece
from weft.solver.problem import BlockKind
from weft.solver.wide.block import WideBlock, WideDependency

__all__ = ["apart_blocks"]

#: A piece that takes no time is a block of a nanosecond.
_INSTANT = 1e-9


def apart_blocks(whole: WideBlock, pieces: Sequence[Piece], lanes: Mapping[int, int]) -> list[WideBlock]:
    """``whole``, a pass in one block on devices alike, as a block for each of ``pieces``; ``lanes``: the lane of each
    device."""
    pieces = _with_one_end(pieces)
    last = len(pieces) - 1
    names = [*(f"{whole.name} {number}" for number in range(last)), whole.name]
    kept, workspace = _amount(whole.memory), _amount(whole.workspace)
    blocks: list[WideBlock] = []
    before: dict[bool, int] = {}
    for number, piece in enumerate(pieces):
        waits = {*piece.waits, *([before[piece.is_sent]] if piece.is_sent in before else [])}
        if number and not waits:
            waits = {0}  # memory is taken by the first one
        before[piece.is_sent] = number
        after = tuple(WideDependency(names[source]) for source in sorted(waits))
        memory = ((max(kept, 0) + workspace if not number else 0)
                  + (min(kept, 0) - workspace if number == last else 0))
        where = tuple(lanes[device] for device in whole.devices) if piece.is_sent else whole.devices
        kind = BlockKind.COLLECTIVE if piece.is_sent else whole.kind
        blocks.append(WideBlock(names[number], kind, where, max(round(piece.seconds, 9), _INSTANT), (memory,), (0,),
                                after or whole.after, whole.when))
    return blocks


def _with_one_end(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """``pieces``, the last one behind all others: where the two engines end beside each other, an instant after both.
    """
    last = len(pieces) - 1
    other = max((number for number, piece in enumerate(pieces) if piece.is_sent != pieces[last].is_sent), default=None)
    behind: set[int] = set()
    for number in range(last, -1, -1):
        if number == last or number in behind:
            engine = [earlier for earlier in range(number) if pieces[earlier].is_sent == pieces[number].is_sent][-1:]
            behind |= {*pieces[number].waits, *engine}
    if other is None or other in behind:
        return pieces
    return [*pieces, Piece(0.0, False, (other, last))]


def _amount(amounts: object) -> int:
    """What is taken on each device: the same on all."""
    assert isinstance(amounts, tuple)
    found = set(amounts)
    assert len(found) <= 1
    return found.pop() if found else 0

"""A pass of a stage with its collectives as blocks of their own, on the network lanes.

Each piece of the pass (:func:`weft.models.overlap.flow.pieces`) is a block, and pieces on one engine keep their order.
Between them the GPU is free: for other micro-batches, and for other stages on it. The last block bears the name of the
pass and waits for both engines, so that others wait for it as for the pass in one block.

*Memory.* The first block takes what the pass keeps and all its workspace, the last one gives back the workspace and
what the pass gives back: never less than what lives between. What a block on a lane takes or gives counts on its GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.models.overlap.flow import Piece
from weft.solver.problem import BlockKind
from weft.solver.wide.block import Options, WideBlock, WideDependency

__all__ = ["apart_blocks"]

#: A piece that takes no time is a block of a nanosecond.
_INSTANT = 1e-9


def apart_blocks(whole: WideBlock, pieces: Sequence[Piece], lanes: Mapping[int, int]) -> list[WideBlock]:
    """``whole``, a pass in one block on devices alike, as a block for each of ``pieces``; ``lanes``: the lane of each
    device."""
    names = [f"{whole.name} {number}" for number in range(len(pieces) - 1)] + [whole.name]
    kept, workspace = _amount(whole.memory), _amount(whole.workspace)
    blocks: list[WideBlock] = []
    before: dict[bool, int] = {}
    for number, piece in enumerate(pieces):
        waits = {*piece.waits, *([before[piece.is_sent]] if piece.is_sent in before else [])}
        if number == len(pieces) - 1:
            waits |= set(before.values())
        if number and not waits:
            waits = {0}  # memory is taken by the first one
        before[piece.is_sent] = number
        after = [WideDependency(names[source]) for source in sorted(waits)]
        memory = (max(kept, 0) + workspace if not number else 0) + (min(kept, 0) - workspace
                                                                    if number == len(pieces) - 1 else 0)
        where = tuple(lanes[device] for device in whole.devices) if piece.is_sent else whole.devices
        blocks.append(_block(whole, names[number], where, piece, memory, after or whole.after))
    return blocks


def _amount(amounts: object) -> int:
    """What is taken on each device: the same on all."""
    assert isinstance(amounts, tuple)
    found = set(amounts)
    assert len(found) <= 1
    return found.pop() if found else 0


def _block(whole: WideBlock, name: str, where: tuple[int, ...], piece: Piece, memory: int,
           after: Sequence[WideDependency]) -> WideBlock:
    kind = BlockKind.COLLECTIVE if piece.is_sent else whole.kind
    when: Options = whole.when
    return WideBlock(name, kind, where, max(round(piece.seconds, 9), _INSTANT), (memory,), (0,), tuple(after), when)

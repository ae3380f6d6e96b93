"""What a run of blocks takes at least, and what it takes in one order: enough to leave variants out."""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.wide.block import WideBlock

__all__ = ["least", "listed"]


def least(blocks: Sequence[WideBlock]) -> float:
    """No schedule of one micro-batch of ``blocks``, which stand in an order of their waits, is shorter.

    A device runs its blocks one after the other, begins none before what its first one waits for, and what waits for
    its last one comes behind. Each block ends no sooner than its longest chain of waits, and the rest of its chain
    comes behind it.
    """
    heads, tails = _heads(blocks), _tails(blocks)
    found = max((heads[block.name] + _length(block) + tails[block.name] for block in blocks), default=0.0)
    for device in {device for block in blocks for device in block.devices}:
        own = [block for block in blocks if device in block.devices]
        found = max(found, min(heads[block.name] for block in own) + sum(map(_length, own))
                    + min(tails[block.name] for block in own))
    return found


def listed(blocks: Sequence[WideBlock]) -> float:
    """The end of one schedule: blocks by the time that waits for them, each as soon as what it waits for is there."""
    tails = _tails(blocks)
    free: dict[int, float] = {}
    ends: dict[str, float] = {}
    # What waits for a block has a shorter tail, as all blocks take time.
    for block in sorted(blocks, key=lambda block: -(tails[block.name] + _length(block))):
        start = max([*(ends[wait.block] for wait in block.after), *(free.get(device, 0.0) for device in block.devices)],
                    default=0.0)
        ends[block.name] = start + _length(block)
        free |= dict.fromkeys(block.devices, ends[block.name])
    return max(ends.values(), default=0.0)


def _heads(blocks: Sequence[WideBlock]) -> dict[str, float]:
    ends: dict[str, float] = {}
    found: dict[str, float] = {}
    for block in blocks:
        found[block.name] = max((ends[wait.block] for wait in block.after), default=0.0)
        ends[block.name] = found[block.name] + _length(block)
    return found


def _tails(blocks: Sequence[WideBlock]) -> dict[str, float]:
    found = {block.name: 0.0 for block in blocks}
    for block in reversed(blocks):
        for wait in block.after:
            found[wait.block] = max(found[wait.block], found[block.name] + _length(block))
    return found


def _length(block: WideBlock) -> float:
    assert isinstance(block.duration, int | float)
    return float(block.duration)

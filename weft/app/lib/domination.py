"""Placements that need no search because another one dominates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from weft.solver.problem import Block, BlockKind, Number, Problem

if TYPE_CHECKING:
    from weft.models.candidates.build import ModelCandidate
    from weft.models.tensor_parallel.shapes import ShapeCandidate

_GRADIENTS = (BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD)
_C = TypeVar("_C", "ModelCandidate", "ShapeCandidate")


def undominated(candidates: Sequence[_C]) -> list[_C]:
    """``candidates`` without those with a whole backward whose split twin is never worse.

    Running each I and its W back to back is equivalent to running the B, if the parts take no longer and never use more
    memory: then every schedule with whole backwards is one with split backwards, with the same times and no more
    memory. Twins have the same forwards on the same devices with the same memory.
    """
    splits = [candidate for candidate in candidates if candidate.backward == "split"]
    return [candidate for candidate in candidates
            if candidate.backward != "full" or not any(_can_do(split, candidate) for split in splits)]


def _can_do(split: _C, full: _C) -> bool:
    if (split.static_memory, split.problem.devices) != (full.static_memory, full.problem.devices):
        return False
    others = [[block for block in candidate.problem.blocks if block.kind not in _GRADIENTS]
              for candidate in (split, full)]
    return others[0] == others[1] and all(_stage_can_do(split.problem, full.problem, block.name[1:])
                                          for block in others[1] if block.kind == BlockKind.FORWARD)


def _stage_can_do(split: Problem, full: Problem, stage: str) -> bool:
    whole = _block(full, f"B{stage}")
    parts = [part for name in (f"B{stage}", f"I{stage}", f"W{stage}") if (part := _block(split, name)) is not None]
    if whole is None:  # there is no backward here, or only weight gradients, which are the same in both
        return parts == [part for part in (_block(full, f"W{stage}"),) if part is not None]
    if not parts or sum(part.duration for part in parts) > whole.duration * (1 + 1e-12):
        return False
    if _waits(parts[0]) != _waits(whole):
        return False
    room = whole.workspace[0]
    level: Number = 0  # relative to the level before the backward
    for part in parts:
        if level + max(part.memory[0], 0) + part.workspace[0] > room:
            return False
        level += part.memory[0]
    return level <= whole.memory[0]


def _waits(block: Block) -> set[tuple[str, Number, str | None, int]]:
    """The predecessors of a backward, for a stage with a whole or a split backward."""
    return {(f"B{wait.block[1:]}" if wait.block[0] == "I" else wait.block, wait.lag, wait.link, wait.distance)
            for wait in block.after}


def _block(problem: Problem, name: str) -> Block | None:
    return problem.blocks[problem.index[name]] if name in problem.index else None

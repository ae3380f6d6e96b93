"""Placements that need no search because another one can do all they can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from solver.problem import Block, Number, Problem

if TYPE_CHECKING:
    from models.build import Candidate

__all__ = ["undominated"]


def undominated(candidates: Sequence[Candidate]) -> list[Candidate]:
    """``candidates`` without those of a whole backward whose split twin is never worse.

    Running each I and its W back to back is running the B, if the parts take no longer and never hold more: then every
    schedule of the whole backward is one of the split, with the same times, in no more memory.
    """
    splits = [candidate for candidate in candidates if candidate.backward == "split"]
    return [candidate for candidate in candidates
            if candidate.backward != "full" or not any(_can_do(split, candidate) for split in splits)]


def _can_do(split: Candidate, full: Candidate) -> bool:
    same = (split.stage_device, split.layers_of_stage, split.static_memory) == (
        full.stage_device, full.layers_of_stage, full.static_memory)
    if not same:
        return False
    return all(_stage_can_do(split.problem, full.problem, stage) for stage in range(len(full.stage_device)))


def _stage_can_do(split: Problem, full: Problem, stage: int) -> bool:
    whole = _block(full, f"B{stage}")
    gradient, weights = _block(split, f"I{stage}"), _block(split, f"W{stage}")
    if whole is None or _block(full, f"F{stage}") != _block(split, f"F{stage}"):
        return False
    parts = [part for part in (gradient, weights) if part is not None]
    if sum(part.duration for part in parts) > whole.duration * (1 + 1e-12):
        return False
    room = whole.workspace[0]
    level: Number = 0  # relative to the level before the backward
    for part in parts:
        if level + max(part.memory[0], 0) + part.workspace[0] > room:
            return False
        level += part.memory[0]
    return level <= whole.memory[0] and bool(parts)


def _block(problem: Problem, name: str) -> Block | None:
    return problem.blocks[problem.index[name]] if name in problem.index else None

"""Published schedules for stages that are no chain: they are made as if it were one.

A model of two towers, say, may be cut so that the second stage takes nothing from the first. Schedules of pipelines are
not defined for it, but they are for the problem in which it waits for the first stage all the same; and whatever holds
there holds where there is less to wait for.
"""

from __future__ import annotations

from dataclasses import replace

from weft.solver.baselines import baseline
from weft.solver.problem import Dependency, Problem
from weft.solver.schedule import Schedule

__all__ = ["baseline_in_a_row", "in_a_row"]


def in_a_row(problem: Problem) -> Problem:
    """``problem``, a cut's stages, where each also waits for the one before it going forward, and for the one behind it
    going back."""
    blocks = []
    for block in problem.blocks:
        waits = {dependency.block for dependency in block.after}
        neighbour = _neighbour(block.name)
        if neighbour in problem.index and neighbour not in waits:
            block = replace(block, after=(*block.after, Dependency(neighbour)))
        blocks.append(block)
    return replace(problem, blocks=tuple(blocks))


def _neighbour(name: str) -> str:
    """What a chain's block called ``name`` waits for: ``"F1"`` of ``"F2"``, ``"B3"`` of ``"B2"``."""
    letter, stage = name[0], name[1:]
    return f"{letter}{int(stage) + (-1 if letter == 'F' else 1)}" if letter in "FBI" and stage.isdecimal() else ""


def baseline_in_a_row(name: str, problem: Problem, micro_batches: int) -> Schedule:
    """The published schedule called ``name`` of ``problem``, as a chain if need be.

    Raises :class:`~weft.solver.baselines.NotApplicable` where it is not for that either.
    """
    chain = in_a_row(problem)
    found = baseline(name, chain, micro_batches)
    if chain == problem:
        return found
    # Where there is less to wait for, what was proven of the chain holds no more.
    return replace(found, problem=problem, makespan_bound=0.0, period_bound=None)

"""Which backward belongs to which forward, in any block graph."""

from __future__ import annotations

from weft.runtime.export.refusal import ExportError
from weft.solver.problem import BlockKind, Problem

__all__ = ["backward_of"]


def backward_of(problem: Problem, tool: str) -> dict[int, int]:
    """Per forward block its full backward, by index into ``problem.blocks``; empty for inference.

    The backward of a forward runs on the same devices and waits for the backwards of the forwards that wait for it,
    where there are none for the forward itself. Raises :class:`~weft.runtime.export.refusal.ExportError`, on behalf of
    ``tool``, for a block that is neither forward nor full backward, and where backwards do not mirror forwards so.
    """
    for block in problem.blocks:
        if block.kind not in (BlockKind.FORWARD, BlockKind.BACKWARD):
            raise ExportError(f"{tool} cannot express {problem.name!r}: block {block.name!r} is of kind {block.kind}, "
                              "it has forwards and full backwards only")
    order = [i for i in problem.topological_order if problem.blocks[i].kind == BlockKind.FORWARD]
    free = [i for i in problem.topological_order if problem.blocks[i].kind == BlockKind.BACKWARD]
    if not free:
        return {}
    waited: list[set[int]] = [set() for _ in problem.blocks]
    users: list[set[int]] = [set() for _ in problem.blocks]
    for producer, consumer, dependency in problem.dependencies():
        if dependency.distance == 0:
            waited[consumer].add(producer)
            users[producer].add(consumer)
    found: dict[int, int] = {}
    for forward in reversed(order):
        later = {found[user] for user in users[forward] if user in found}
        for candidate in free:
            before = {block for block in waited[candidate] if problem.blocks[block].kind == BlockKind.BACKWARD}
            if (problem.blocks[candidate].devices == problem.blocks[forward].devices
                    and (later <= before if later else forward in waited[candidate])):
                found[forward] = candidate
                free.remove(candidate)
                break
        else:
            raise ExportError(f"{tool} cannot express {problem.name!r}: no backward mirrors forward "
                              f"{problem.blocks[forward].name!r}, on its devices and behind the backwards of what "
                              "waits for it")
    if free:
        raise ExportError(f"{tool} cannot express {problem.name!r}: backward {problem.blocks[free[0]].name!r} mirrors "
                          "no forward")
    return found

"""The order of one assignment's schedule, for the problem of another one."""

from __future__ import annotations

from weft.solver.judge.validate import InvalidSchedule, validate
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import DeadlockError, time_orders
from weft.solver.wide.rounds import Rounds

__all__ = ["carried"]


def carried(best: Schedule, rounds: Rounds) -> Schedule | None:
    """A schedule of ``rounds`` in the order of ``best``; ``None`` where that does not do.

    Blocks are told by their names. One that ``best`` does not have comes right before the first that waits for it.
    """
    problem, count = rounds.problem, rounds.run.rounds
    if count != best.micro_batches:
        return None
    ranks = _ranks(best, problem)
    rows: list[list[tuple[int, int]]] = [[] for _ in problem.devices]
    place = {block: at for at, block in enumerate(problem.topological_order)}
    for block, m in sorted(ranks, key=lambda op: (ranks[op], op[1], place[op[0]])):
        for device in problem.blocks[block].devices:
            rows[device].append((block, m))
    try:
        made = Schedule(problem, count, time_orders(problem, count, rows), 0.0, solver={"name": "weft"})
        validate(made)
    except (DeadlockError, InvalidSchedule):
        return None
    return made


def _ranks(best: Schedule, problem: Problem) -> dict[tuple[int, int], float]:
    """When each operation is to run."""
    names = {block.name: number for number, block in enumerate(problem.blocks)}
    ranks: dict[tuple[int, int], float] = {}
    for operation in best.operations:
        block = names.get(best.problem.blocks[operation.block].name)
        if block is not None:
            ranks[block, operation.micro_batch] = operation.start
    later: list[list[int]] = [[] for _ in problem.blocks]
    for producer, consumer, wait in problem.dependencies():
        if not wait.distance:
            later[producer].append(consumer)
    for block in reversed(problem.topological_order):
        for m in range(best.micro_batches):
            if (block, m) not in ranks:
                ranks[block, m] = min((ranks[after, m] for after in later[block]), default=best.makespan)
    return ranks

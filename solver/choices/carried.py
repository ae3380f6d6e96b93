"""The order of one problem's schedule, for another one: other options are taken, or micro-batches are of other classes.
"""

from __future__ import annotations

import math

from weft.solver.orders.climb import judged
from weft.solver.schedule import Schedule
from weft.solver.timing import DeadlockError, Orders
from weft.solver.wide.rounds import Rounds

__all__ = ["carried", "scheduled"]

_Place = tuple[int, int]


def carried(best: Schedule, of: Rounds, rounds: Rounds) -> Orders:
    """The order of ``best``, a schedule of the rounds ``of``, as one of ``rounds``, whether it fits or not.

    Blocks are told by their names, micro-batches by their numbers in their jobs. What ``best`` does not have comes
    right before the first that waits for it.
    """
    problem = rounds.problem
    ranks = _ranks(best, of, rounds)
    rows: list[list[_Place]] = [[] for _ in problem.devices]
    place = {block: at for at, block in enumerate(problem.topological_order)}
    for block, m in sorted(ranks, key=lambda op: (ranks[op], op[1], place[op[0]])):
        for device in problem.blocks[block].devices:
            rows[device].append((block, m))
    return rows


def scheduled(rounds: Rounds, orders: Orders) -> Schedule | None:
    """The schedule of ``rounds`` in these orders; ``None`` where it does not fit."""
    try:
        return judged(rounds.problem, rounds.run.rounds, orders)
    except DeadlockError:
        return None


def _ranks(best: Schedule, of: Rounds, rounds: Rounds) -> dict[_Place, float]:
    """When each operation is to run: none before what it waits for in its round."""
    known: dict[tuple[str, int], float] = {}
    for operation in best.operations:
        block, m = of.apart(operation.block, operation.micro_batch)
        known[of.wide.blocks[block].name, m] = operation.start
    problem = rounds.problem
    later: list[list[int]] = [[] for _ in problem.blocks]
    for producer, consumer, wait in problem.dependencies():
        if not wait.distance:
            later[producer].append(consumer)
    ranks: dict[_Place, float] = {}
    for block in reversed(problem.topological_order):
        for m in range(rounds.run.rounds):
            wide, number = rounds.apart(block, m)
            following = min((ranks[after, m] for after in later[block]), default=math.inf)
            ranks[block, m] = known.get((rounds.wide.blocks[wide].name, number), following)
    for block in problem.topological_order:
        for after in later[block]:
            for m in range(rounds.run.rounds):
                ranks[after, m] = max(ranks[after, m], ranks[block, m])
    return ranks

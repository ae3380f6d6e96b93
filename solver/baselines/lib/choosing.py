"""Of several orders by one published rule, such as its group sizes, the one that serves a problem best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import NotApplicable, Row
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem
from weft.solver.timing import DeadlockError, time_orders

__all__ = ["best_of"]

#: Operations that the trials of one schedule may have in all: about a fifth of a second.
WORK = 60_000

#: From a number of micro-batches to per-device orders, or None where this variant has none.
Maker = Callable[[int], list[Row] | None]


def best_of(problem: Problem, micro_batches: int, makers: Sequence[Maker]) -> list[Row]:
    """The orders that fit the devices' memory and take least time; where none fits, those that take least time.

    The first of equals counts. Long runs are judged by fewer micro-batches, and the last makers are left out where even
    these would be too many. Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` if no maker makes any.
    """
    amounts = Amounts.of(problem)
    least = 4 * len(problem.devices)
    trial = min(micro_batches, max(least, WORK // (len(makers) * len(problem.blocks))))
    count = max(1, WORK // (trial * len(problem.blocks)))
    ranked: list[tuple[bool, float, int]] = []
    made: list[list[Row] | None] = []
    for place, maker in enumerate(makers):
        if place >= count and ranked:
            break
        checkpoint()
        rows = maker(trial)
        made.append(rows)
        if rows is None:
            continue
        try:
            makespan = max(operation.end for operation in time_orders(problem, trial, rows))
        except DeadlockError:  # some sizes of groups do not go with some numbers of devices
            continue
        ranked.append((not _fits(amounts, rows), makespan, place))
    for _, _, place in sorted(ranked):
        rows = made[place] if trial == micro_batches else makers[place](micro_batches)
        if rows is not None:
            return rows
    raise NotApplicable("none of its variants runs on these stages with so many micro-batches")


def _fits(amounts: Amounts, rows: list[Row]) -> bool:
    for row, room, take, change in zip(rows, amounts.room, amounts.take, amounts.change, strict=True):
        if room is None:
            continue
        level = 0
        for block, _ in row:
            if level + take[block] > room:
                return False
            level += change[block]
    return True

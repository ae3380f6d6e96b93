"""Choosing the best for a problem of several orders by one published rule, such as its group sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import NotApplicable, Row
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem
from weft.solver.timing import DeadlockError, time_orders

#: The total number of operations in the trials of one schedule: about a fifth of a second.
WORK = 60_000

#: From a number of micro-batches to per-device orders, or None if this variant has none.
Maker = Callable[[int], list[Row] | None]


def best_of(problem: Problem, micro_batches: int, makers: Sequence[Maker], spare: Sequence[Maker] = ()) -> list[Row]:
    """The orders that fit the devices' memory and take least time; if none fits, those that take least time.

    Ties go to the first. ``spare`` are makers whose orders need less memory, tried if those of the first of ``makers``
    do not fit. Long runs are judged by fewer micro-batches, and once orders fit the last makers are omitted if even
    these would be too many; if there is time for only one, the first that fits is taken. Raises
    :class:`~weft.solver.baselines.lib.base.NotApplicable` if no maker makes any.
    """
    p, blocks = len(problem.devices), len(problem.blocks)
    trial = min(micro_batches, max(2 * p, min(4 * p, WORK // (len(makers) * blocks))))
    count = WORK // (trial * blocks)
    ranked = _ranked(problem, trial, makers, count)
    if not any(place == 0 and not late for late, _, place, _ in ranked):
        ranked = sorted([*ranked, *_ranked(problem, trial, spare, count, len(makers))], key=lambda entry: entry[:3])
    best: list[Row] | None = None
    for late, _, place, rows in ranked:
        longer = rows if trial == micro_batches else (*makers, *spare)[place](micro_batches)
        best = best or longer
        if longer is not None and (late or trial == micro_batches or _fits(Amounts.of(problem), longer)):
            return longer  # a longer run may have larger groups, and not fit
    if best is None:
        raise NotApplicable("none of its variants runs on these stages with so many micro-batches in this memory")
    return best


def _ranked(problem: Problem, trial: int, makers: Sequence[Maker], count: int,
            first: int = 0) -> list[tuple[bool, float, int, list[Row]]]:
    """Whether orders do not fit, their makespan (0 without time for it), their maker's index from ``first`` on, and
    themselves, the best first; those that do not fit are omitted once others do."""
    amounts = Amounts.of(problem)
    made: list[tuple[bool, float, int, list[Row]]] = []
    fitting = False
    for place, maker in enumerate(makers):
        if fitting and place >= count:
            break
        checkpoint()
        rows = maker(trial)
        if rows is None:
            continue
        fits = _fits(amounts, rows)
        if fits or not fitting:
            made.append((not fits, _makespan(problem, trial, rows) if count > 1 else 0.0, first + place, rows))
        fitting = fitting or fits
    return sorted(made, key=lambda entry: entry[:3])


def _makespan(problem: Problem, micro_batches: int, rows: list[Row]) -> float:
    try:
        return max(operation.end for operation in time_orders(problem, micro_batches, rows))
    except DeadlockError:  # some sizes of groups may not suit some numbers of devices
        return float("inf")


def _fits(amounts: Amounts, rows: list[Row]) -> bool:
    return all(amounts.fits(device, row) for device, row in enumerate(rows))

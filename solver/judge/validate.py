"""The judge: is a :class:`~weft.solver.schedule.Schedule` a feasible schedule of its problem?

Every rule is checked from the bare list of operations. No code that makes schedules is used here (no timing, no derived
property of a schedule), so that a mistake there cannot hide behind the same mistake here.

The rules:

- every block of every micro-batch 0 .. N-1 occurs once, lasts as long as its block, and the first starts at 0;
- a device runs one block at a time; a block on several devices occupies all of them from start to end;
- a block starts after the blocks it waits for, and after their transfers. Transfers on a link run one at a time, in the
  order in which their producers run on the link's source device (several of one producer in file order), each as soon
  as its producer has ended and the link is free;
- at no time does the level of a device exceed its memory. An operation that ends gives back before one that starts at
  that time takes. Amounts are added exactly, as the decimal numbers they are written as: 0.1 + 0.2 fits into 0.3;
- per block, micro-batch m starts before m + 1 (unless ``in_turn=False``);
- the schedule's statements about itself (bounds, period, repetend) are true, as far as
  :mod:`weft.solver.judge.statements` can decide.

A schedule in rounds is judged in terms of its jobs, classes and micro-batches (:mod:`weft.solver.judge.run_rules`),
and, if no fault is found there, also as a schedule of the plain problem of rounds. Whether the problem is the one of
the options taken is for :mod:`weft.solver.judge.choice_rules`, as the other options are not part of a schedule.

Times are compared with a tolerance of 1e-9 of the makespan (or of the work and transfers one after another, if that
is less: idle time must not buy tolerance).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import islice

from weft.solver.control.clock import checked
from weft.solver.judge.case import JudgedCase, tolerance_of
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.columns import Columns
from weft.solver.judge.memory_rule import levels_on, scaled_room
from weft.solver.judge.order_rules import check_all
from weft.solver.judge.statements import StatementVerdict, judge_statements
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule

#: From this many operations on, the absence of faults is checked for all of them at once, if possible
#: (:mod:`weft.solver.judge.columns`).
_MANY = 4096


class InvalidSchedule(ValueError):
    """A schedule that breaks a rule; ``violations`` has one sentence for each breach found."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = tuple(violations)


def validate(schedule: Schedule, *, capacities: bool = True, in_turn: bool = True,
             whole: Problem | None = None) -> None:
    """Raise :class:`InvalidSchedule` unless ``schedule`` keeps every rule.

    ``capacities=False`` leaves out the devices' memory: to judge what a schedule needs, not whether it fits.
    ``in_turn=False`` leaves out that a block runs micro-batch m before m + 1: bounds and steady states rest on it, but
    other tools' schedules may run backwards last in, first out. Schedules of one round keep their turn in any case.
    ``whole``: a problem with choices, whose schedule it must be under the options that it states.
    """
    found = violations(schedule, capacities=capacities, in_turn=in_turn)
    if whole is not None:
        found += violations_of_choice(schedule, whole)
    if found:
        raise InvalidSchedule(found)


def violations(schedule: Schedule, *, capacities: bool = True, in_turn: bool = True, limit: int = 20) -> list[str]:
    """The faults of ``schedule``, at most ``limit`` sentences; empty if there are none.

    Each names the block, micro-batch, device, time and amount at fault, in the problem's units. Arguments are those of
    :func:`validate`.
    """
    return list(islice(_violations(schedule, capacities, in_turn), limit))


def statements(schedule: Schedule) -> StatementVerdict:
    """Which of the bounds, period and repetend of ``schedule`` are verified, false or open; all lists are empty if it
    has no micro-batches."""
    n = schedule.micro_batches
    if not isinstance(n, int) or n < 1:
        return StatementVerdict()
    case = JudgedCase.of(schedule)
    return judge_statements(schedule, case.rows, case.makespan, case.tolerance)


def peaks(schedule: Schedule) -> list[Fraction]:
    """Per device its highest level at any time, exactly, in the problem's memory unit; at least 0."""
    case = JudgedCase.of(schedule)
    found = []
    for device in range(len(case.rows)):
        unit, levels = levels_on(case, device, 0)
        found.append(Fraction(max((level for level, _, _ in levels), default=0), unit))
    return [max(peak, Fraction(0)) for peak in found]


def _violations(schedule: Schedule, capacities: bool, in_turn: bool) -> Iterator[str]:
    n = schedule.micro_batches
    if not isinstance(n, int) or n < 1:
        yield f"micro_batches is {n!r}, a schedule has at least one"
        return
    if not schedule.problem.is_plain:
        yield "the problem has choices, jobs or classes, a schedule's operations are those of a plain one"
        return
    if schedule.rounds is not None:
        from weft.solver.judge.run_rules import run_violations

        broken = False
        for fault in run_violations(schedule, capacities=capacities, in_turn=in_turn):
            broken = True
            yield fault
        if broken:  # the same fault in rounds would be reported twice
            return
    where = "" if schedule.rounds is None else "in rounds: "
    yield from (where + fault for fault in _plain_violations(schedule, capacities, in_turn))


def _plain_violations(schedule: Schedule, capacities: bool, in_turn: bool) -> Iterator[str]:
    n = schedule.micro_batches
    columns = Columns.of(schedule.problem, n, schedule.operations) if len(schedule.operations) >= _MANY else None
    if columns is not None:
        makespan = float(columns.end.max())
        tolerance = tolerance_of(schedule.problem, n, makespan, len(schedule.operations))
        amounts = partial(scaled_room, schedule.problem) if capacities else None
        broken = columns.broken(tolerance, amounts, in_turn)
        if not broken:
            rows = () if schedule.period is None and schedule.repetend is None else columns.rows()
            yield from judge_statements(schedule, rows, makespan, tolerance).false
            return
        case = JudgedCase.made(schedule.problem, n, schedule.operations)  # all of them are well-formed
        yield from check_all(case, capacities=capacities, in_turn=in_turn, rules=broken)
    else:
        case = JudgedCase.of(schedule)
        yield from _check_operations(schedule, case)
        yield from check_all(case, capacities=capacities, in_turn=in_turn)
    yield from judge_statements(schedule, case.rows, case.makespan, case.tolerance).false


# -- the operations themselves -----------------------------------------------------------------------------------


def _check_operations(schedule: Schedule, case: JudgedCase) -> Iterator[str]:
    """The operations that are not well-formed."""
    blocks, n = case.problem.blocks, case.micro_batches
    for operation in checked(schedule.operations, 4096):
        block, m, start, end = operation
        if not isinstance(block, int) or not 0 <= block < len(blocks):
            yield (f"an operation of micro-batch {m} names block number {block!r}, "
                   f"there are {len(blocks)} (0 to {len(blocks) - 1})")
        elif not isinstance(m, int) or not 0 <= m < n:
            yield f"block {blocks[block].name!r} runs for micro-batch {m!r}, the schedule has 0 to {n - 1}"
        elif not (math.isfinite(start) and math.isfinite(end)):
            yield f"{case.where(operation)} runs from {start} to {end}, times are finite"

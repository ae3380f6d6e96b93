"""What the judge tells for all operations at once is what it tells of one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import nextafter
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.strategies import problems, schedules
from weft.solver import Block, BlockKind, Dependency, Device, Operation, Problem, Schedule, time_orders
from weft.solver.judge import validate as judge
from weft.solver.judge.case import JudgedCase, tolerance_of
from weft.solver.judge.columns import Columns
from weft.solver.judge.memory_rule import scaled_room


def at_once(schedule: Schedule, capacities: bool, in_turn: bool) -> bool | None:
    """Whether it is told at once that no rule is broken; None where that is left to the loops."""
    problem, n = schedule.problem, schedule.micro_batches
    columns = Columns.of(problem, n, schedule.operations)
    if columns is None:
        return None
    tolerance = tolerance_of(problem, n, schedule.makespan, len(schedule.operations))
    case = JudgedCase.of(schedule)
    assert columns.rows() == case.rows
    assert tolerance == case.tolerance
    return not columns.broken(tolerance, partial(scaled_room, problem) if capacities else None, in_turn)


def one_after_the_other(schedule: Schedule, capacities: bool, in_turn: bool) -> bool:
    """Whether no rule is broken, statements left out."""
    silent = replace(schedule, makespan_bound=0, period=None, period_bound=None, repetend=None)
    return not judge.violations(silent, capacities=capacities, in_turn=in_turn)


@st.composite
def moved(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """``schedule`` with some operations at other times, about as far as the judge can tell, or exchanged."""
    operations = list(schedule.operations)
    little = 1e-9 * schedule.makespan
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(operations) - 1))
        block, m, start, end = operations[at]
        kind = draw(st.sampled_from(["shift", "stretch", "exchange", "repeat", "whole"]))
        other = draw(st.sampled_from(operations))
        step = draw(st.sampled_from([-1.0, 1.0, -little, little, nextafter(little, 0), 2 * little, -2 * little, 1e300]))
        if kind == "shift":
            operations[at] = Operation(block, m, start + step, end + step)
        elif kind == "stretch":
            operations[at] = Operation(block, m, start, end + step)
        elif kind == "exchange":
            operations[at] = Operation(block, other.micro_batch, start, end)
        elif kind == "repeat":
            operations[at] = other
        else:
            operations[at] = Operation(block, m, int(start), end)
    return schedule.with_operations(operations)


@for_all(st.data(), schedules(), st.booleans(), st.booleans(), tries=150)
def test_rules_are_kept_in_columns_as_in_loops(data: Any, schedule: Schedule, capacities: bool, in_turn: bool) -> None:
    # Rounded, as what float sums leave, such as 2.8e-17, has more digits than columns of 64 bits take.
    devices = [replace(device, memory=None if device.memory is None else data.draw(
        st.sampled_from([device.memory, *(round(share * peak, 9) for share in (1, 0.9)), peak + 1]))) for device, peak
        in zip(schedule.problem.devices, schedule.peak_memory, strict=True)]
    schedule = data.draw(moved(replace(schedule, problem=replace(schedule.problem, devices=tuple(devices)))))
    found = at_once(schedule, capacities, in_turn)
    assert found is None or found == one_after_the_other(schedule, capacities, in_turn)


@for_all(st.data(), problems(), st.integers(1, 4), st.booleans(), st.booleans(), tries=100)
def test_any_order_is_judged_in_columns_as_in_loops(data: Any, problem: Problem, n: int, capacities: bool,
                                                   in_turn: bool) -> None:
    """Also orders that overtake, and that memory does not hold."""
    free = replace(problem, links=(), blocks=tuple(
        replace(block, after=tuple(replace(wait, link=None) for wait in block.after)) for block in problem.blocks))
    every = [(i, m) for m in range(n) for i in free.topological_order]
    if data.draw(st.booleans()):
        every = [(i, m) for i in free.topological_order for m in range(n)]
    rows = [[(i, m) for i, m in every if device in free.blocks[i].devices] for device in range(len(free.devices))]
    try:
        operations = time_orders(free, n, rows)
    except ValueError:
        return
    made = Schedule(free, n, operations, 0)
    found = at_once(made, capacities, in_turn)
    assert found is not None
    assert found == one_after_the_other(made, capacities, in_turn)
    said = judge.violations(made, capacities=capacities, in_turn=in_turn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "_MANY", 1)
        assert judge.violations(made, capacities=capacities, in_turn=in_turn) == said


#: Of A on one device and B, 2 later, on another: the starts of A0, A1, B0, B1; ends where they are not 1 later; whether
#: that is right in turn, and out of turn. Times may be 5e-9 apart.
CASES = [
    ([0.0, 1.0, 3.0, 4.0], {}, True, True),
    ([0.0, 1.0, 2.5, 4.0], {}, False, False),  # the transfer is cut off
    ([0.0, 1.0, 3.0 - 4e-9, 4.0], {}, True, True),
    ([0.0, 1.0, 3.0 - 8e-9, 4.0], {}, False, False),
    ([0.0, 1.0, 5.0, 4.0], {}, False, True),
    ([-4e-9, 1.0, 3.0, 4.0], {}, True, True),
    ([-8e-9, 1.0, 3.0, 4.0], {0: 1.0 - 8e-9}, False, False),
    ([4e-9, 1.0, 3.0, 4.0], {0: 1.0}, True, True),
    ([8e-9, 1.1, 3.1, 4.1], {}, False, False),  # nothing starts at 0
    ([0.0, 1.0, 3.0, 4.0], {3: 5.0 + 4e-9}, True, True),
    ([0.0, 1.0, 3.0, 4.0], {3: 5.0 + 9e-9}, False, False),
    ([0.0, 1.0 - 4e-9, 3.0, 4.0], {}, True, True),
    ([0.0, 1.0 - 8e-9, 3.0, 4.0], {}, False, False),
]


@pytest.mark.parametrize(("starts", "ends", "in_turn", "overtaking"), CASES)
def test_each_rule_is_told_in_columns(starts: list[float], ends: dict[int, float], in_turn: bool,
                                      overtaking: bool) -> None:
    problem = Problem("p", (Device("d0", 4), Device("d1", 4)), (
        Block("A", BlockKind.OTHER, (0,), 1, (1,)),
        Block("B", BlockKind.OTHER, (1,), 1, (2,), (), (Dependency("A", 2),))))
    operations = tuple(Operation(i // 2, i % 2, start, ends.get(i, start + 1)) for i, start in enumerate(starts))
    made = Schedule(problem, 2, operations, 0)
    for kept, turn in ((in_turn, True), (overtaking, False)):
        assert at_once(made, True, turn) is kept
        assert one_after_the_other(made, True, turn) is kept
    full = replace(made, problem=replace(problem, devices=(Device("d0", 4), Device("d1", 3))))
    assert at_once(full, True, False) is False
    assert at_once(full, False, False) is overtaking

"""Every number that a schedule file states: changed, it is refused or was listed as not checked.

``WEFT_MANY=2000`` (any number) runs so many problems instead of a few.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from tests.support.examples import examples
from tests.support.strategies import cases, pipelines, schedules
from weft.solver import Infeasible, Problem, Schedule, solve
from weft.solver.io.entries import FormatError
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
from weft.solver.judge.claims import judge_claims
from weft.solver.judge.validate import statements, violations

MANY = int(os.environ.get("WEFT_MANY", "0"))


def suite(number: int) -> settings:
    return settings(max_examples=MANY or examples(number))


@st.composite
def solved(draw: st.DrawFn) -> Schedule:
    """What weft finds for a small problem, most with a steady state; or a known schedule."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(schedules())
    problem: Problem = draw(pipelines(max_devices=3)) if kind > 2 else draw(cases(balanced=True, max_blocks=5)).problem
    n = draw(st.integers(2, 8))
    try:
        if kind == 5:
            served = weft.latency(problem, micro_batches=n, points=2, effort=0.1)
            return draw(st.sampled_from(served.points)).schedule
        return solve(problem, n, effort=0.1)
    except Infeasible:
        assume(False)
        raise


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in ``value``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from numbers(item, (*path, i))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path


def claim(path: tuple[Any, ...]) -> str:
    """What the judge calls the statement that a number belongs to."""
    return f"{path[0]}.{path[1]}" if path[0] in ("repetend", "solver") else str(path[0])


def put(value: Any, path: tuple[Any, ...], number: float) -> Any:
    """A copy of ``value`` with ``number`` at ``path``."""
    changed = copy.deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = number
    return changed


@suite(40)
@given(solved())
def test_what_is_stated_is_true_and_each_number_changed_is_refused_or_was_not_checked(schedule: Schedule) -> None:
    value = schedule_to_json(schedule)
    assert violations(schedule) == []
    stated = judge_claims(value, schedule)
    assert stated.false == []
    names = set(stated.verified) | set(stated.open)
    for path in numbers({key: value[key] for key in value if key not in ("problem", "operations")}):
        before: Any = value
        for key in path:
            before = before[key]
        assert claim(path) in names or path[0] == "micro_batches"
        if claim(path) in stated.open:
            continue
        whole = isinstance(before, int)
        for number in ((before + 1, before - 1) if whole else (before * 1.01 + 1e-3, before * 0.99 - 1e-3)):
            changed = put(value, path, number)
            try:
                read = schedule_from_json(changed)
            except FormatError:
                continue
            found = judge_claims(changed, read)
            assert violations(read) or found.false or claim(path) in found.open, (path, before, number)


@suite(40)
@given(solved())
def test_the_period_of_every_schedule_that_repeats_is_derived(schedule: Schedule) -> None:
    """What the search says of its own steady states is what the judge makes of the operations alone."""
    assume(schedule.repetend is not None and schedule.period is not None)
    found = statements(schedule)
    assert not found.false
    assert "period" in found.verified or "several stretches" in found.open["period"]

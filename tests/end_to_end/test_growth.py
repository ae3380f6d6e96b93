"""What is outside CP-SAT grows no faster than n log n, with micro-batches, blocks and devices. Work is counted in
bytecodes, so that no test looks at a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.support import slow, valid
from tests.support.large_problems import chain, everywhere, folded, random_graph, wide_m
from weft.solver import Budget, Problem, Schedule, time_orders, validate
from weft.solver.baselines.lib.sequential import in_sequence
from weft.solver.step import state as state_module
from weft.solver.step.search import Search


def _bytecodes(work: Callable[[], object]) -> int:
    """How many bytecodes ``work`` runs, of weft and of what it calls in Python."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _first_schedule(problem: Problem, micro_batches: int) -> None:
    """All that is done until the first schedule of a large problem is there: judged, with a bound."""
    search = Search(problem, micro_batches, Budget())
    next(search.steps())
    search.result()


GROWING: dict[str, Callable[[int], tuple[Problem, int]]] = {
    "micro-batches": lambda n: (folded(6, memory=20), 10 * n),
    "blocks on few devices": lambda n: (chain(20 * n, 4, memory=40 * n), 4),
    "blocks on many devices": lambda n: (chain(40 * n, 40 * n, memory=10), 2),
    "devices that run the same": lambda n: (everywhere(10, 20 * n), 4),
    "M": lambda n: (wide_m(15 * n, memory=10), 4),
    "random graph": lambda n: (random_graph(40 * n, 8), 4),
}


@pytest.mark.parametrize("name", [name if "blocks" in name else slow(name) for name in GROWING])
def test_the_first_schedule_takes_n_log_n(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MANY_OPERATIONS", 1)
    makes = [GROWING[name](n) for n in (2, 4)]
    small, large = (_bytecodes(partial(_first_schedule, *_anew(made))) for made in makes)
    assert large <= 2.3 * small


def _anew(made: tuple[Problem, int]) -> tuple[Problem, int]:
    """The same with nothing remembered of it: making it counts too."""
    problem, micro_batches = made
    return Problem(problem.name, problem.devices, problem.blocks, problem.links, problem.time_unit,
                   problem.memory_unit), micro_batches


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_what_is_told_of_a_schedule_takes_n_log_n(name: str) -> None:
    def told(problem: Problem, micro_batches: int) -> None:
        from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json

        orders = in_sequence(problem, micro_batches)
        assert orders is not None
        schedule = valid(Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0))
        assert schedule.bubble and schedule.peak_memory
        validate(schedule_from_json(schedule_to_json(schedule)))

    makes = [GROWING[name](n) for n in (2, 4)]
    small, large = (_bytecodes(partial(told, *_anew(made))) for made in makes)
    assert large <= 2.3 * small

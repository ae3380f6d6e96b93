"""How soon the next step can begin, as the judge derives it; and what files state of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import chain, pipeline
from weft.solver import Block, BlockKind, Dependency, Device, Link, Operation, Problem, Schedule
from weft.solver.io.entries import FormatError
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
from weft.solver.judge.claims import judge_claims
from weft.solver.judge.spans import least_span, span_of

#: Two devices in a row, joined by a link that takes 3 for a transfer.
JOINED = Problem("joined", (Device("a"), Device("b")), (
    Block("x", BlockKind.OTHER, (0,), 1, (0,)),
    Block("y", BlockKind.OTHER, (1,), 1, (0,), (), (Dependency("x", 3, "wire"),))), (Link("wire", 0, 1),), "ms")


def scheduled(problem: Problem, times: dict[tuple[int, int], float], **stated: Any) -> Schedule:
    count = 1 + max(m for _, m in times)
    return Schedule(problem, count, tuple(Operation(i, m, at, at + problem.blocks[i].duration)
                                          for (i, m), at in times.items()), 0.0, solver=stated)


def test_a_device_that_begins_late_is_not_busy_before() -> None:
    """One micro-batch of a pipeline of two: the first device from 0 to 6, the second from 1 to 4."""
    schedule = scheduled(pipeline(chain(2)), {(0, 0): 0, (1, 0): 1, (2, 0): 2, (3, 0): 4})
    assert span_of(schedule) == (6, "device 'gpu0'")
    late = replace(schedule, operations=tuple(o._replace(start=o.start + (o.block > 1), end=o.end + (o.block > 1))
                                              for o in schedule.operations))
    assert span_of(late)[0] == 7


def test_a_link_is_busy_with_a_step_as_well() -> None:
    """The second transfer waits for the first: the wire is taken for 6, though each device is for 5 at most."""
    times = {(0, 0): 0.0, (0, 1): 4.0, (1, 0): 4.0, (1, 1): 8.0}
    assert span_of(scheduled(JOINED, times)) == (7, "link 'wire'")
    assert span_of(scheduled(JOINED, {**times, (1, 0): 5.0})) == (6, "link 'wire'")  # the first transfer can wait
    assert least_span(scheduled(JOINED, times)) == 6


@pytest.mark.parametrize(("stated", "fault"), [
    ({"span": 6.0}, "solver: span is 6 ms, but link 'wire' takes 7 ms from its first start to its last end"),
    ({"span": 7.0, "span_bound": 7.5}, "solver: span_bound is 7.5 ms, above the span of 7 ms, so it is no lower bound"),
])
def test_a_false_statement_is_refused(stated: dict[str, float], fault: str) -> None:
    schedule = scheduled(JOINED, {(0, 0): 0.0, (0, 1): 4.0, (1, 0): 4.0, (1, 1): 8.0}, **stated)
    assert fault in judge_claims(schedule_to_json(schedule), schedule).false


def test_what_can_be_derived_is_verified() -> None:
    times = {(0, 0): 0.0, (0, 1): 4.0, (1, 0): 5.0, (1, 1): 8.0}
    for bound, where in ((6.0, "verified"), (5.5, "open")):
        schedule = scheduled(JOINED, times, objective="span", span=6.0, span_bound=bound)
        verdict = judge_claims(schedule_to_json(schedule), schedule)
        assert "solver.span" in verdict.verified
        assert "solver.span_bound" in getattr(verdict, where)
    assert (schedule.objective, schedule.value, schedule.value_bound) == ("span", 6.0, 5.5)


@pytest.mark.parametrize(("stated", "fault"), [
    ({"objective": "speed"}, 'objective is "speed", it must be one of makespan, span, rate, latency'),
    ({"objective": "span"}, "the field 'span' is missing beside the objective 'span'"),
])
def test_an_objective_that_is_none_is_refused(stated: dict[str, Any], fault: str) -> None:
    schedule = scheduled(JOINED, {(0, 0): 0.0, (1, 0): 4.0}, **stated)
    with pytest.raises(FormatError, match=fault):
        schedule_from_json(schedule_to_json(schedule), "s.json")


def test_lanes_whose_memory_hangs_on_times_are_busy_together() -> None:
    blocks = (Block("f", BlockKind.OTHER, (0,), 2, (1,)), Block("s", BlockKind.OTHER, (1,), 2, (-1,), (),
                                                                (Dependency("f", 1),)))
    for memory, span in ((None, 2), (1, 5)):
        devices = (Device("gpu", memory), Device("net", lane_of="gpu"))
        problem = Problem("p", devices, blocks)
        made = Schedule(problem, 1, (Operation(0, 0, 0.0, 2.0), Operation(1, 0, 3.0, 5.0)), 0.0)
        assert span_of(made)[0] == span

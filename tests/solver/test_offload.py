"""Offload beside computation, as blocks and links: memory from first principles, optima by brute force, its gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.whole import least_makespan
from tests.support import chain, for_all, pipeline, valid
from weft.solver import Infeasible, Problem, ProblemError, Schedule, solve
from weft.solver.diagnose.sensitivity import changes
from weft.solver.io.problem_files import problem_from_json, problem_to_json
from weft.solver.offload import Offload, host_links, with_offloads

MOMENT = 1e-6


def train(stages: int, memory: float | None, offloads: Sequence[int] = (), *, size: float = 10, seconds: float = 0.8,
          moment: float = MOMENT) -> Problem:
    """A chain whose stages take 1 forwards, 2 backwards and keep 10; those of ``offloads`` copy ``size`` of it."""
    problem = pipeline(chain(stages), activation=10, memory=memory)
    return with_offloads(problem, [Offload(f"f{s}", f"b{s}", size, seconds) for s in offloads], moment)


def held(schedule: Schedule, stage: int, kept: float, size: float) -> float:
    """The most bytes on the stage's device: what stays from forward to backward, what is offloaded only until its copy
    has left and from before it comes back."""
    problem = schedule.problem
    at = {(problem.blocks[o.block].name, o.micro_batch): o for o in schedule.operations}
    spans = []
    for m in range(schedule.micro_batches):
        forward, backward = at[f"f{stage}", m], at[f"b{stage}", m]
        out, back = at[f"f{stage} out", m], at[f"f{stage} in", m]
        spans += [(forward.start, backward.end, kept - size), (forward.start, out.end, size),
                  (back.start, backward.end, size)]
    return max(sum(amount for start, end, amount in spans if start <= moment < end) for moment, _, _ in spans)


@pytest.mark.parametrize(("size", "seconds", "memory"), [(10, 0.8, 20), (7, 0.8, 24), (10, 1.4, 30), (4, 2.5, 40)])
def test_bytes_are_held_until_they_have_left_and_from_before_they_come_back(size: float, seconds: float,
                                                                            memory: float) -> None:
    schedule = valid(solve(train(3, memory, [0, 1], size=size, seconds=seconds), 6, effort=2.0))
    for stage in (0, 1):
        assert schedule.peak_memory[stage] == pytest.approx(held(schedule, stage, 10, size))
    at = {(schedule.problem.blocks[o.block].name, o.micro_batch): o for o in schedule.operations}
    for stage in (0, 1):
        for producer, consumer in ((f"f{stage}", f"f{stage} out"), (f"f{stage} in", f"b{stage}")):
            free = 0.0
            for m in sorted(range(6), key=lambda m: at[producer, m].start):  # one copy at a time each way
                free = max(free, at[producer, m].end) + seconds
                assert at[consumer, m].start >= free - 1e-9


def test_copies_do_not_hold_the_device() -> None:
    """One stage in a row with another one that keeps it waiting: a copy that is shorter than the wait costs nothing."""
    plain, copied = (solve(train(2, None, offloads, seconds=0.9), 1, effort=2.0) for offloads in ([], [0]))
    assert plain.makespan == 6 and copied.makespan == pytest.approx(6, abs=4 * MOMENT)
    slow = solve(train(2, None, [0], seconds=2.5), 1, effort=2.0)
    assert slow.makespan == pytest.approx(1 + 2.5 + 2.5 + 2, abs=4 * MOMENT)


def test_a_cap_that_holds_two_micro_batches_of_four_costs_nothing_once_they_are_offloaded() -> None:
    full, capped, copied = (solve(problem, 16, effort=10.0) for problem in (
        train(4, 40), train(4, 20), train(4, 20, [0, 1])))
    assert (full.makespan, capped.makespan) == (57, 99) and capped.gap == 0
    assert copied.makespan == pytest.approx(57, rel=1e-6) and copied.peak_memory == (20, 20, 20, 10)


def test_faster_copies_are_among_what_could_be_changed() -> None:
    titles = {change.title for change in changes(train(3, 20, [0]))}
    assert "transfers between gpu0 and its host twice as fast" in titles


def test_what_must_be_on_the_device_at_once_is_not_offloaded_away() -> None:
    with pytest.raises(Infeasible):
        solve(train(2, 9, [0]), 1, effort=2.0)


@for_all(st.data(), tries=25)
def test_tiny_problems_with_offloads_are_solved_to_the_optimum(data: st.DataObject) -> None:
    """One stage over two micro-batches, or two stages over one, against every order there is."""
    stages = data.draw(st.integers(1, 2))
    problem = pipeline(chain(stages), forward=data.draw(st.integers(1, 3)), backward=data.draw(st.integers(1, 3)),
                       activation=4, memory=data.draw(st.sampled_from([4, 5, 7, 8, None])))
    count = 3 - stages
    offloads = [Offload(f"f{s}", f"b{s}", data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5)))
                for s in range(stages) if data.draw(st.booleans())]
    assume(offloads)
    problem = with_offloads(problem, offloads, data.draw(st.sampled_from([0.5, 1])))
    best = least_makespan(problem, count)
    assert best is not None
    schedule = solve(problem, count, effort=20.0)
    assert schedule.makespan == pytest.approx(float(best)) and schedule.gap == 0


def test_a_problem_with_offloads_is_read_back_as_it_was_written() -> None:
    problem = train(2, 20, [0])
    assert problem_from_json(problem_to_json(problem)) == problem
    assert [link.name for link in problem.links] == [*host_links(problem.devices[0].name)]


@pytest.mark.parametrize(("changes", "message"), [
    ({"forward": "g"}, "there is no block named 'g'"), ({"size": 11}, "no more than the 10"),
    ({"size": 0}, "it must be more than 0"), ({"seconds": -1}, "it must be 0 or more"),
    ({"backward": "b1"}, "same devices"),
])
def test_what_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    entry = Offload("f0", "b0", 5, 1)
    problem = pipeline(chain(2), activation=10)
    with pytest.raises(ProblemError, match=message):
        with_offloads(problem, [replace(entry, **changes)], MOMENT)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="it is there twice"):
        with_offloads(problem, [entry, entry], MOMENT)

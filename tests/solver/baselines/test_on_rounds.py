"""Known schedules of runs whose micro-batches differ, or that are of several jobs."""

from __future__ import annotations

import pytest

from tests.support import chain, for_all, pipeline, wide_runs
from tests.support.class_runs import pipeline_of_lengths
from weft.solver import BASELINES, NotApplicable, baseline, validate, violations
from weft.solver.baselines.on_rounds import baseline_on_rounds, best_on_rounds, known_on_rounds, stand_ins
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.problem.rounds import Rounds, Run

LENGTHS = [2, 6, 12, 12, 1, 3, 1, 4]


def as_wide(problem: Problem, job: str | None = None, prefix: str = "") -> tuple[Block, ...]:
    return tuple(Block(prefix + b.name, b.kind, b.devices, b.duration, b.memory, b.workspace,
                       tuple(Dependency(prefix + w.block, w.lag, w.link, w.distance) for w in b.after),
                       job=job) for b in problem.blocks)


def test_of_one_class_they_are_those_of_the_plain_problem() -> None:
    plain = pipeline(chain(3), memory=4)
    wide = Problem("one", plain.devices, as_wide(plain))
    found = known_on_rounds(Rounds(wide, Run.of(wide, 6)))
    for name in BASELINES:
        try:
            expected = baseline(name, plain, 6)
        except NotApplicable:
            assert name not in found
        else:
            assert found[name].operations == expected.operations and found[name].period == expected.period


def test_every_one_that_is_for_such_stages_is_a_schedule_of_the_run() -> None:
    wide, run = pipeline_of_lengths(4, LENGTHS)
    rounds = Rounds(wide, run)
    found = known_on_rounds(rounds)
    assert {"gpipe", "1f1b", "dynapipe", "v-block", "greedy"} <= set(found)
    for schedule in found.values():
        assert schedule.problem == rounds.problem and schedule.rounds == rounds
        validate(schedule)


@pytest.mark.parametrize("memory", [12, 16, 25])
def test_dynapipe_and_list_scheduling_see_what_each_micro_batch_takes(memory: int) -> None:
    wide, run = pipeline_of_lengths(4, LENGTHS, memory)
    rounds = Rounds(wide, run)
    for name in ("dynapipe", "greedy"):
        validate(baseline_on_rounds(name, rounds))
    best = best_on_rounds(rounds)
    assert best is not None and not violations(best)


def test_stand_ins_have_mean_times_and_the_amounts_of_a_class() -> None:
    wide, run = pipeline_of_lengths(2, [1, 1, 4])
    found = stand_ins(Rounds(wide, run), None)
    assert [[block.duration for block in problem.blocks] for problem in found] == [[2, 2, 4, 4]] * 2
    assert [problem.blocks[0].memory for problem in found] == [(4,), (1,)]


def test_jobs_are_merged() -> None:
    one, two = pipeline(chain(2)), pipeline(chain(2), forward=3)
    wide = Problem("two", one.devices, (*as_wide(one, "one", "x"), *as_wide(two, "two", "y")))
    rounds = Rounds(wide, Run.of(wide, {"one": 6, "two": 3}))
    found = known_on_rounds(rounds)
    assert {"gpipe", "1f1b", "greedy"} <= set(found)
    for schedule in found.values():
        validate(schedule)


def test_streams_of_several_jobs_run_side_by_side() -> None:
    """One is bound by its loads, the other by what it computes: beside each other they take less than in turn."""
    def job(name: str, load: int, compute: int) -> tuple[Block, ...]:
        stream = Problem(name, (Device("gpu", 3), Device("loads", lane_of="gpu")), (
            Block("L" + name, BlockKind.OTHER, (1,), load, (1,)),
            Block("C" + name, BlockKind.OTHER, (0,), compute, (-1,), after=(Dependency("L" + name),))))
        return as_wide(stream, name, "")

    wide = Problem("two", (Device("gpu", 3), Device("loads", lane_of="gpu")), (*job("a", 9, 2), *job("b", 2, 9)))
    schedule = known_on_rounds(Rounds(wide, Run.of(wide, {"a": 6, "b": 6})))["stream"]
    validate(schedule)
    assert schedule.makespan <= 6 * 11 + 9


def test_what_no_known_schedule_is_for_says_so() -> None:
    wide, run = pipeline_of_lengths(2, [1, 2])
    with pytest.raises(NotApplicable, match="split"):
        baseline_on_rounds("zb-h1", Rounds(wide, run))
    with pytest.raises(ValueError, match="there is no baseline"):
        baseline_on_rounds("zb", Rounds(wide, run))


@for_all(wide_runs(choices=False, classes=True, jobs=True), tries=25)
def test_of_any_run_what_is_made_is_a_schedule(drawn: tuple[Problem, Run]) -> None:
    wide, run = drawn
    rounds = Rounds(wide, run)
    for schedule in known_on_rounds(rounds).values():
        validate(schedule, capacities=False)

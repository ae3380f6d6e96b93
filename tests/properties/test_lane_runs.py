"""Ranks with lanes, run on threads: every result is that of its place, every lane keeps the plan's order, and the
memory of no rank is ever above the planned peak, however long things take."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.properties.test_programs import schedules
from tests.properties.test_transfers import run_traced, tables_of
from tests.support.examples import for_all
from tests.support.strategies import laned
from tests.support.threads import Tracer, run_in_threads
from tests.support.wide_problems import schedule_of_rounds, wide_runs
from weft.runtime.execute.executor import Parcel, Task
from weft.runtime.plan.check_buffers import check_buffers
from weft.runtime.plan.lanes import memory_waits, queues
from weft.runtime.plan.plan import Plan, plan_from_json, plan_of, plan_to_json
from weft.runtime.plan.program import Work
from weft.solver import NoneFound, Schedule
from weft.solver.problem import Number, Problem, ProblemError
from weft.solver.problem.rounds import Run


@st.composite
def lane_schedules(draw: st.DrawFn) -> Schedule:
    """Random ones of problems with some lanes, or none."""
    return draw(laned(draw(schedules())))


@given(lane_schedules())
def test_a_plan_holds_every_lanes_order_and_comes_back_from_its_file(schedule: Schedule) -> None:
    plan = plan_of(schedule)
    ranks = plan.vocabulary.ranks
    assert len(plan.program.ranks) == sum(device.lane_of is None for device in schedule.problem.devices)
    for rank in range(len(ranks)):
        for device, works in queues(plan, rank).items():
            assert list(works) == [plan.vocabulary.work(o.block, o.micro_batch) for o in schedule.device_orders[device]]
    check_buffers(plan.program, plan.problem, tables_of(plan), lambda work: work)
    again = plan_from_json(plan_to_json(plan))
    assert (again.program, again.times, again.digest) == (plan.program, plan.times, plan.digest)


@for_all(lane_schedules(), tries=25)
def test_every_result_is_that_of_its_place(schedule: Schedule) -> None:
    run_traced(plan_of(schedule))


class _Holder(Tracer):
    """A worker that takes any time, counts what its blocks hold, and notes the order in which they run."""

    def __init__(self, plan: Plan, rank: int, seed: int) -> None:
        super().__init__(plan, rank)
        self.level: Number = 0
        self.peak: Number = 0
        self.order: list[Work] = []
        self._lock, self._times = threading.Lock(), random.Random(seed * 100 + rank)

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None]:
        return lambda results: None

    def task(self, work: Work) -> Task:
        block = self.plan.vocabulary.block(work)
        assert block is not None
        ranks = self.plan.vocabulary.ranks
        places = self.plan.problem.pool_places[ranks.devices[self.rank]][block]
        amounts, workspace = self.plan.problem.blocks[block].memory, self.plan.problem.blocks[block].workspace
        taken = sum(max(amounts[p], 0) + workspace[p] for p in places)
        given_back = sum(min(amounts[p], 0) - workspace[p] for p in places)

        def run(results: Mapping[Work, Parcel]) -> Parcel:
            with self._lock:
                self.order.append(work)
                self.level += taken
                self.peak = max(self.peak, self.level)
            time.sleep(self._times.choice([0.0, 0.0, 0.002]))
            with self._lock:
                self.level += given_back
            return self.compute(work, results)

        return run


@for_all(lane_schedules(), st.integers(0, 9), tries=25)
def test_no_level_is_above_the_planned_peak_where_memory_is_limited(schedule: Schedule, seed: int) -> None:
    plan = plan_of(schedule)
    holders = [_Holder(plan, rank, seed) for rank in range(len(plan.program.ranks))]
    run_in_threads(plan, lambda rank: holders[rank])
    for rank, holder in enumerate(holders):
        device = plan.vocabulary.ranks.devices[rank]
        if plan.problem.devices[device].memory is not None:
            assert holder.peak <= schedule.peak_memory[device] + 1e-6
        for works in queues(plan, rank).values():
            assert [work for work in holder.order if work in set(works)] == list(works)


@given(lane_schedules())
def test_memory_is_waited_for_earlier_in_the_list(schedule: Schedule) -> None:
    plan = plan_of(schedule)
    for rank in range(len(plan.program.ranks)):
        steps = {work: step for step, work in enumerate(plan.program.works(rank))}
        assert all(steps[giver] < steps[work] for work, givers in memory_waits(plan, rank).items() for giver in givers)


@for_all(st.one_of(*(wide_runs(choices=False, classes=classes, jobs=jobs)
                     for classes, jobs in ((True, False), (False, True), (True, True)))), tries=25)
def test_jobs_and_classes_run_as_their_rounds_do(drawn: tuple[Problem, Run]) -> None:
    try:
        schedule = schedule_of_rounds(*drawn)
    except (NoneFound, ProblemError):
        assume(False)
    plan = plan_of(schedule)
    again = plan_from_json(plan_to_json(plan))
    assert (again.program, again.times) == (plan.program, plan.times)
    run_traced(plan)
    run_traced(again)

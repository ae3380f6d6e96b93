"""Buffer tables: few slots, proven, and right when they run; one fault in a table or a program is caught, or harmless.

Programs run on threads, whose values say where they come from (:mod:`tests.support.threads`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.properties.test_programs import faults, plans, schedules
from tests.support.examples import for_all
from tests.support.threads import Tracer, expected, run_in_threads
from weft.runtime.execute.executor import Executor, rank_table
from weft.runtime.plan.buffers import BufferTable
from weft.runtime.plan.check import check_program
from weft.runtime.plan.check_buffers import check_buffers
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import ProgramError, Reduce
from weft.solver.schedule import Schedule


def tables_of(plan: Plan, early: bool = True) -> list[BufferTable]:
    tracers = [Tracer(plan, rank) for rank in range(len(plan.program.ranks))]
    return [rank_table(plan, rank, tracer, tracer.reads, early=early) for rank, tracer in enumerate(tracers)]


def prove(plan: Plan, tables: list[BufferTable]) -> None:
    tracer = Tracer(plan, 0)
    check_buffers(plan.program, plan.problem, tables, tracer.keeps)


def run_traced(plan: Plan) -> None:
    """Two steps on threads; every value must be that of its place."""
    tracers = [Tracer(plan, rank) for rank in range(len(plan.program.ranks))]

    def between(step: int, executor: Executor) -> None:
        tracer = tracers[executor.session.rank]
        if step:
            assert tracer.found == {work: wanted[0][work] for work in tracer.found}
        tracer.step = step
        tracer.found.clear()
        tracer.summed.clear()

    wanted = [expected(plan, step) for step in range(2)]
    run_in_threads(plan, lambda rank: tracers[rank], 2, between)
    for rank, tracer in enumerate(tracers):
        assert tracer.found == {work: wanted[1][work] for work in plan.program.works(rank)}
        assert sorted(map(str, tracer.summed)) == sorted(
            str(Reduce(stages)) for stages, ranks in plan.parameter_groups.items() if rank in ranks)


@given(schedules(), st.booleans())
def test_slots_are_as_many_as_ever_overlap(schedule: Schedule, early: bool) -> None:
    for table in tables_of(plan_of(schedule), early):
        needed: dict[int, int] = defaultdict(int)
        for at in {landing.step for landing in table.receives}:  # any clique of intervals contains a start
            alive: dict[int, int] = defaultdict(int)
            for landing in table.receives:
                alive[landing.layout.size] += landing.step <= at <= landing.last
            for size, count in alive.items():
                needed[size] = max(needed[size], count)
        assert {size: table.slots.count(size) for size in table.slots} == dict(needed)


@given(schedules(), st.booleans())
def test_receives_are_posted_no_later_than_the_program_says_and_proven(schedule: Schedule, early: bool) -> None:
    plan = plan_of(schedule)
    tables = tables_of(plan, early)
    prove(plan, tables)
    for table in tables:
        assert all(landing.posted == landing.step or (early and landing.posted < landing.step)
                   for landing in table.receives)


@for_all(plans(), tries=25)
def test_every_schedule_runs_on_its_buffers(made: tuple[Schedule, Plan]) -> None:
    run_traced(made[1])


@given(schedules(), st.data())
def test_one_fault_in_a_table_is_refused_or_harmless(schedule: Schedule, data: st.DataObject) -> None:
    """Harmless is a slot that nobody else needs then, a posting that is as good, a slot held for longer than need be:
    the rules that say so are written here once more, for the one entry that changed."""
    plan = plan_of(schedule)
    tables = tables_of(plan)
    rank = data.draw(st.sampled_from(range(len(tables))))
    table = tables[rank]
    assume(table.receives)
    place = data.draw(st.integers(0, len(table.receives) - 1))
    landing = table.receives[place]
    fault = data.draw(st.sampled_from(["slot", "earlier", "later", "shorter", "small", "drop", "layout", "peer",
                                       "what"]))
    changed, slots = landing, list(table.slots)
    if fault == "slot":
        changed = landing._replace(slot=data.draw(st.integers(0, len(slots))))
    elif fault == "earlier":
        changed = landing._replace(posted=data.draw(st.integers(-1, landing.posted)))
    elif fault == "later":
        changed = landing._replace(posted=data.draw(st.integers(landing.posted, landing.step + 2)))
    elif fault == "shorter":
        changed = landing._replace(last=data.draw(st.integers(landing.step, landing.last)))
    elif fault == "small":
        slots[landing.slot] -= 1
    elif fault == "layout":
        first = landing.layout.parts[0]
        parts = (first._replace(shape=(*first.shape, 1)), *landing.layout.parts[1:])
        changed = landing._replace(layout=landing.layout._replace(parts=parts))
    elif fault == "peer":
        changed = landing._replace(peer=landing.peer + 1)
    elif fault == "what":
        changed = landing._replace(what=landing.what._replace(micro_batch=landing.what.micro_batch + 1))
    receives = [*table.receives[:place], *([] if fault == "drop" else [changed]), *table.receives[place + 1:]]
    tables[rank] = replace(table, slots=tuple(slots), receives=tuple(receives))
    try:
        prove(plan, tables)
    except ProgramError as error:
        event(f"{fault}: refused")
        assert changed != landing or fault in ("small", "drop")
        assert "<-- here" in str(error)
        return
    event(f"{fault}: harmless")
    assert fault in ("slot", "earlier", "later") or changed == landing
    assert changed.posted <= changed.step and 0 <= changed.slot < len(slots)
    assert slots[changed.slot] >= changed.layout.size
    for other in receives:
        if other is not changed and other.slot == changed.slot:
            assert other.last < changed.posted or changed.last < other.posted
    for other in receives:
        if other is not changed and other.peer == changed.peer:
            assert (other.posted, other.step) < (changed.posted, changed.step) if other.step < changed.step else (
                other.posted, other.step) > (changed.posted, changed.step)


@for_all(plans(), st.data(), tries=25)
def test_one_fault_in_a_program_is_refused_or_it_runs_right(made: tuple[Schedule, Plan], data: st.DataObject) -> None:
    _, plan = made
    fault, _, _, faulty = data.draw(faults(plan))
    try:
        check_program(faulty, plan.problem, plan.micro_batches, plan.parameter_groups)
    except ProgramError:
        event(f"{fault}: refused")
        return
    event(f"{fault}: harmless")
    run_traced(replace(plan, program=faulty))

"""The search over states against dynamic programming without bounds, and what devices looked at alone prove."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import pipeline, v
from tests.support.examples import examples
from tests.support.strategies import Case, cases, least_of
from weft.solver.bounds import makespan_bound
from weft.solver.bounds.states import Analysis, search, system_of
from weft.solver.bounds.states.search import LeastMakespan
from weft.solver.problem import Block, BlockKind, Dependency, Problem
from weft.solver.relations.graph import barriers, contracted, graph_of
from weft.solver.relations.implied_order import implied_order
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

AMPLE = 10**12


def found(problem: Problem, micro_batches: int, devices: Collection[int] | None = None, *, upper: int = AMPLE,
          most: int = 10**5, beam: bool = False) -> LeastMakespan:
    instance = TickProblem.of(problem)
    known = Analysis.of(instance, micro_batches, implied_order(instance, graph_of(instance), micro_batches))
    chosen = range(len(problem.devices)) if devices is None else devices
    return search(system_of(known, chosen), upper, most=most, widest=most, beam=beam)


def least(case: Case) -> Fraction:
    """In ticks."""
    return least_of(case.problem, case.micro_batches) / TickProblem.of(case.problem).tick


def rows(problem: Problem, sequence: Collection[int]) -> Orders:
    ran = [0] * len(problem.blocks)
    orders: list[list[tuple[int, int]]] = [[] for _ in problem.devices]
    for block in sequence:
        for device in problem.blocks[block].devices:
            orders[device].append((block, ran[block]))
        ran[block] += 1
    return orders


@settings(max_examples=examples(40))
@given(cases(max_micro_batches=4, max_devices=3, max_blocks=5, whole=True, links=False))
def test_it_finds_the_least_makespan_of_all_orders(case: Case) -> None:
    best = least(case)
    answer = found(case.problem, case.micro_batches)
    assert answer.bound == best
    assert answer.sequence is not None
    operations = time_orders(case.problem, case.micro_batches, rows(case.problem, answer.sequence))
    assert max(operation.end for operation in operations) == best * TickProblem.of(case.problem).tick
    nothing_shorter = found(case.problem, case.micro_batches, upper=int(best))
    assert nothing_shorter.bound == best and nothing_shorter.sequence is None


@settings(max_examples=examples(40))
@given(st.data())
def test_no_devices_alone_take_longer_than_all(data: st.DataObject) -> None:
    """With transfers on links, the blocks of some devices left out, and searches that stop early."""
    case = data.draw(cases(max_micro_batches=4, max_devices=3, max_blocks=5, whole=True))
    best = least(case)
    used = sorted({device for block in case.problem.blocks for device in block.devices})
    devices = data.draw(st.sets(st.sampled_from(used), min_size=1))
    assert found(case.problem, case.micro_batches, devices).bound <= best
    assert found(case.problem, case.micro_batches, devices, most=data.draw(st.integers(1, 20))).bound <= best


@settings(max_examples=examples(40))
@given(st.data())
def test_a_beam_claims_no_more_than_it_has_seen(data: st.DataObject) -> None:
    """Its bound is one on the least makespan, and its schedule is one, however few states it keeps."""
    case = data.draw(cases(max_micro_batches=4, max_devices=3, max_blocks=5, whole=True, links=False))
    best = least(case)
    answer = found(case.problem, case.micro_batches, most=data.draw(st.integers(1, 500)), beam=True)
    assert answer.bound <= best
    if answer.sequence is not None:
        operations = time_orders(case.problem, case.micro_batches, rows(case.problem, answer.sequence))
        assert max(operation.end for operation in operations) >= best * TickProblem.of(case.problem).tick


def test_a_narrow_beam_finds_the_least_makespan_of_a_v_in_tight_memory() -> None:
    problem = pipeline(v(4), memory=4)
    whole, narrow = found(problem, 14), found(problem, 14, most=10_000, beam=True)
    assert narrow.sequence is not None and narrow.states <= 10_000
    operations = time_orders(problem, 14, rows(problem, narrow.sequence))
    assert max(operation.end for operation in operations) <= 1.05 * whole.bound


def test_a_v_in_tight_memory_is_proven_in_a_few_thousand_states() -> None:
    """Fourteen micro-batches through eight stages; what needs no search is a fifth below the optimum."""
    problem = pipeline(v(4), memory=4)
    answer = found(problem, 14)
    assert answer.sequence is not None
    assert answer.bound == max(operation.end for operation in time_orders(problem, 14, rows(problem, answer.sequence)))
    assert makespan_bound(TickProblem.of(problem), 14) < 0.9 * answer.bound
    assert answer.states < 50_000


def test_one_device_of_a_loop_bounds_the_step() -> None:
    """The chains through the other three devices are waits of its four blocks for each other."""
    problem = pipeline([0, 1, 2, 3, 0, 1, 2, 3], memory=4)
    alone = found(problem, 8, [0])
    assert makespan_bound(TickProblem.of(problem), 8) == 78 and alone.bound == 87
    assert alone.states < 1000


@settings(max_examples=examples(300))
@given(st.data())
def test_the_compiled_layers_are_those_in_python(data: st.DataObject) -> None:
    case = data.draw(cases(max_micro_batches=4, max_devices=3, max_blocks=5, whole=True))
    used = sorted({device for block in case.problem.blocks for device in block.devices})
    devices, most = data.draw(st.sets(st.sampled_from(used), min_size=1)), data.draw(st.integers(1, 200))
    upper = data.draw(st.sampled_from([AMPLE, int(least(case))]))
    beam = data.draw(st.booleans())
    compiled = found(case.problem, case.micro_batches, devices, upper=upper, most=most, beam=beam)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[LeastMakespan.__module__], "fits", lambda system: False)
        assert found(case.problem, case.micro_batches, devices, upper=upper, most=most, beam=beam) == compiled


def with_barriers(data: st.DataObject, case: Case) -> Problem:
    """A block on all devices before everything, and one behind it, of each micro-batch."""
    devices = tuple(range(len(case.problem.devices)))
    none = (0,) * len(devices)
    blocks = [replace(block, after=(*block.after, Dependency("before"))) for block in case.problem.blocks]
    before, behind = (Block(name, BlockKind.FORWARD, devices, data.draw(st.integers(1, 6)), none, (), after)
                      for name, after in (("before", ()), ("behind", tuple(
                          Dependency(block.name) for block in blocks))))
    return replace(case.problem, blocks=(before, *blocks, behind))


@settings(max_examples=examples(25))
@given(st.data())
def test_barriers_before_and_behind_all_others_leave_the_least_makespan(data: st.DataObject) -> None:
    """Without transfers. The least is that of dynamic programming over all orders, with the barriers in."""
    case = data.draw(cases(max_micro_batches=3, max_devices=2, max_blocks=3, whole=True, links=False))
    problem = with_barriers(data, case)
    problem = replace(problem, blocks=tuple(replace(block, after=tuple(
        replace(wait, lag=0) for wait in block.after)) for block in problem.blocks))
    best = least_of(problem, case.micro_batches) / TickProblem.of(problem).tick
    answer = found(problem, case.micro_batches)
    assert answer.bound == best and answer.sequence is not None
    operations = time_orders(problem, case.micro_batches, rows(problem, answer.sequence))
    assert max(operation.end for operation in operations) == best * TickProblem.of(problem).tick
    assert found(problem, case.micro_batches, {0}).bound <= best


@settings(max_examples=examples(40))
@given(st.data())
def test_less_time_for_barriers_takes_nothing_longer(data: st.DataObject) -> None:
    """However much is kept of them; and the least stays as it is where all transfers are kept, on no links."""
    case = data.draw(cases(max_micro_batches=3, max_devices=2, max_blocks=3, whole=True))
    problem, count = with_barriers(data, case), case.micro_batches
    best, instance = least_of(problem, count) / TickProblem.of(problem).tick, TickProblem.of(problem)
    longest = max((instance.durations[i] for i in barriers(instance)), default=0)
    part = contracted(instance, data.draw(st.integers(0, longest)))
    order = implied_order(part.instance, graph_of(part.instance), count)
    known = Analysis.of(part.instance, count, order, part.cut * count)
    devices = range(len(problem.devices))
    answer = search(system_of(known, devices), AMPLE, most=10**5, widest=10**5)
    assert answer.bound <= best
    if not problem.links and part.kept >= max((arc.lag for arc in instance.arcs), default=0):
        assert answer.bound == best
    assert search(system_of(known, {data.draw(st.sampled_from(devices))}), AMPLE, most=10**5,
                  widest=10**5).bound <= best
    assert makespan_bound(instance, count) <= best

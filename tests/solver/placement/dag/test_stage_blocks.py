"""Graphs of stages as block problems, and 1F1B on them, checked by the judge."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st

import weft
from tests.support.examples import for_all
from tests.support.replicated_stages import shared, two
from tests.support.stage_graphs import CHAIN, EFFORT, FORK, forks, step_of, work_of
from weft.solver.judge.validate import InvalidSchedule, violations
from weft.solver.placement import PlacementError, place_graph
from weft.solver.placement.dag.in_flight import in_flight_samples
from weft.solver.placement.dag.stage_blocks import StageLoad, one_f_one_b, stage_problem


@for_all(st.data(), tries=60)
def test_one_f_one_b_on_any_graph_of_stages_holds_what_the_rule_says(data: st.DataObject) -> None:
    """The judge checks every schedule against memory for just the samples that the rule gives a stage."""
    count = data.draw(st.integers(1, 6))
    after = [tuple(sorted(data.draw(st.sets(st.integers(x + 1, count - 1), max_size=2)))) if x + 1 < count else ()
             for x in range(count)]
    sizes = [data.draw(st.sampled_from([1, 2, 4])) for _ in range(count)]
    held = in_flight_samples(after, sizes)
    works = [StageLoad(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9)), b, b, f)
             for b, f in zip(sizes, held, strict=True)]
    n = data.draw(st.integers(1, 6))
    schedule = one_f_one_b(stage_problem("any", works, after), works, after, n)
    assert not violations(schedule)
    unit = max(sizes)
    assert schedule.makespan >= max((w.forward + w.backward) * unit // w.micro_batch * n for w in works)


def test_equal_stages_take_a_step_shorter_by_the_depth() -> None:
    """n micro-batches on S equal stages, d deep: (n + d - 1) forwards and backwards one after another."""
    for after, depth in ((CHAIN, 6), (FORK, 3)):
        works = [StageLoad(1.0, 2.0)] * 6
        schedule = one_f_one_b(stage_problem("equal", works, after), works, after, 10)
        assert schedule.makespan == (10 + depth - 1) * 3


def test_one_f_one_b_with_less_memory_than_the_rule_says_is_refused() -> None:
    works = [StageLoad(1.0, 2.0, 1.0, 1, memory) for memory in (2.0, 2.0, 3.0, 3.0, 2.0, 1.0)]
    with pytest.raises(InvalidSchedule):
        one_f_one_b(stage_problem("tight", works, FORK), works, FORK, 10)


def test_micro_batches_that_do_not_divide_the_largest_are_refused() -> None:
    with pytest.raises(PlacementError, match="stage 1 runs micro-batches of 2"):
        stage_problem("odd", [StageLoad(1, 1, 0, 3), StageLoad(1, 1, 0, 2)], [(1,), ()])


def test_a_placed_graph_of_stages_is_scheduled_at_its_load_and_within_its_memory() -> None:
    problem = forks(3, 2, devices=7, transfer=0.25, held=1.0, resident=2.0, memory=5.0)
    graph = place_graph(problem, effort=EFFORT)
    works = work_of(problem, graph.stages)
    schedule = one_f_one_b(stage_problem("placed", works, graph.after), works, graph.after, 12)
    assert schedule.makespan >= 12 * graph.objective
    assert max(stage.memory for stage in graph.stages) == 5.0


def test_wefts_search_proves_1f1b_on_equal_stages_in_a_graph() -> None:
    works = [StageLoad(1, 2, 1, 1, held) for held in (3, 3, 3, 3, 2, 1)]
    problem = stage_problem("fork", works, FORK)
    found = weft.solve(problem, micro_batches=6, effort=2)
    assert found.makespan == found.makespan_bound == one_f_one_b(problem, works, FORK, 6).makespan == 24


def test_a_replicated_stage_runs_on_all_its_devices_at_once_and_adds_up_gradients_at_the_end() -> None:
    problem = shared(two(4), 2, 3, all_reduce=0.75)
    found = place_graph(problem)
    assert [stage.devices for stage in found.stages] == [1, 3]
    works = work_of(problem, found.stages)
    summed = found.stages[1].all_reduce * 10
    assert summed == pytest.approx(0.75 * 2 * 2 / 3 * 3)
    blocks = stage_problem("two", works, found.after)
    schedule = one_f_one_b(blocks, works, found.after, 10)
    assert [len(block.devices) for block in blocks.blocks] == [1, 3, 1, 3]
    # Equal stages, two deep: eleven forwards and backwards one after another; the all-reduce of the second stage, which
    # is done with its backwards first, ends later than the first stage's last backward.
    last = schedule.makespan - works[0].backward
    assert schedule.makespan == pytest.approx(11 * 1.0)
    step = step_of(schedule, found.stages, 10)
    assert step == pytest.approx(last + summed) and step >= 10 * found.objective


def test_stages_without_a_backward_have_forwards_only() -> None:
    nodes = tuple(dataclasses.replace(node, forward=1.0) for node in two(4).nodes)
    found = place_graph(shared(dataclasses.replace(two(4, transfer=0.5), nodes=nodes), 2))
    works = work_of(found.problem, found.stages)
    blocks = stage_problem("inference", works, found.after).blocks
    assert [block.name for block in blocks] == [f"F{s}" for s in range(len(found.stages))]
    assert [block.duration for block in blocks] == pytest.approx([stage.load for stage in found.stages])

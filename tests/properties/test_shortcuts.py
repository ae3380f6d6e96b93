"""What is found faster than before is what was found before: orders without search, twins as one device, implied
orders along the graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.strategies import problems
from weft.solver import Block, BlockKind, Device, NotApplicable, Operation, Problem, Schedule, schedule, violations
from weft.solver.baselines.lib import sequential
from weft.solver.baselines.rivals.greedy import on_every_twin, without_twins
from weft.solver.baselines.rivals.greedy import orders as greedy_orders
from weft.solver.io import schedule_files
from weft.solver.relations.graph import RelationGraph, graph_of
from weft.solver.relations.implied_order import NEVER, Order, implied_order
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders


def closed(graph: RelationGraph) -> Order:
    """What the waits of ``graph`` imply, by the textbook: over every node in turn."""
    n = len(graph.durations)
    order = np.full((n, n), NEVER, dtype=np.int64)
    np.fill_diagonal(order, 1)
    for wait in graph.waits:
        order[wait.source, wait.target] = min(int(order[wait.source, wait.target]), wait.distance)
    for k in range(n):
        np.minimum(order, order[:, k, None] + order[None, k, :], out=order)
    return np.minimum(order, NEVER).astype(np.int32)


@for_all(problems(), tries=75)
def test_the_implied_order_is_the_closure_of_the_waits(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    graph = graph_of(instance)
    assert np.array_equal(implied_order(instance, graph, 1), closed(graph))


@for_all(problems(), st.integers(1, 4), tries=75)
def test_the_order_without_search_is_taken_where_it_fits_and_found_else(problem: Problem, micro_batches: int) -> None:
    def rows_by(search: Callable[[Problem, int], Orders | None]) -> Orders | None:
        try:
            return search(problem, micro_batches)
        except NotApplicable:
            return None

    rows, searched = rows_by(sequential.in_sequence), rows_by(sequential.orders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential, "_straight_order", lambda *_: (None, (0, 0)))
        assert searched is None or rows_by(sequential.orders) is not None
    if rows is not None:
        assert rows == searched
        schedule = Schedule(problem, micro_batches, time_orders(problem, micro_batches, rows), 0.0)
        assert not violations(schedule)


def doubled(problem: Problem, device: int, copies: int) -> Problem:
    """``problem`` with ``copies`` twins of ``device`` at the end."""
    twins = tuple(range(len(problem.devices), len(problem.devices) + copies))
    blocks = []
    for block in problem.blocks:
        if device in block.devices:
            place = block.devices.index(device)
            block = replace(block, devices=(*block.devices, *twins),
                            memory=(*block.memory, *(block.memory[place],) * copies),
                            workspace=(*block.workspace, *(block.workspace[place],) * copies))
        blocks.append(block)
    devices = (*problem.devices, *(Device(f"twin {d}", problem.devices[device].memory) for d in twins))
    return replace(problem, devices=devices, blocks=tuple(blocks))


@for_all(problems(), st.data(), tries=50)
def test_twins_run_what_one_device_would(problem: Problem, data: st.DataObject) -> None:
    linked = {end for link in problem.links for end in (link.source, link.target)}
    used = [d for d, on in enumerate(problem.blocks_on) if on and d not in linked]
    if not used:
        return
    device, copies = data.draw(st.sampled_from(used)), data.draw(st.integers(1, 3))
    twofold = doubled(problem, device, copies)
    one, stands_for = without_twins(twofold)
    assert stands_for[len(problem.devices):] == (stands_for[device],) * copies
    assert len(one.devices) == len(without_twins(problem)[0].devices)
    micro_batches = data.draw(st.integers(1, 4))
    try:
        rows = greedy_orders(problem, micro_batches)
    except NotApplicable:
        with pytest.raises(NotApplicable):
            greedy_orders(twofold, micro_batches)
        return
    found = greedy_orders(twofold, micro_batches)
    assert [list(row) for row in found] == [list(row) for row in (*rows, *(rows[device],) * copies)]
    assert found == on_every_twin(greedy_orders(one, micro_batches), stands_for)
    schedule = Schedule(twofold, micro_batches, time_orders(twofold, micro_batches, found), 0.0)
    assert not violations(schedule)


@for_all(st.lists(st.builds(Operation, st.integers(0, 3), st.integers(0, 5),
                            st.sampled_from([-0.0, 0.0, 1.0, 1.5, 2]), st.sampled_from([1.0, 2.0, 2.5, 3]))), tries=100)
def test_operations_sorted_in_columns_are_in_the_order_of_the_plain_sort(operations: list[Operation]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "_MANY", 1)
        found = schedule._in_order(operations)
    assert list(map(repr, found)) == list(map(repr, sorted(operations, key=itemgetter(2, 3, 0))))
    assert schedule._in_order(found) is found
    assert found.latest_end == max((operation.end for operation in operations), default=0.0)


@for_all(problems(), st.integers(1, 3), st.sampled_from([1, 1.0, 1 / 3, 1e300, 2**70]), tries=50)
def test_a_schedule_is_written_as_its_object_would_be(problem: Problem, micro_batches: int, factor: float) -> None:
    orders = sequential.in_sequence(problem, micro_batches)
    if orders is None:
        return
    operations = tuple(Operation(block, m, start * factor, end) for block, m, start, end
                       in time_orders(problem, micro_batches, orders))
    made = Schedule(problem, micro_batches, operations, 0, solver={"name": 'an "operations": [] name'})
    assert schedule_files._schedule_text(made) == json.dumps(schedule_files.schedule_to_json(made))


@pytest.mark.parametrize("start", [float("nan"), float("inf"), np.float64(2.0), True])
def test_unusual_numbers_are_written_as_ever(start: float) -> None:
    problem = Problem("p", (Device("d", None),), (Block("b", BlockKind.OTHER, (0,), 1),))
    made = Schedule(problem, 1, (Operation(0, 0, start, 3.0),), 0)
    if np.isfinite(start):
        assert schedule_files._schedule_text(made) == json.dumps(schedule_files.schedule_to_json(made))
    else:
        with pytest.raises(ValueError, match="Out of range float"):
            schedule_files._schedule_text(made)

"""Bounds where the optimum is known, each by the argument that reaches it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.builders import chain, pipeline, v
from tests.support.tessel_shapes import shape
from weft.solver.bounds import makespan, makespan_bound, steady_bound
from weft.solver.bounds.heads import one_machine
from weft.solver.bounds.span import work_of_busiest
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import NEVER, implied_order
from weft.solver.step.search import solve
from weft.solver.ticks import TickProblem


def order_of(problem: Problem, before: str, after: str, micro_batches: int = 8) -> int:
    instance = TickProblem.of(problem)
    order = implied_order(instance, graph_of(instance), micro_batches)
    return int(order[problem.index[before], problem.index[after]])


def test_bounds_of_a_uniform_chain_are_its_published_makespan() -> None:
    """1F1B on p uniform stages takes (N + p - 1)(F + B), and nothing is faster."""
    for p, n in ((2, 3), (4, 8), (8, 16)):
        instance = TickProblem.of(pipeline(chain(p), forward=1, backward=2))
        assert makespan_bound(instance, n) == 3 * (n + p - 1)


def test_many_micro_batches_in_flight_go_through_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 100 of 400, each 2 x 300 ticks in flight: the fourth round starts after three, also where the last 100
    micro-batches are not laid out one by one."""
    monkeypatch.setattr(makespan, "_LAID_OUT", 1)
    instance = TickProblem.of(pipeline(chain(300), memory=100))
    assert order_of(instance.problem, "b0", "f0", micro_batches=400) == 100
    assert makespan_bound(instance, 400) >= 4 * 2 * 300 + 99


@pytest.mark.parametrize("memory", [1, 2, 3, 7])
def test_a_forward_waits_for_the_backward_that_frees_its_memory(memory: int) -> None:
    problem = pipeline(chain(4), memory=memory)
    assert order_of(problem, "b0", "f0") == memory
    assert order_of(problem, "f0", "f0") == 1
    assert order_of(problem, "f0", "b3") == 0
    assert order_of(problem, "b0", "f0", micro_batches=memory) == NEVER  # not so many are ever in flight


def test_a_first_chunk_leaves_room_for_the_last() -> None:
    """Room for two activations: the next micro-batch's first chunk would leave none for this one's last."""
    problem = pipeline(v(2), memory=2)
    assert order_of(problem, "b3", "f0") == 1
    assert order_of(problem, "b0", "f0") == 2
    assert order_of(problem, "b0", "f3") == 1
    instance = TickProblem.of(pipeline(v(2), memory=2))
    schedule = solve(instance.problem, 4, effort=5)
    assert makespan_bound(instance, 4) == schedule.makespan


def test_half_an_activation_of_memory_is_worth_nothing() -> None:
    whole, more = (TickProblem.of(pipeline(chain(4), activation=2, memory=memory)) for memory in (4, 5))
    assert makespan_bound(whole, 8) == makespan_bound(more, 8)


@pytest.mark.parametrize("micro_batches", [1, 5, 128])
def test_devices_idle_while_the_first_and_last_micro_batch_go_round_between_blocks_on_all(micro_batches: int) -> None:
    """M shape on four devices: whatever runs on all devices, the last waits for three forwards and three backwards."""
    schedule = solve(shape("m", 4, 20), micro_batches, effort=0.2)
    instance = TickProblem.of(schedule.problem)
    assert makespan_bound(instance, micro_batches) == 6 * micro_batches + 3 * (1 + 3)
    assert schedule.makespan == 6 * micro_batches + 12


def test_the_first_device_cannot_take_what_it_has_no_forwards_for() -> None:
    """Two devices, memory for four: little's law with the ends counted is no weaker than without."""
    instance = TickProblem.of(pipeline(v(2), forward=3, backward=1, memory=4))
    assert makespan_bound(instance, 40) >= 40 * steady_bound(instance)


def test_micro_batches_in_flight_bound_the_steady_state() -> None:
    """Two in flight and 12 ticks each from first start to last end: 6 a micro-batch, whatever the devices could do."""
    assert steady_bound(TickProblem.of(pipeline(chain(4), memory=2))) == 6
    assert steady_bound(TickProblem.of(pipeline(chain(4), activation=2, memory=5))) == 6  # little's law says 24/5
    assert steady_bound(TickProblem.of(shape("m", 4, 1))) == 2 + Fraction(16)


@pytest.mark.parametrize(("micro_batches", "bound"), [(1, 3), (2, 4), (3, 5), (4, 100 + 2)])
def test_a_link_works_for_the_transfers_that_take_place(micro_batches: int, bound: int) -> None:
    """The first three micro-batches have nobody to receive from; from then on one transfer of 100 each takes place."""
    problem = Problem("far", (Device("g0"), Device("g1")), (
        Block("a", BlockKind.OTHER, (0,), 1), Block("b", BlockKind.OTHER, (1,), 1, after=(
            Dependency("a", 1), Dependency("a", 100, "wire", 3)))), (Link("wire", 0, 1),))
    instance = TickProblem.of(problem)
    assert makespan_bound(instance, micro_batches) == bound
    assert work_of_busiest(instance, micro_batches) == (100 if micro_batches == 4 else micro_batches)


def test_one_machine_with_interruptions() -> None:
    """A long run gives way to a later one with a longer tail."""
    assert one_machine([(0, 5, 0), (1, 2, 6)]) == 9
    assert one_machine([(0, 5, 0), (1, 2, 1)]) == 7
    assert one_machine([(3, 1, 0)]) == 4


def test_memory_in_the_bound_proves_what_the_heaviest_device_cannot() -> None:
    """Embedding and its gradient on all devices, one micro-batch in flight: the sum of all durations."""
    problem = shape("m", 4, 1)
    assert makespan_bound(TickProblem.of(problem), 16) == 16 * sum(block.duration for block in problem.blocks)

"""In which order stages and chunks run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.communication_programs import chunked, pipeline, sliced_optimizer, tensor_parallel
from weft.app.communication.ordering import Order, lane_of
from weft.models.communication.passes.overlap import overlap
from weft.models.communication.prices import Prices
from weft.models.communication.program import CommunicationError, Program
from weft.models.communication.search.schedules import schedules
from weft.models.communication.search.tuning import Tuned, tune

PRICES = Prices(bandwidth=1e6, memory=1e7, launch=1e-5, kernel=1e-6, flops=1e8)


def tuned() -> Tuned:
    return tune(tensor_parallel(2, 64, 32, 64), PRICES, (1, 4), effort=1.0)


def chains(program: Program) -> list[Program]:
    """``program`` with every run of neighbouring stages that can be in two chunks."""
    names, found = [stage.name for stage in program.stages], []
    for first in range(len(names)):
        for last in range(first + 2, len(names) + 1):
            try:
                found.append(overlap(program, names[first:last], 2))
            except CommunicationError:
                continue
    return found


def is_ordered(order: Order) -> bool:
    """Whether everything comes once, behind all that it reads."""
    keys = order.steps()
    place = {key: i for i, key in enumerate(keys)}
    count = sum(order.chain_of[stage.name].chunks if stage.name in order.chain_of else 1
                for stage in order.program.stages)
    return len(place) == len(keys) == count and all(place[read] < place[key] for key in keys
                                                    for read in order.reads(key))


@pytest.mark.parametrize("program", [tensor_parallel(2, 16, 8, 12), pipeline(2, 8, 8),
                                     sliced_optimizer("lamb", 2, (16, 3))], ids=lambda program: program.name)
def test_nothing_comes_before_what_it_reads(program: Program) -> None:
    for schedule in schedules(program, 20).schedules:
        assert is_ordered(Order(schedule.program))
        for one in chains(schedule.program):
            assert is_ordered(Order(one))


def test_of_two_runs_the_first_goes_first_and_of_three_they_go_in_step() -> None:
    program = tensor_parallel(2, 16, 8, 12)
    names = [stage.name for stage in program.stages]
    (two,) = chunked(program, tuple(names[:3]), (2,))
    assert Order(two).steps()[:6] == [("product", 0), ("sum", 0), ("product", 1), ("sum", 1), ("biased", 0),
                                     ("biased", 1)]
    split = next(entry.program for entry in schedules(program).schedules
                 if entry.passes == ("split sum", "reorder biased"))
    chain = ("product", "sum", "biased", "gather(biased)", "kept")
    (three,) = chunked(split, chain, (2,))
    assert [key for key in Order(three).steps() if key[0] in chain] == [
        ("product", 0), ("sum", 0), ("product", 1), ("sum", 1), ("biased", 0), ("gather(biased)", 0),
        ("biased", 1), ("gather(biased)", 1), ("kept", 0), ("kept", 1)]


def test_each_lane_has_the_order_of_the_schedule() -> None:
    found = tuned()
    order = Order(found.program, found.schedule)
    assert is_ordered(order) and found.chunks > 1
    starts = {found.schedule.problem.blocks[operation.block].name: operation.start
              for operation in found.schedule.operations}
    for lane in ("compute", "network"):
        begins = [starts[name] for stage, chunk in order.steps() if lane_of(found.program.by_name[stage]) == lane
                  and (name := f"{stage} {chunk}" if stage in order.chain_of else stage) in starts]
        assert len(begins) > 3 and begins == sorted(begins)


def test_the_schedule_of_another_program_is_refused() -> None:
    found = tuned()
    with pytest.raises(CommunicationError, match="which this program does not run"):
        Order(sliced_optimizer("adam", 2, (16, 3)), found.schedule).steps()
    with pytest.raises(CommunicationError, match="has 2 runs of its blocks: give one of 1"):
        Order(found.program, replace(found.schedule, micro_batches=2)).steps()


def ends(order: Sequence[int], p: int, q: int, o: int) -> int:
    """When run 2 is over, where the computing lane takes chunks of run 1 and 2 as ``order`` says."""
    compute = network = 0
    sent: list[int] = []
    used = 0
    for run in order:
        if run == 1:
            compute += p
            network = max(network, compute) + q
            sent.append(network)
        elif used == len(sent):
            return 10**9  # it would wait for what it is to make itself
        else:
            compute = max(compute, sent[used]) + o
            used += 1
    return compute


@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_no_order_of_two_runs_ends_before_the_first_is_over_first(n: int, p: int, q: int, o: int) -> None:
    orders = [[1 if i in first else 2 for i in range(2 * n)] for first in combinations(range(2 * n), n)]
    assert min(ends(order, p, q, o) for order in orders) == ends([1] * n + [2] * n, p, q, o)

"""Each device's work alone, with the ways in and out, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.builders import chain, pipeline
from weft.solver.bounds.load import exact_load, exact_load_bound, load_bound, work_alone, work_bound
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.ticks import TickProblem


def work(problem: Problem, micro_batches: int) -> Fraction:
    """:func:`work_bound` in the problem's time unit."""
    instance = TickProblem.of(problem)
    return work_bound(instance, micro_batches) * instance.tick


def blocks(*entries: tuple[str, tuple[int, ...], int, tuple[Dependency, ...]], links: tuple[Link, ...] = ()) -> Problem:
    devices = 1 + max(device for _, on, _, _ in entries for device in on)
    return Problem("p", tuple(Device(f"gpu{d}") for d in range(devices)), tuple(
        Block(name, BlockKind.OTHER, on, lasts, (), (), after) for name, on, lasts, after in entries), links)


@pytest.mark.parametrize("lag", [0, 2])
def test_a_device_works_between_the_way_in_and_the_way_out(lag: int) -> None:
    """The last of three: before it two forwards of 1 and their transfers, after it two backwards of 3 and theirs."""
    problem = pipeline(chain(3), forward=1, backward=3, lag=lag)
    expected = 2 * (1 + lag) + 5 * 4 + 2 * (3 + lag)
    assert work(problem, 5) == exact_load_bound(problem, 5) == expected
    assert load_bound(problem, 5) == pytest.approx(expected) and load_bound(problem, 5) < expected
    assert work_alone(problem, 5) == pytest.approx(5 * 4) and exact_load(problem) == 4


def test_one_micro_batch_takes_its_longest_chain() -> None:
    """More than any device works: two on one GPU beside each other's wait for the other GPU."""
    problem = blocks(("a", (0,), 2, ()), ("b", (1,), 5, (Dependency("a"),)), ("c", (0,), 3, (Dependency("b", 1),)))
    assert work(problem, 1) == exact_load_bound(problem, 1) == 2 + 5 + 1 + 3


def test_a_wait_for_an_earlier_micro_batch_is_no_way_in() -> None:
    """The first micro-batch does not wait for it."""
    problem = blocks(("a", (0,), 2, (Dependency("b", 4, None, 1),)), ("b", (1,), 5, (Dependency("a"),)))
    assert work(problem, 4) == exact_load_bound(problem, 4) == 2 + 4 * 5


def test_the_shortest_ways_count_where_a_device_has_several_blocks() -> None:
    """The other GPU starts with a block that waits for 1, not with that which waits for 7; 3, not 9, come after."""
    problem = blocks(("a", (0,), 1, ()), ("b", (0,), 6, (Dependency("a"),)), ("c", (1,), 20, (Dependency("a"),)),
                     ("d", (1,), 20, (Dependency("b"),)), ("e", (0,), 3, (Dependency("d"),)),
                     ("f", (0,), 9, (Dependency("c"),)))
    assert work(problem, 3) == exact_load_bound(problem, 3) == 1 + 3 * 40 + 3


def test_what_runs_on_every_device_is_cut_out_of_time() -> None:
    """Between two blocks on both GPUs one after the other works: 4 + 2 are for all, and 3 and 5 beside each other."""
    problem = blocks(("in", (0, 1), 4, ()), ("a", (0,), 3, (Dependency("in"),)), ("b", (1,), 5, (Dependency("a"),)),
                     ("out", (0, 1), 2, (Dependency("b"),)))
    assert exact_load_bound(problem, 6) == 6 * (4 + 2) + 3 + 6 * 5  # and 6 x 11 by the second GPU alone
    assert work(problem, 6) == 6 * 11


def test_a_link_is_busy_for_each_of_its_transfers() -> None:
    after = Dependency("a", 4, "wire")
    problem = blocks(("a", (0,), 1, ()), ("b", (1,), 2, (after,)), ("c", (1,), 3, (replace(after, lag=3),)),
                     links=(Link("wire", 0, 1),))
    assert exact_load(problem) == 4 + 3
    without = tuple(replace(block, after=tuple(replace(wait, link=None) for wait in block.after))
                    for block in problem.blocks)
    assert exact_load(replace(problem, links=(), blocks=without)) == 5


def test_times_far_apart_are_added_up_exactly() -> None:
    problem = Problem("p", (Device("gpu"),), tuple(
        Block(name, BlockKind.OTHER, (0,), lasts) for name, lasts in (("a", 10**17), ("b", 0.1), ("c", 0.2))))
    assert exact_load_bound(problem, 10) == 10 * (10**17 + Fraction(3, 10))

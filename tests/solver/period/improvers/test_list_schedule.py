"""Periodic list scheduling: what it builds is a steady state that fits, and good enough to start from."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.support import chain, for_all, judged, pipeline, v
from tests.support.strategies import problems
from weft.solver.period.improvers.list_schedule import list_periodic
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.relations.min_dist import least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("memory", [1, 2, 4, 8, None])
def test_a_chain_of_equal_stages_needs_no_search(memory: int | None) -> None:
    """Eight stages, F = 1 and B = 2, ``memory`` micro-batches at once: the round trip of 24 over them, at least 3."""
    instance = TickProblem.of(pipeline(chain(8), forward=1, backward=2, memory=memory))
    found = list_periodic(instance, 3, 24)
    assert found is not None and found.period == (3 if memory is None else max(3, 24 / memory))


def test_weight_gradients_fill_the_gaps() -> None:
    instance = TickProblem.of(pipeline(v(4), forward=1, split=(1, 1), memory=8))
    found = list_periodic(instance, 6, 30)
    assert found is not None and found.period == 6


def test_none_up_to_the_longest_period_asked_for() -> None:
    instance = TickProblem.of(pipeline(chain(4), forward=1, backward=2, memory=1))
    assert list_periodic(instance, 3, 11) is None


def test_links_are_left_to_others() -> None:
    blocks = (Block("F0", BlockKind.FORWARD, (0,), 1, (0,), (), ()),
              Block("F1", BlockKind.FORWARD, (1,), 1, (0,), (), (Dependency("F0", 2, "wire"),)))
    problem = Problem("wired", (Device("a"), Device("b")), blocks, (Link("wire", 0, 1),))
    assert list_periodic(TickProblem.of(problem), 2, 10) is None


@for_all(problems(balanced=True, capacities=True, links=False), st.integers(0, 3), tries=100)
def test_what_is_listed_is_valid_when_repeated(problem: Problem, more: int) -> None:
    instance = TickProblem.of(problem)
    if not (instance.balanced and takes_before_giving(instance)):
        return
    longest = sum(instance.durations) + sum(arc.lag for arc in instance.arcs)
    found = list_periodic(instance, least_open_period(instance, longest), longest)
    if found is None:
        return
    judged(found, 2 + more)

"""What micro-batches need of the devices' memory together, whatever their order."""

from __future__ import annotations

import math

import pytest

from tests.support.class_runs import pipeline_of_lengths
from weft.solver import BlockKind, Device, Infeasible
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.memory import MemoryNeeds
from weft.solver.choices.sequences.partial import any_sequences, given_sequences
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.problem import Block, Problem, per_class
from weft.solver.problem.rounds import Run


def test_three_that_hold_more_than_a_third_are_two_at_a_time() -> None:
    wide, run = pipeline_of_lengths(2, [4, 4, 4, 4], memory=11)
    # On device 0 each holds 4 of 11 for F0, F1, B1 and B0: 24 of time; two at a time.
    assert MemoryNeeds(wide).on(0, given_sequences(run)) == 2 * 24
    assert MemoryNeeds(wide).on(1, given_sequences(run)) == 2 * 12


def test_nothing_is_said_where_a_class_gives_what_it_has_not_taken() -> None:
    wide = Problem("w", (Device("gpu", 4),), (
        Block("x", BlockKind.OTHER, (0,), **per_class(duration=1, memory={"a": (5,), "b": (-5,)})),))
    run = Run.of(wide, ["b", "a"])
    assert Costs(wide).bound(given_sequences(run)) == 2
    assert solve_sequence(wide, run, effort=2.0).makespan == 2


def test_a_class_that_does_not_fit_is_of_no_sequence() -> None:
    wide, run = pipeline_of_lengths(2, [1, 5], memory=4)
    assert Costs(wide).bound(given_sequences(run)) == math.inf
    roots = any_sequences(wide, {None: 3})
    assert [MemoryNeeds(wide).excludes(root) for root in roots] == [False, True, True, True]
    with pytest.raises(Infeasible):
        solve_sequence(wide, run, effort=2.0)
    found = solve_sequence(wide, Run.of_any_class(wide, 3), any_class=True, effort=4.0)
    assert found.makespan == 12 and found.status == "optimal"

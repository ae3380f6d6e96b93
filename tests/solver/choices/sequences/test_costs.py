"""Bounds on sequences with open places never exceed the best sequence that is left."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st

from tests.oracles.whole import TooLarge, least_makespan
from tests.support import drawn_wide, for_all
from tests.support.class_runs import all_orders, drawn_pipeline, pipeline_of_lengths
from weft.solver.bounds.makespan import least_time
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.node import Relaxation, rounds_of
from weft.solver.choices.sequences.partial import Sequences, given_sequences
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.ticks import TickProblem


def drawn(seed: int) -> Problem:
    if seed % 4 == 0:
        return drawn_wide(seed, choices=False, classes=True)
    return drawn_pipeline(seed, split=seed % 4 == 1)


def best(wide: Problem, names: list[str], partial: Sequences) -> float:
    """The least makespan of the orders of ``names`` that ``partial`` leaves."""
    found = [float("inf")]
    for order in all_orders(names):
        if partial.allows({None: tuple(order)}):
            rounds = Rounds(wide, Run.of(wide, order))
            least = least_makespan(rounds.problem, rounds.run.rounds)
            found.append(float("inf") if least is None else float(least))
    return min(found)


@for_all(st.integers(0, 10**6), tries=40)
def test_no_bound_exceeds_the_best_sequence_left(seed: int) -> None:
    wide, draw = drawn(seed), random.Random(seed)
    if not wide.classes:
        return
    names = [draw.choice(wide.classes) for _ in range(3)]
    partial = given_sequences(Run.of(wide, names))
    costs, relaxation = Costs(wide), Relaxation(wide)
    while True:
        try:
            least = best(wide, names, partial)
        except TooLarge:
            return
        rounds = relaxation.rounds(partial)
        assert costs.bound(partial) <= least * (1 + 1e-9)
        assert least_time(TickProblem.of(rounds.problem), 1) <= least * (1 + 1e-9)
        if partial.is_one:
            return
        partial = draw.choice(list(partial.children()))


def test_heads_see_that_a_device_runs_what_must_come_before() -> None:
    wide, run = pipeline_of_lengths(4, [1, 2, 3, 4, 8, 12, 12, 12, 12, 12, 6, 1, 4, 2, 4, 4])
    partial = Sequences({job: part.holding(run.classes[job])
                         for job, part in given_sequences(run).jobs.items()})
    rounds = rounds_of(wide, partial.only)
    assert Costs(wide).bound(partial) >= least_time(TickProblem.of(rounds.problem), 1) == 352


def test_what_cannot_be_there_at_once_takes_its_time_one_after_another() -> None:
    wide, run = pipeline_of_lengths(4, [12, 12, 12, 1], memory=20)
    partial = given_sequences(run)
    assert Costs(wide).bound(partial) == pytest.approx(3 * 4 * 36)

"""Leaves of the tree as decisions: a climb over options, and over places and classes of micro-batches."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.alternatives import drawn_alternatives, least_over
from tests.support.class_runs import any_orders, best_of_orders, drawn_pipeline
from tests.support.examples import slow
from tests.support.wide_problems import drawn_run, drawn_wide, keep_or_recompute
from weft.solver.choices.decision import Leaves, Taken
from weft.solver.choices.node import Node
from weft.solver.choices.partial import Partial
from weft.solver.choices.sequences.node import Roots, SequenceNode, SequenceProblem
from weft.solver.choices.sequences.partial import any_sequences
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.validate import validate
from weft.solver.orders.climb import Climb, Decided
from weft.solver.step.search import Search
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run


def begun(root: Node, leaf: Node, seed: int = 0) -> Climb[Taken] | None:
    """A climb over the leaves below ``root`` from a first schedule of ``leaf``; ``None`` where it has none."""
    budget = Budget(600.0, deterministic=10.0, seed=seed)
    rounds = leaf.rounds()
    search = Search(rounds.problem, rounds.run.rounds, budget)
    with suppress(Infeasible):
        next(search.steps(), None)
    if search.best is None:
        return None
    climb: Climb[Taken] = Climb(budget, again=True)
    climb.keep(Decided(Leaves(root, budget).at(leaf), search.best))
    return climb


def check(climb: Climb[Taken], whole: WideProblem) -> None:
    """All that is kept is judged, and of the assignment that it says."""
    for kept in climb.kept:
        rounds = kept.decision.rounds
        assert kept.schedule.problem == rounds.problem
        validate(kept.schedule)
        said = replace(kept.schedule, choices=dict(kept.decision.node.options),
                       rounds=None if rounds.is_plain else rounds)
        assert not violations_of_choice(said, whole)


@pytest.mark.parametrize("seed", [slow(0), 1, 2, 3, 4, slow(5)])
def test_it_ends_at_the_best_of_all_options(seed: int) -> None:
    problem = keep_or_recompute(seed)
    run = Run.of(problem, 3)
    root = Partial(problem, run, "makespan")
    climb = next(climb for options in reversed([*problem.assignments])
                 for climb in [begun(root, root.at(options))] if climb is not None)
    climb.run(climb.budget.slice(5.0))
    check(climb, problem)
    assert climb.kept[0].makespan == pytest.approx(least_over(problem, run))


@pytest.mark.random
@given(st.integers(0, 10**6), st.sampled_from(["choices", "classes", "jobs", "lanes"]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_leaves_it_is_judged_and_of_the_assignment_it_says(seed: int, also: str, alternatives: bool) -> None:
    if alternatives:
        problem = drawn_alternatives(seed, classes=also == "classes", jobs=also == "jobs", lanes=also == "lanes")
    else:
        problem = drawn_wide(seed, classes=also == "classes", jobs=also == "jobs")
    run = drawn_run(problem, seed)
    root = Partial(problem, run, "makespan")
    climb = begun(root, root.any_leaf())
    assume(climb is not None)
    assert climb is not None
    first = climb.kept[0].makespan
    climb.run(climb.budget.slice(0.2))
    assert climb.kept[0].makespan <= first
    check(climb, problem)


def test_it_repeats() -> None:
    problem = keep_or_recompute(4)
    root = Partial(problem, Run.of(problem, 4), "makespan")
    found = []
    for _ in range(2):
        climb = begun(root, root.any_leaf(), seed=5)
        assert climb is not None
        climb.run(climb.budget.slice(0.1))
        found.append([(kept.decision.key, kept.schedule.orders) for kept in climb.kept])
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", [101, 103])
def test_it_ends_at_the_best_classes_in_the_best_places(seed: int) -> None:
    wide = drawn_pipeline(seed)
    of = SequenceProblem(wide, {})
    roots = Roots([SequenceNode(of, partial) for partial in any_sequences(wide, {None: 3})])
    climb = begun(roots, roots.roots[0].at({None: (wide.classes[0],) * 3}))
    assert climb is not None
    climb.run(climb.budget.slice(5.0))
    check(climb, wide)
    expected = best_of_orders(wide, any_orders(wide, 3))
    assert expected is not None and climb.kept[0].makespan == pytest.approx(float(expected))

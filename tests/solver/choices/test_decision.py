"""Leaves of the tree as decisions: a climb over options, and over places and classes of micro-batches."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.support import drawn_run, drawn_wide, for_all, keep_or_recompute, slow
from tests.support.alternatives import drawn_alternatives, least_over
from tests.support.class_runs import any_orders, best_of_orders, drawn_pipeline
from weft.solver import BlockKind, Budget, Device, Infeasible, Schedule, validate
from weft.solver.choices.decision import Leaves, Taken, carried, scheduled
from weft.solver.choices.node import ChoiceNode
from weft.solver.choices.partial import Partial
from weft.solver.choices.sequences.node import Roots, SequenceNode, SequenceProblem
from weft.solver.choices.sequences.partial import any_sequences
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.orders.climb import Climb, Decided
from weft.solver.problem import Block, Dependency, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.step.search import Search, solve


def begun(root: ChoiceNode, leaf: ChoiceNode, seed: int = 0) -> Climb[Taken] | None:
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


def check(climb: Climb[Taken], whole: Problem) -> None:
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
@for_all(st.integers(0, 10**6), st.sampled_from(["choices", "classes", "jobs", "lanes"]), st.booleans(), tries=25)
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


def _problem(memory: int) -> Problem:
    def block(name: str, kind: BlockKind, amount: int, *after: str, **when: str) -> Block:
        return Block(name, kind, (0,), 1, (amount,), after=tuple(map(Dependency, after)), when=when)

    return Problem("two ways", (Device("gpu", memory),), (
        block("F", BlockKind.FORWARD, 2, way="keep"), block("F", BlockKind.FORWARD, 1, way="again"),
        block("R", BlockKind.RECOMPUTE, 1, "F", way="again"), block("B", BlockKind.BACKWARD, -2, "F", way="keep"),
        block("B", BlockKind.BACKWARD, -2, "R", way="again")), choices={"way": ("keep", "again")})


def test_what_is_new_comes_before_what_waits_for_it() -> None:
    problem = _problem(8)
    keep, again = (Rounds(problem.under({"way": option}), Run.of(problem, 2)) for option in ("keep", "again"))
    best = solve(keep.problem, 2, effort=0.5)
    made = scheduled(again, carried(best, keep, again))
    assert made is not None
    validate(made)

    def order(names: tuple[str, ...], schedule: Schedule) -> list[tuple[str, int]]:
        return [(schedule.problem.blocks[op.block].name, op.micro_batch) for op in schedule.operations
                if schedule.problem.blocks[op.block].name in names]

    assert order(("F", "B"), made) == order(("F", "B"), best)
    assert [name for name, m in order(("F", "R", "B"), made) if m == 0] == ["F", "R", "B"]
    back = scheduled(keep, carried(made, again, keep))
    assert back is not None and order(("F", "B"), back) == order(("F", "B"), best)


def test_an_order_that_does_not_fit_is_none() -> None:
    problem = _problem(2)
    keep = Rounds(problem.under({"way": "keep"}), Run.of(problem, 2))
    again = Rounds(problem.under({"way": "again"}), keep.run)
    best = solve(_problem(9).under({"way": "again"}).plain(), 2, effort=0.5)
    orders = [("F", 0), ("F", 1), ("R", 0), ("B", 0), ("R", 1), ("B", 1)]
    number = {block.name: i for i, block in enumerate(best.problem.blocks)}
    wide = best.with_operations([type(best.operations[0])(number[name], m, float(at), at + 1.0)
                                 for at, (name, m) in enumerate(orders)])
    assert scheduled(keep, carried(wide, again, keep)) is None  # two activations of 2
    assert list(carried(wide, again, again)[0]) == [(number[name], m) for name, m in orders]


def test_classes_in_other_places_take_the_places_of_their_micro_batches() -> None:
    problem = Problem("two classes", (Device("gpu"),), (
        Block("F", BlockKind.FORWARD, (0,), **per_class(duration={"short": 1, "long": 3})),
        Block("B", BlockKind.BACKWARD, (0,), **per_class(duration={"short": 2, "long": 5}), after=(Dependency("F"),))))
    one, other = (Rounds(problem, Run.of(problem, list(row)))
                  for row in (["short", "long"] * 2, ["long", "short", "short", "long"]))
    best = solve(one.problem, one.run.rounds, effort=0.5)
    made = scheduled(other, carried(best, one, other))
    assert made is not None and made.makespan == best.makespan
    rows = [[(rounds.origin.blocks[block].name, m) for block, m in (rounds.apart(*op) for op in schedule.orders[0])]
            for rounds, schedule in ((one, best), (other, made))]
    assert rows[0] == rows[1]

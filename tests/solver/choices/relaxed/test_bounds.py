"""Bounds on all assignments together: never more than the best one, for each objective."""

from __future__ import annotations

import random
from fractions import Fraction
from math import isinf

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.alternatives import drawn_alternatives, least_over, mapped
from tests.support.examples import for_all, slow
from tests.support.wide_problems import drawn_run, keep_or_recompute, wide_problems, wide_runs
from weft.solver import BlockKind, Budget, Device, Link
from weft.solver.choices.relaxed.bounds import bound_of, least_work, load_bound, relaxed
from weft.solver.problem import Block, Dependency, Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.step.search import Infeasible, Search, solve


@for_all(wide_runs(), tries=15)
def test_never_more_than_the_best_makespan(drawn: tuple[Problem, Run]) -> None:
    assert bound_of(*drawn, "makespan") <= least_over(*drawn) * (1 + 1e-9)


@for_all(st.integers(0, 10**6), tries=15)
def test_never_more_than_the_best_makespan_of_all_kinds_of_options(seed: int) -> None:
    problem = drawn_alternatives(seed, lanes=seed % 3 == 0, classes=seed % 3 == 1)
    run = drawn_run(problem, seed)
    assume(run.micro_batches * len(problem.blocks) < 40)
    assert bound_of(problem, run, "makespan") <= least_over(problem, run) * (1 + 1e-9)


@pytest.mark.parametrize("objective", ["rate", "span"])
@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 4))])
def test_never_more_than_the_best_of_other_objectives(seed: int, objective: str) -> None:
    problem = keep_or_recompute(seed)
    best = min(solve(problem.under(options).plain(), 6, objective=objective, effort=3.0).value
               for options in problem.assignments)
    assert 0 < bound_of(problem, Run.of(problem, 6), objective) <= best * (1 + 1e-9)


def test_no_room_for_what_all_options_take() -> None:
    problem = Problem("tight", (Device("gpu", 1),), tuple(
        Block("F", BlockKind.OTHER, (0,), 2, (0,), (amount,), when={"way": str(amount)}) for amount in (2, 3)),
        choices={"way": ("2", "3")})
    assert isinf(bound_of(problem, Run.of(problem, 2), "makespan"))


def _assert_all_map(problem: Problem, run: Run, seed: int) -> None:
    """Schedules of some assignments are schedules of the relaxed problems above them."""
    draw = random.Random(seed)
    assignments = list(problem.assignments)
    for options in draw.sample(assignments, min(4, len(assignments))):
        rounds = Rounds(problem.under(options), run)
        search = Search(rounds.problem, run.rounds, Budget(20, deterministic=0.05))
        try:
            next(search.steps())
        except Infeasible:
            continue
        assert search.best is not None
        some = {choice: options[choice] for choice in options if draw.random() < 0.5}
        for taken in ({}, some):
            common = relaxed(problem.under(taken))
            if common is not None:
                assert not common.choices
                mapped(search.best, rounds, common)


@for_all(wide_problems(), st.integers(0, 10**6), tries=30)
def test_schedules_map_into_it(problem: Problem, seed: int) -> None:
    _assert_all_map(problem, drawn_run(problem, seed), seed)


@for_all(st.integers(0, 10**6), st.sampled_from(["plain", "classes", "jobs", "lanes"]), tries=50)
def test_schedules_of_all_kinds_of_options_map_into_it(seed: int, kind: str) -> None:
    problem = drawn_alternatives(seed, classes=kind == "classes", jobs=kind == "jobs", lanes=kind == "lanes")
    _assert_all_map(problem, drawn_run(problem, seed), seed)


def _block(name: str, duration: int, device: int = 0, memory: int = 0, after: tuple[Dependency, ...] = (),
           **when: str) -> Block:
    return Block(name, BlockKind.OTHER, (device,), duration, (memory,), after=after, when=when)


def test_what_all_options_share() -> None:
    problem = Problem("shared", (Device("a", 4), Device("b")), (
        _block("F", 3, memory=3, way="keep"), _block("F", 2, memory=1, way="again"),
        _block("R", 2, after=(Dependency("F"),), way="again"),
        _block("B", 5, memory=-3, after=(Dependency("F", 4),), way="keep"),
        _block("B", 4, memory=-1, after=(Dependency("R", 1),), way="again")), choices={"way": ("keep", "again")})
    common = relaxed(problem)
    assert common is not None and [block.name for block in common.blocks] == ["F", "B"]
    forward, backward = common.blocks
    assert (forward.duration, forward.memory, backward.duration, backward.memory) == (2, (1,), 4, (-1,))
    # From F's start to B's: 3 + 4 where it keeps, 2 + 2 + 1 through R; F counts 2 of these.
    assert backward.after == (Dependency("F", 3),)


def test_a_block_that_moves_has_a_device_of_its_own() -> None:
    problem = Problem("moves", (Device("a", 4), Device("b", 4)), (
        _block("F", 3, 0, 2, where="a"), _block("F", 3, 1, 2, where="b"), _block("G", 1, 0)),
        choices={"where": ("a", "b")})
    common = relaxed(problem)
    assert common is not None
    assert [device.name for device in common.devices] == ["a", "b", "F's own"]
    assert [block.devices for block in common.blocks] == [(2,), (0,)]
    assert common.devices[2].memory is None and common.blocks[0].memory == (0,)


def test_a_link_that_all_options_use_is_kept() -> None:
    def to_second(lag: int, link: str | None) -> tuple[Dependency, ...]:
        return (Dependency("F", lag, link),)

    for link, kept in (("ab", "ab"), (None, None)):
        problem = Problem("links", (Device("a"), Device("b")), (
            _block("F", 3), _block("G", 1, 1, after=to_second(3, "ab"), size="large"),
            _block("G", 2, 1, after=to_second(2, link), size="small")), (Link("ab", 0, 1),),
            choices={"size": ("large", "small")})
        common = relaxed(problem)
        assert common is not None and common.blocks[1].after == (Dependency("F", 2, kept),)


def test_nothing_in_common() -> None:
    problem = Problem("apart", (Device("a"),), (_block("F", 3, way="one"), _block("G", 1, way="other")),
                      choices={"way": ("one", "other")})
    assert relaxed(problem) is None


@for_all(st.integers(0, 10**6), st.booleans(), tries=40)
def test_no_assignment_works_less(seed: int, classes: bool) -> None:
    problem = drawn_alternatives(seed, classes=classes, jobs=not classes)
    run = drawn_run(problem, seed)
    least = least_work(problem, run)
    works = []
    for options in problem.assignments:
        plain = Rounds(problem.under(options), run).problem
        works.append([run.rounds * sum(Fraction(plain.blocks[i].duration) for i in on) for on in plain.blocks_on])
    for device, work in enumerate(least):
        assert work <= min(of[device] for of in works)
    assert load_bound(problem, run) <= min(map(max, works))
    assert load_bound(problem, run, "rate") * run.rounds <= min(map(max, works))


def test_choices_apart_add_up() -> None:
    def block(name: str, device: int, duration: int, **when: str) -> Block:
        return Block(name, BlockKind.OTHER, (device,), duration, when=when)

    problem = Problem("apart", (Device("a"), Device("b")), (
        block("F", 0, 3, first="here"), block("F", 1, 4, first="there"), block("G", 0, 2, second="short"),
        block("G", 0, 5, second="long"), block("H", 0, 1)),
        choices={"first": ("here", "there"), "second": ("short", "long")})
    assert tuple(map(int, least_work(problem, Run.of(problem, 2)))) == (6, 0)  # F there, G short, H; F here


def test_memory_that_all_options_take_keeps_micro_batches_apart() -> None:
    """Each of three stages keeps 4 of 5, or 2 and then 2 more for a second forward: one micro-batch after another."""
    blocks, choices = list[Block](), {f"c{s}": ("keep", "again") for s in range(3)}
    for s, choice in enumerate(choices):
        before = (Dependency(f"F{s - 1}"),) if s else ()
        behind = (Dependency(f"B{s + 1}"),) if s < 2 else ()
        blocks += [_block(f"F{s}", 2, s, 4, before, **{choice: "keep"}), _block(f"F{s}", 2, s, 2, before,
                                                                               **{choice: "again"})]
        blocks.append(_block(f"R{s}", 2, s, 2, behind or (Dependency(f"F{s}"),), **{choice: "again"}))
        blocks += [_block(f"B{s}", 4, s, -4, (Dependency(made), *behind), **{choice: option})
                   for made, option in ((f"F{s}", "keep"), (f"R{s}", "again"))]
    problem = Problem("kept", tuple(Device(f"gpu{s}", 5) for s in range(3)), tuple(blocks), choices=choices)
    assert bound_of(problem, Run.of(problem, 8), "makespan") == 8 * 3 * (2 + 4)

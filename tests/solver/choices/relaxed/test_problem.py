"""The relaxed problem: every assignment's schedules map into it, so what bounds it bounds them."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.alternatives import drawn_alternatives, mapped
from tests.support.examples import examples
from tests.support.wide_problems import drawn_run, wide_problems
from weft.solver.choices.relaxed.problem import relaxed
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import BlockKind, Device, Link
from weft.solver.step.search import Infeasible, Search
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run


def _assert_all_map(problem: WideProblem, run: Run, seed: int) -> None:
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


@settings(max_examples=examples(30), deadline=None)
@given(wide_problems(), st.integers(0, 10**6))
def test_schedules_map_into_it(problem: WideProblem, seed: int) -> None:
    _assert_all_map(problem, drawn_run(problem, seed), seed)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["plain", "classes", "jobs", "lanes"]))
def test_schedules_of_all_kinds_of_options_map_into_it(seed: int, kind: str) -> None:
    problem = drawn_alternatives(seed, classes=kind == "classes", jobs=kind == "jobs", lanes=kind == "lanes")
    _assert_all_map(problem, drawn_run(problem, seed), seed)


def _block(name: str, duration: int, device: int = 0, memory: int = 0, after: tuple[WideDependency, ...] = (),
           **when: str) -> WideBlock:
    return WideBlock(name, BlockKind.OTHER, (device,), duration, (memory,), after=after, when=when)


def test_what_all_options_share() -> None:
    problem = WideProblem("shared", (Device("a", 4), Device("b")), (
        _block("F", 3, memory=3, way="keep"), _block("F", 2, memory=1, way="again"),
        _block("R", 2, after=(WideDependency("F"),), way="again"),
        _block("B", 5, memory=-3, after=(WideDependency("F", 4),), way="keep"),
        _block("B", 4, memory=-1, after=(WideDependency("R", 1),), way="again")), choices={"way": ("keep", "again")})
    common = relaxed(problem)
    assert common is not None and [block.name for block in common.blocks] == ["F", "B"]
    forward, backward = common.blocks
    assert (forward.duration, forward.memory, backward.duration, backward.memory) == (2, (1,), 4, (-1,))
    # From F's start to B's: 3 + 4 where it keeps, 2 + 2 + 1 through R; F counts 2 of these.
    assert backward.after == (WideDependency("F", 3),)


def test_a_block_that_moves_has_a_device_of_its_own() -> None:
    problem = WideProblem("moves", (Device("a", 4), Device("b", 4)), (
        _block("F", 3, 0, 2, where="a"), _block("F", 3, 1, 2, where="b"), _block("G", 1, 0)),
        choices={"where": ("a", "b")})
    common = relaxed(problem)
    assert common is not None
    assert [device.name for device in common.devices] == ["a", "b", "F's own"]
    assert [block.devices for block in common.blocks] == [(2,), (0,)]
    assert common.devices[2].memory is None and common.blocks[0].memory == (0,)


def test_a_link_that_all_options_use_is_kept() -> None:
    def to_second(lag: int, link: str | None) -> tuple[WideDependency, ...]:
        return (WideDependency("F", lag, link),)

    for link, kept in (("ab", "ab"), (None, None)):
        problem = WideProblem("links", (Device("a"), Device("b")), (
            _block("F", 3), _block("G", 1, 1, after=to_second(3, "ab"), size="large"),
            _block("G", 2, 1, after=to_second(2, link), size="small")), (Link("ab", 0, 1),),
            {"size": ("large", "small")})
        common = relaxed(problem)
        assert common is not None and common.blocks[1].after == (WideDependency("F", 2, kept),)


def test_nothing_in_common() -> None:
    problem = WideProblem("apart", (Device("a"),), (_block("F", 3, way="one"), _block("G", 1, way="other")),
                          choices={"way": ("one", "other")})
    assert relaxed(problem) is None

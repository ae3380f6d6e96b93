"""A schedule held against the whole problem: what is said where it is not of the options that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from weft.solver import BlockKind, Device, Schedule, time_orders
from weft.solver.baselines.rivals.greedy import orders
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.problem import Block, Dependency, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run


def block(name: str, duration: Any = 1, *after: Dependency, **when: str) -> Block:
    return Block(name, BlockKind.OTHER, (0,), duration, (1,), after=after, when=when)


WHOLE = Problem("w", (Device("gpu"),), (
    block("a"), block("b", 2, Dependency("a", 1, when={"how": "slow"}), how="slow"), block("b", 1, how="fast"),
    block("c", 1, Dependency("b"), Dependency("d")), block("d", how="fast")), choices={"how": ("slow", "fast")})


def schedule(whole: Problem, options: Mapping[str, str], micro_batches: Any = 2) -> Schedule:
    wide = whole.under(options)
    rounds = Rounds(wide, Run.of(wide, micro_batches))
    count = rounds.run.rounds
    made = time_orders(rounds.problem, count, orders(rounds.problem, count))
    return Schedule(rounds.problem, count, made, 0.0, choices=options, rounds=None if rounds.is_plain else rounds)


@pytest.mark.parametrize("option", ["slow", "fast"])
def test_what_the_options_make_is_the_problem(option: str) -> None:
    assert violations_of_choice(schedule(WHOLE, {"how": option}), WHOLE) == []


@pytest.mark.parametrize(("taken", "fault"), [
    ({}, "choices: no option of 'how' is taken, it must be one of 'slow', 'fast'"),
    ({"how": "so"}, "choices: 'so' is no option of 'how', it must be one of 'slow', 'fast'"),
    ({"how": "slow", "why": "x"}, "choices: there is no choice named 'why', there are 'how'"),
])
def test_exactly_one_option_of_each_choice(taken: dict[str, str], fault: str) -> None:
    assert violations_of_choice(replace(schedule(WHOLE, {"how": "slow"}), choices=taken), WHOLE) == [fault]


def test_another_option_has_other_blocks_costs_and_waits() -> None:
    flipped = replace(schedule(WHOLE, {"how": "slow"}), choices={"how": "fast"})
    assert violations_of_choice(flipped, WHOLE) == [
        "block 'd' exists under the options taken, and the schedule's problem has none of that name",
        "block 'b': duration is 2, and 1 under the options taken",
        "block 'b' waits for 'a' (lag 1), and for nothing under the options taken",
        "block 'c' waits for 'b', and for 'b', 'd' under the options taken"]
    assert violations_of_choice(flipped, WHOLE, limit=1) == violations_of_choice(flipped, WHOLE)[:1]
    other = replace(schedule(WHOLE, {"how": "fast"}), choices={"how": "slow"})
    assert ("the schedule's problem has a block 'd', which does not exist under the options taken"
            in violations_of_choice(other, WHOLE))


def test_devices_links_and_units_are_those_of_the_whole_problem() -> None:
    made = schedule(WHOLE, {"how": "slow"})
    assert violations_of_choice(made, replace(WHOLE, devices=(Device("gpu", 9),), memory_unit="GiB")) == [
        "the schedule's problem has other devices than the whole problem: 'gpu'",
        "the schedule's problem is in s and B, the whole problem in s and GiB"]


def test_jobs_and_classes_are_compared_too() -> None:
    whole = replace(WHOLE, blocks=tuple(
        replace(one, job="one", **per_class(duration={"s": 1, "l": 3})) if one.name == "a" else
        replace(one, job="one") for one in WHOLE.blocks))
    made = schedule(whole, {"how": "fast"}, ["s", "l"])
    assert violations_of_choice(made, whole) == []
    dearer = replace(whole, blocks=tuple(
        replace(one, **per_class(duration={"s": 1, "l": 4})) if one.name == "a" else one for one in whole.blocks))
    assert violations_of_choice(made, dearer) == [
        "block 'a' of class 'l': duration is 3, and 4 under the options taken"]
    plain = replace(schedule(WHOLE, {"how": "fast"}), choices={"how": "fast"})
    assert violations_of_choice(plain, whole) == [
        "block 'a': duration is given for the classes 's', 'l', and a micro-batch is of none"]
    moved = replace(whole, blocks=tuple(replace(one, job="two") for one in whole.blocks))
    assert violations_of_choice(made, moved)[0] == "block 'a' is of the job 'one', in the whole problem of 'two'"


@pytest.mark.parametrize(("label", "stated", "value"), [
    ("workspace", "0", (3,)), ("memory", "1", (2,)), ("kind", "other", BlockKind.FORWARD), ("duration", "1", 5),
    ("devices", "0", (1,))])
def test_each_cost_of_a_block_is_that_of_the_whole_problem(label: str, stated: str, value: Any) -> None:
    base = replace(WHOLE, devices=(Device("gpu"), Device("other")))
    made = schedule(base, {"how": "slow"})
    change: dict[str, Any] = {label: value}
    other = replace(base, blocks=tuple(replace(one, **change) if one.name == "a" else one for one in base.blocks))
    shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert violations_of_choice(made, base) == []
    assert violations_of_choice(made, other) == [
        f"block 'a': {label} is {stated}, and {shown} under the options taken"]


@pytest.mark.parametrize(("how", "why", "exists"), [
    ("slow", "x", True), ("slow", "y", False), ("fast", "x", False), ("fast", "y", False)])
def test_a_block_exists_where_every_option_of_its_when_is_taken(how: str, why: str, exists: bool) -> None:
    both = block("e", how="slow", why="x")
    waits = block("f", 1, Dependency("a", 2, when={"how": "slow", "why": "x"}), Dependency("d"))
    whole = replace(WHOLE, blocks=(*WHOLE.blocks, both, waits, block("g", why="y")),
                    choices={"how": ("slow", "fast"), "why": ("x", "y")})
    options = {"how": how, "why": why}
    made = schedule(whole, options)
    assert violations_of_choice(made, whole) == []
    assert ("e" in made.problem.index) == exists
    # Under other options the same schedule has a block too many, or too few.
    for other in whole.assignments:
        if other != options:
            assert violations_of_choice(replace(made, choices=other), whole) != []

"""A schedule in rounds, held against the problem with jobs and classes: rule by rule, and what is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from weft.solver import BlockKind, Device, Link, Operation, Schedule, violations
from weft.solver.judge.run_rules import run_operations
from weft.solver.problem import Block, Dependency, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run

#: ``a`` lasts 1 or 3 and holds as much until ``c`` ends; ``c`` runs on the copy engine, ``b`` is of another job.
WIDE = Problem("w", (Device("gpu", 6), Device("copy", lane_of="gpu")), (
    Block("a", BlockKind.FORWARD, (0,), job="one",
          **per_class(duration={"s": 1, "l": 3}, memory={"s": (1,), "l": (3,)})),
    Block("c", BlockKind.OTHER, (1,), after=(Dependency("a", **per_class(lag={"s": 0, "l": 1})),), job="one",
          **per_class(duration=2, memory={"s": (-1,), "l": (-3,)})),
    Block("b", BlockKind.OTHER, (0,), 2, (0,), after=(Dependency("b", 1, distance=1),), job="two")))
RUN = {"one": ["s", "l"], "two": 2}
#: Block, micro-batch, start.
GOOD = {("a", 0): 0, ("a", 1): 1, ("b", 0): 4, ("b", 1): 7, ("c", 0): 1, ("c", 1): 5}


def schedule(starts: Mapping[tuple[str, int], float], wide: Problem = WIDE, run: object = None) -> Schedule:
    rounds = Rounds(wide, Run.of(wide, RUN if run is None else run))  # type: ignore[arg-type]
    operations = []
    for (name, m), start in starts.items():
        block, number = rounds.joined(rounds.origin.index[name], m)
        operations.append(Operation(block, number, start, start + rounds.problem.blocks[block].duration))
    return Schedule(rounds.problem, rounds.run.rounds, tuple(operations), 0.0, rounds=rounds)


def test_a_good_schedule_passes_and_its_operations_are_told_apart() -> None:
    made = schedule(GOOD)
    assert violations(made) == []
    names = [block.name for block in WIDE.blocks]
    assert {(names[i], m): start for i, m, start, _ in run_operations(made)} == GOOD


@pytest.mark.parametrize(("change", "fault"), [
    ({("c", 1): 4.5},
     "block 'c' of micro-batch 1 of job 'one' on device 'copy' starts at 4.5 s, but it waits for block 'a' of "
     "micro-batch 1 of job 'one', which ends at 4 s and its transfer takes 1 s"),
    ({("b", 1): 6},
     "block 'b' of micro-batch 1 of job 'two' on device 'gpu' starts at 6 s, but it waits for block 'b' of micro-batch "
     "0 of job 'two', which ends at 6 s and its transfer takes 1 s"),
    ({("b", 0): 3},
     "device 'gpu': block 'b' of micro-batch 0 of job 'two' starts at 3 s, but block 'a' of micro-batch 1 of job 'one' "
     "runs there until 4 s"),
    ({("c", 0): 4.5},
     "device 'copy': block 'c' of micro-batch 1 of job 'one' starts at 5 s, but block 'c' of micro-batch 0 of job "
     "'one' runs there until 6.5 s"),
    ({("c", 0): 7},
     "block 'c' of micro-batch 1 of job 'one' on device 'copy' starts at 5 s, not after micro-batch 0 of the same "
     "block, which starts at 7 s"),
    ({("a", 0): -1}, "block 'a' of micro-batch 0 of job 'one' on device 'gpu' starts at -1 s, before 0"),
])
def test_each_rule_in_its_words(change: Mapping[tuple[str, int], float], fault: str) -> None:
    assert violations(schedule({**GOOD, **change})) == [fault]


def test_operations_that_are_missing_twice_or_of_no_micro_batch() -> None:
    made = schedule(GOOD)
    first, *others = made.operations
    assert violations(made.with_operations(others)) == [
        "nothing starts at 0: the first is block 'c' of micro-batch 0 of job 'one' on device 'copy' at 1 s",
        "block 'a' of micro-batch 0 of job 'one' on device 'gpu' never runs"]
    again = first._replace(start=20.0, end=21.0)
    assert violations(made.with_operations([*made.operations, again])) == [
        "block 'a' of micro-batch 0 of job 'one' on device 'gpu' runs twice, again at 20 s"]
    beyond = first._replace(micro_batch=1)
    assert violations(made.with_operations([*made.operations, beyond])) == [
        "block 'a' runs for micro-batch 2 of job 'one', there are 0 to 1"]
    assert violations(made.with_operations([*made.operations, first._replace(block=99)])) == [
        "an operation of round 0 names block number 99, there are 0 to 5"]
    assert violations(made.with_operations([*made.operations, first._replace(start=float("nan"))])) == [
        "block 'a' of micro-batch 0 of job 'one' runs from nan to 1, times are finite"]
    longer = first._replace(end=1.5)
    assert violations(made.with_operations([longer, *others]))[0] == (
        "block 'a' of micro-batch 0 of job 'one' on device 'gpu' runs from 0 s to 1.5 s, that is 1.5 s, but the block "
        "lasts 1 s")


def test_memory_is_that_of_the_classes_and_of_the_pool() -> None:
    tight = replace(WIDE, devices=(Device("gpu", 3), WIDE.devices[1]))
    assert violations(schedule(GOOD, tight)) == [
        "device 'gpu': when block 'a' of micro-batch 1 of job 'one' starts at 1 s it holds 4 B, 1 B more than its 3 B"]
    assert violations(schedule(GOOD, replace(WIDE, devices=(Device("gpu", 4), WIDE.devices[1])))) == []


def test_links_carry_one_transfer_at_a_time() -> None:
    wide = Problem("w", (Device("a"), Device("b")), (
        Block("p", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2})),
        Block("q", BlockKind.OTHER, (1,), 1, after=(
            Dependency("p", link="wire", **per_class(lag={"s": 3, "l": 1})),))),
        (Link("wire", 0, 1),))
    assert violations(schedule({("p", 0): 0, ("p", 1): 1, ("q", 0): 4, ("q", 1): 5}, wide, ["s", "l"])) == []
    early = schedule({("p", 0): 0, ("p", 1): 1, ("q", 0): 3, ("q", 1): 4}, wide, ["s", "l"])
    assert violations(early) == [
        "block 'q' of micro-batch 0 on device 'b' starts at 3 s, but its transfer from block 'p' of micro-batch 0 is "
        "on link 'wire' from 1 s to 4 s",
        "block 'q' of micro-batch 1 on device 'b' starts at 4 s, but its transfer from block 'p' of micro-batch 1 is "
        "on link 'wire' from 4 s to 5 s"]


def test_the_plain_problem_is_the_one_of_the_rounds() -> None:
    made = schedule(GOOD)
    blocks = list(made.problem.blocks)

    def faults(number: int, **change: object) -> list[str]:
        changed = [*blocks[:number], replace(blocks[number], **change), *blocks[number + 1:]]  # type: ignore[arg-type]
        return violations(replace(made, problem=replace(made.problem, blocks=tuple(changed))))

    assert [block.name for block in blocks] == ["a*0", "c*0", "b*0", "a*1", "c*1", "b*1"]
    assert faults(3, duration=2) == [
        "the problem of the rounds: block 'a*1' has the duration 2, and what it stands for has 3"]
    assert faults(5, after=(Dependency("b*0", 0),)) == [
        "the problem of the rounds: block 'b*1' waits for other blocks than what it stands for does"]
    other = replace(made, problem=replace(made.problem, devices=(Device("gpu"), WIDE.devices[1])))
    assert violations(other) == [
        "the problem of the rounds has other devices, links or units than the problem with jobs and classes"]


@pytest.mark.parametrize(("name", "fault"), [
    ("a*7", "the problem of the rounds: there is a copy 7 of block 'a', and a round holds 2 micro-batches of its job"),
    ("x", "the problem of the rounds: block 'x' is no copy of a block"),
])
def test_every_copy_has_its_block(name: str, fault: str) -> None:
    wide = Problem("w", (Device("gpu"),), (Block("a", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2})),))
    made = schedule({("a", 0): 0, ("a", 1): 1}, wide, ["s", "l"])
    first, second = made.problem.blocks
    renamed = (replace(first, after=(Dependency(name, distance=1),)), replace(second, name=name))
    found = violations(replace(made, problem=replace(made.problem, blocks=renamed)))
    assert fault in found
    assert ("the problem of the rounds: there must be one block for copy 1 of block 'a', as a round holds 2 "
            "micro-batches of its job") in found


def test_the_run_is_one_of_the_problem() -> None:
    made = schedule(GOOD)
    assert made.rounds is not None
    assert violations(replace(made, micro_batches=2)) == ["micro_batches is 2, and the run has 1 rounds"]
    uneven = replace(made.rounds, run=replace(made.rounds.run, rounds=2, classes={
        "one": ("s", "l"), "two": (None, None, None)}))
    assert violations(replace(made, rounds=uneven, micro_batches=2)) == [
        "block 'b': 3 micro-batches of its job do not make 2 rounds of as many each"]
    unknown = replace(made.rounds, run=replace(made.rounds.run, classes={"one": ("s", "xl"), "two": (None, None)}))
    assert violations(replace(made, rounds=unknown))[0] == (
        "block 'a': duration is given for the classes 's', 'l', and a micro-batch is of 'xl'")


def test_names_that_end_in_stars_are_told_from_copies() -> None:
    wide = Problem("w", (Device("gpu"),), tuple(
        Block(name, BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2})) for name in ("f", "f*", "f*0")))
    row = {(name, m): 4.5 * m + k * (1 + m) - 1.5 * m for m in range(2) for k, name in enumerate(("f", "f*", "f*0"))}
    made = schedule(row, wide, ["s", "l"])
    assert violations(made) == []
    assert {(wide.blocks[i].name, m): start for i, m, start, _ in run_operations(made)} == row

"""What stands in an open place: the least times, and the least memory state by state."""

from __future__ import annotations

from weft.solver.choices.sequences.node import Relaxation
from weft.solver.choices.sequences.partial import given_sequences
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem, per_class
from weft.solver.problem.rounds import Run


def wide() -> Problem:
    """A forward that keeps 2 or 8, a look that needs 5 or 1 meanwhile, and a backward that gives all back."""
    return Problem("w", (Device("gpu", 20),), (
        Block("f", BlockKind.FORWARD, (0,), **per_class(
            duration={"short": 1, "long": 6}, memory={"short": (2,), "long": (8,)},
            workspace={"short": (3,), "long": (1,)})),
        Block("look", BlockKind.OTHER, (0,), after=(Dependency("f", **per_class(lag={"short": 7, "long": 3})),),
              **per_class(duration={"short": 4, "long": 2}, workspace={"short": (5,), "long": (1,)})),
        Block("b", BlockKind.BACKWARD, (0,), after=(Dependency("look"),),
              **per_class(duration=2, memory={"short": (-2,), "long": (-8,)}))))


def open_place(*given: str) -> list[Block]:
    """The blocks of an open place where a micro-batch of ``given`` may stand."""
    partial = given_sequences(Run({None: given}, len(given)))
    relaxed = Relaxation(wide()).rounds(partial).origin
    return [block.of_class("open") for block in relaxed.blocks]


def test_times_are_the_least_of_the_classes_that_may_stand_there() -> None:
    blocks = open_place("short", "long")
    assert [block.duration for block in blocks] == [1, 2, 2]
    assert blocks[1].after[0].lag == 3


def test_memory_is_the_least_after_each_block_and_while_it_runs() -> None:
    """From the forward to the backward 2 (short) or 8; while the forward runs 5 or 9. The look, which leaves nothing,
    counts by itself: 5 or 1 (long)."""
    blocks = open_place("short", "long")
    assert [block.memory for block in blocks] == [(2,), (0,), (-2,)]
    assert [block.workspace for block in blocks] == [(5 - 2,), (1,), (0,)]


def test_classes_that_stand_elsewhere_already_do_not_count() -> None:
    blocks = open_place("long", "long")
    assert [block.duration for block in blocks] == [6, 2, 2]
    assert [block.memory for block in blocks] == [(8,), (0,), (-8,)]
    assert [block.workspace for block in blocks] == [(1,), (1,), (0,)]

"""What repeats in a run, and what a run must say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import for_all, keep_or_recompute, wide_runs
from weft.solver import BlockKind, Device, Link, ProblemError, time_orders
from weft.solver.baselines.rivals.greedy import orders
from weft.solver.problem import Block, Dependency, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run


def two_jobs() -> Problem:
    return Problem("jobs", (Device("gpu"),), tuple(Block(name, BlockKind.OTHER, (0,), 1, job=name)
                                                       for name in ("a", "b")))


def two_classes() -> Problem:
    return Problem("classes", (Device("gpu"),), (
        Block("x", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2})),))


def test_rounds_are_as_short_as_they_can_be() -> None:
    assert Run.of(two_jobs(), 6).rounds == 6
    assert Run.of(two_jobs(), {"a": 6, "b": 4}).rounds == 2
    assert Run.of(two_jobs(), {"a": 6, "b": 4}).per_round("a") == (None, None, None)
    assert Run.of(two_classes(), ["s", "l", "l"] * 3).rounds == 3
    assert Run.of(two_classes(), ["s", "l", "l"]).rounds == 1
    assert Run.of(two_classes(), ["s"] * 4).rounds == 4


def test_a_ratio_fixes_the_round() -> None:
    assert Run.of(two_jobs(), {"a": 8, "b": 4}, {"a": 4, "b": 2}).rounds == 2


@pytest.mark.parametrize(("problem", "counted", "ratio", "message"), [
    (two_jobs(), {"a": 3, "b": 2}, {"a": 2, "b": 1}, "3 is no multiple of 2"),
    (two_jobs(), {"a": 4, "b": 4}, {"a": 2, "b": 1}, "the ratio 2:1 is not that of the micro-batches, 4:4"),
    (two_jobs(), {"a": 4, "b": 4}, {"a": 2}, "the ratio is of the jobs 'a', and there are 'a', 'b'"),
    (two_jobs(), {"a": 4, "c": 4}, None, "the job 'c' has no block"),
    (two_jobs(), {"a": 4}, None, "says nothing of the job 'b'"),
    (two_jobs(), ["s"], None, "say whose micro-batches they are"),
    (two_classes(), 4, None, "list the class of each"),
    (two_classes(), ["s", "x"], None, "there is no class 'x'"),
    (two_jobs(), 0, None, "must be at least 1"),
])
def test_what_a_run_leaves_open_is_refused(problem: Problem, counted: Any, ratio: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Run.of(problem, counted, ratio)


def test_one_job_of_one_class_is_the_plain_problem() -> None:
    wide = keep_or_recompute(5, choices=False)
    assert Rounds(wide, Run.of(wide, 7)).problem == wide.plain()


def test_copies_run_in_turn_and_cost_what_their_class_does() -> None:
    wide = Problem("w", (Device("gpu"),), (
        Block("f", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 4})),
        Block("g", BlockKind.OTHER, (0,), 2, after=(Dependency("f", **per_class(lag={"s": 0, "l": 7})),
                                                      Dependency("g", distance=1)))))
    rounds = Rounds(wide, Run.of(wide, ["s", "l"] * 3))
    assert [(b.name, b.duration) for b in rounds.problem.blocks] == [("f*0", 1), ("g*0", 2), ("f*1", 4), ("g*1", 2)]
    assert [(w.block, w.lag, w.distance) for w in rounds.problem.blocks[1].after] == [
        ("f*0", 0, 0), ("g*1", 0, 1), ("g*1", 0, 1)]
    assert [(w.block, w.lag, w.distance) for w in rounds.problem.blocks[3].after] == [
        ("f*1", 7, 0), ("g*0", 0, 0), ("g*0", 0, 0)]
    assert rounds.apart(2, 2) == (0, 5) and rounds.joined(0, 5) == (2, 2)


def test_rounds_are_called_so_unless_each_is_one_micro_batch() -> None:
    wide = Problem("w", (Device("gpu"),), (Block("f", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 4})),))
    assert Rounds(wide, Run.of(wide, ["s"] * 3)).counted == "micro-batches"
    assert Rounds(wide, Run.of(wide, ["s", "l", "s"])).counted == "rounds of 3 micro-batches"
    jobs = Problem("j", (Device("gpu"),), (Block("f", BlockKind.OTHER, (0,), 1, job="one"),
                                               Block("g", BlockKind.OTHER, (0,), 1, job="two")))
    assert Rounds(jobs, Run.of(jobs, {"one": 2, "two": 4})).counted == (
        "rounds of 1 micro-batch of one and 2 micro-batches of two")


def over_link(*waits: Dependency) -> Problem:
    return Problem("w", (Device("a"), Device("b")), (
        Block("p", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2})),
        Block("q", BlockKind.OTHER, (1,), 1, after=waits[:1]),
        Block("r", BlockKind.OTHER, (1,), 1, after=waits[1:])), (Link("wire", 0, 1),))


def test_transfers_of_one_producer_run_in_the_order_of_the_file() -> None:
    wide = over_link(Dependency("p", 3, "wire", 1), Dependency("p", 3, "wire"))
    rounds = Rounds(wide, Run.of(wide, ["s", "l"]))
    row = [rounds.joined(i, m) for i, m in ((2, 0), (1, 0), (1, 1), (2, 1))]
    made = time_orders(rounds.problem, 1, [[rounds.joined(0, 0), rounds.joined(0, 1)], row])
    starts = {rounds.apart(block, m): start for block, m, start, _ in made}
    assert starts[2, 0] == 7.0  # first the transfer to q of the next micro-batch, from 1 to 4, then this one


def test_two_transfers_from_one_block_to_another_are_one_rounds_at_most() -> None:
    wide = over_link(Dependency("p"), Dependency("p", 1, "wire"), Dependency("p", 1, "wire", 1))
    with pytest.raises(ProblemError, match="'r' waits twice for 'p' over the link 'wire'"):
        Rounds(wide, Run.of(wide, ["s", "l"]))
    Rounds(wide, Run.of(wide, ["s", "s"]))


@for_all(wide_runs(choices=False, classes=True, jobs=True), tries=40)
def test_every_micro_batch_of_every_job_stands_there_once(drawn: tuple[Problem, Run]) -> None:
    wide, run = drawn
    rounds = Rounds(wide, run)
    made = time_orders(rounds.problem, run.rounds, orders(rounds.problem, run.rounds))
    found = sorted(rounds.apart(block, m) for block, m, _, _ in made)
    assert found == sorted((i, m) for i, block in enumerate(wide.blocks) for m in range(len(run.classes[block.job])))
    for block, m, start, end in made:
        i, number = rounds.apart(block, m)
        assert rounds.joined(i, number) == (block, m)
        assert abs(end - start - wide.blocks[i].of_class(run.classes[wide.blocks[i].job][number]).duration) < 1e-9

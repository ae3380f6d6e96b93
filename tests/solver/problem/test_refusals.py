"""What a wide problem is under its options, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.wide_problems import keep_or_recompute
from weft.solver import Schedule, baseline, solve, time_orders, violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem, ProblemError, per_class
from weft.solver.ticks import TickProblem

GPU = Device("gpu")


def block(name: str, duration: Any = 1, **further: Any) -> Block:
    return Block(name, BlockKind.OTHER, (0,), **per_class(duration=duration), **further)


def wide(*blocks: Block, **choices: tuple[str, ...]) -> Problem:
    return Problem("wide", (GPU,), blocks, choices=choices)


def test_under_an_assignment_it_is_the_plain_problem_of_the_options_taken() -> None:
    problem = wide(block("a"), block("b", when={"how": "slow"}, after=(Dependency("a"),)),
                   block("c", 2, when={"how": "slow"}, after=(Dependency("b"),)),
                   block("c", 5, when={"how": "fast"}, after=(Dependency("a", 3),)), how=("slow", "fast"))
    slow, fast = problem.under({"how": "slow"}).plain(), problem.under({"how": "fast"}).plain()
    assert [(b.name, b.duration) for b in slow.blocks] == [("a", 1), ("b", 1), ("c", 2)]
    assert [(b.name, b.duration) for b in fast.blocks] == [("a", 1), ("c", 5)]
    assert [wait.block for wait in slow.blocks[2].after] == ["b"] and fast.blocks[1].after[0].lag == 3


def test_waits_for_what_no_option_taken_contains_are_void() -> None:
    problem = wide(block("a", when={"how": "x"}), block("b", after=(Dependency("a"),)),
                   block("c", when={"how": "y"}), how=("x", "y"))
    assert problem.under({"how": "y"}).plain().blocks[0].after == ()


def test_some_choices_may_stay_open() -> None:
    problem = keep_or_recompute(3)
    first = next(iter(problem.choices))
    part = problem.under({first: "keep"})
    assert first not in part.choices and len(part.choices) == len(problem.choices) - 1
    whole = dict.fromkeys(problem.choices, "keep")
    assert part.under({choice: "keep" for choice in part.choices}).plain() == problem.under(whole).plain()


@pytest.mark.parametrize(("blocks", "choices", "message"), [
    ([block("a", when={"how": "x"})], {"how": ("x",)}, "'how' has 1 option, a choice is between at least two"),
    ([block("a", when={"how": "x"})], {"how": ("x", "y")}, "no block and no wait names the option 'y'"),
    ([block("a", when={"how": "z"})], {"how": ("x", "y")}, "the choice 'how' has no option 'z', it has 'x', 'y'"),
    ([block("a", when={"what": "z"})], {}, "there is no choice named 'what'"),
    ([block("a", when={"how": "x"}), block("a", when={"how": "x"}), block("b", when={"how": "y"})],
     {"how": ("x", "y")}, "'a' is used twice under options that do not exclude each other"),
    ([block("a", when={"how": "x"}), block("a")], {"how": ("x", "y")}, "no block and no wait names the option 'y'"),
    ([block("a", {"s": 1}), block("b", {"l": 2})], {}, "says nothing of class 'l'"),
    ([block("a", job="one"), block("b")], {}, "'b' belongs to no job"),
    ([block("a", job="one"), block("b", job="two", after=(Dependency("a"),))], {}, "counted per job"),
    ([block("a", after=(Dependency("b"),))], {}, "there is no block of that name"),
    ([block("a"), block("b", when={"how": "x"}, after=(Dependency("a", when={"how": "y"}),))],
     {"how": ("x", "y")}, "never holds where the block exists"),
    ([block("a", when={"how": "x"}, after=(Dependency("b"),)), block("b", after=(Dependency("a"),)),
      block("c", when={"how": "y"})], {"how": ("x", "y")}, "cycle: a -> b -> a"),
    ([block("a", when={"how": "x"}), block("b", when={"how": "y", "q": "1"}), block("c", when={"q": "2"})],
     {"how": ("x", "y"), "q": ("1", "2")}, ""),
])
def test_what_means_nothing_is_refused_in_a_sentence(blocks: list[Block], choices: dict[str, tuple[str, ...]],
                                                     message: str) -> None:
    if not message:
        wide(*blocks, **choices)
        return
    with pytest.raises(ProblemError, match=message.replace("(", r"\(")):
        wide(*blocks, **choices)


def test_what_has_nothing_open_is_plain() -> None:
    problem = wide(block("a"), block("b", job=None))
    assert problem.is_plain and [b.name for b in problem.plain().blocks] == ["a", "b"]
    assert not wide(block("a", {"s": 1, "l": 2})).is_plain


def test_what_is_not_plain_has_no_order() -> None:
    several = keep_or_recompute(0), wide(block("a", {"s": 1, "l": 2})), wide(block("a", job="x"), block("b", job="y"))
    for problem in several:
        for asked in (TickProblem.of, partial(time_orders, micro_batches=1, orders=[[]]),
                      partial(solve, micro_batches=2), partial(baseline, "gpipe", micro_batches=2)):
            with pytest.raises(ProblemError, match="has choices, jobs or classes, and only a plain problem has an"):
                asked(problem)
        assert violations(Schedule(problem, 1, [], 0.0)) == [
            "the problem has choices, jobs or classes, a schedule's operations are those of a plain one"]


def test_a_problem_goes_from_process_to_process_and_is_a_key() -> None:
    for problem in (keep_or_recompute(3, classes=True), keep_or_recompute(3, classes=True).under({"memory0": "keep"})):
        assert pickle.loads(pickle.dumps(problem)) == problem and hash(problem) == hash(replace(problem))
        assert {block: 1 for block in problem.blocks}

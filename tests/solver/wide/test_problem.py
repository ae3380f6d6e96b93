"""What a wide problem is under its options, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.wide_problems import keep_or_recompute
from weft.solver.problem import BlockKind, Device, ProblemError
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

GPU = Device("gpu")


def block(name: str, duration: Any = 1, **further: Any) -> WideBlock:
    return WideBlock(name, BlockKind.OTHER, (0,), duration, **further)


def wide(*blocks: WideBlock, **choices: tuple[str, ...]) -> WideProblem:
    return WideProblem("wide", (GPU,), blocks, choices=choices)


def test_under_an_assignment_it_is_the_plain_problem_of_the_options_taken() -> None:
    problem = wide(block("a"), block("b", when={"how": "slow"}, after=(WideDependency("a"),)),
                   block("c", 2, when={"how": "slow"}, after=(WideDependency("b"),)),
                   block("c", 5, when={"how": "fast"}, after=(WideDependency("a", 3),)), how=("slow", "fast"))
    slow, fast = problem.under({"how": "slow"}).plain(), problem.under({"how": "fast"}).plain()
    assert [(b.name, b.duration) for b in slow.blocks] == [("a", 1), ("b", 1), ("c", 2)]
    assert [(b.name, b.duration) for b in fast.blocks] == [("a", 1), ("c", 5)]
    assert [wait.block for wait in slow.blocks[2].after] == ["b"] and fast.blocks[1].after[0].lag == 3


def test_waits_for_what_no_option_taken_contains_are_void() -> None:
    problem = wide(block("a", when={"how": "x"}), block("b", after=(WideDependency("a"),)),
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
    ([block("a", job="one"), block("b", job="two", after=(WideDependency("a"),))], {}, "counted per job"),
    ([block("a", after=(WideDependency("b"),))], {}, "there is no block of that name"),
    ([block("a"), block("b", when={"how": "x"}, after=(WideDependency("a", when={"how": "y"}),))],
     {"how": ("x", "y")}, "never holds where the block exists"),
    ([block("a", when={"how": "x"}, after=(WideDependency("b"),)), block("b", after=(WideDependency("a"),)),
      block("c", when={"how": "y"})], {"how": ("x", "y")}, "cycle: a -> b -> a"),
    ([block("a", when={"how": "x"}), block("b", when={"how": "y", "q": "1"}), block("c", when={"q": "2"})],
     {"how": ("x", "y"), "q": ("1", "2")}, ""),
])
def test_what_means_nothing_is_refused_in_a_sentence(blocks: list[WideBlock], choices: dict[str, tuple[str, ...]],
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

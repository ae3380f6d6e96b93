"""Which assignments get a first look."""

from __future__ import annotations

from weft.solver.choices.looks import MOST_LOOKS, first_looks
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem


def with_choices(number: int) -> WideProblem:
    blocks = tuple(WideBlock(f"b{i}", BlockKind.OTHER, (0,), 1 + place, when={f"c{i}": option})
                   for i in range(number) for place, option in enumerate("xyz"))
    return WideProblem("w", (Device("gpu"),), blocks, choices={f"c{i}": ("x", "y", "z") for i in range(number)})


def test_all_of_few() -> None:
    assert len(list(first_looks(with_choices(2)))) == 9 <= MOST_LOOKS


def test_of_many_the_first_options_the_second_ones_and_so_on() -> None:
    assert [set(options.values()) for options in first_looks(with_choices(3))] == [{"x"}, {"y"}, {"z"}]

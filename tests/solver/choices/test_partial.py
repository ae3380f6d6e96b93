"""Nodes of open choices: what they prove, into what they are divided, and which leaves lie beside one."""

from __future__ import annotations

import pytest

from weft.solver.choices.partial import MOST_LOOKS, Partial, first_looks
from weft.solver.problem import Block, BlockKind, Device, Problem
from weft.solver.problem.rounds import Run

#: What a block takes, by choice and option.
LASTS = {"small": {"x": 1, "y": 2}, "large": {"x": 5, "y": 9, "z": 7}}


@pytest.fixture
def root() -> Partial:
    """Two micro-batches on one device, of two blocks that last as is chosen."""
    blocks = tuple(Block(f"{choice} {option}", BlockKind.OTHER, (0,), lasts, when={choice: option})
                   for choice, options in LASTS.items() for option, lasts in options.items())
    problem = Problem("w", (Device("gpu"),), blocks, choices={choice: tuple(of) for choice, of in LASTS.items()})
    return Partial(problem, Run.of(problem, 2), "makespan")


def test_a_bound_is_that_of_the_best_that_is_left(root: Partial) -> None:
    assert root.bound == pytest.approx(2 * (1 + 5))
    assert root.at({"large": "y"}).bound == pytest.approx(2 * (1 + 9))
    assert root.at({"large": "y"}).at({"small": "y"}).bound == pytest.approx(2 * (2 + 9))


def test_what_is_proven_above_holds_below(root: Partial) -> None:
    assert Partial(root.whole, root.run, "makespan", {"large": "x"}, least=100.0).at({"small": "y"}).bound == 100


def test_the_choice_that_makes_most_of_a_difference_is_divided_first(root: Partial) -> None:
    nodes = root.children()
    assert nodes is not None
    assert [node.options for node in nodes] == [{"large": option} for option in "xyz"]
    below = nodes[1].children()
    assert below is not None and [node.options for node in below] == [{"large": "y", "small": o} for o in "xy"]
    assert below[0].children() is None


def test_beside_a_leaf_are_those_with_one_other_option(root: Partial) -> None:
    found = root.beside(root.at({"small": "x", "large": "y"}))
    assert [node.options for node in found] == [
        {"small": "y", "large": "y"}, {"small": "x", "large": "x"}, {"small": "x", "large": "z"}]
    assert [node.bound for node in found] == pytest.approx([22, 12, 16])
    assert root.at({"large": "y"}).beside(root.at({"small": "x", "large": "y"}))[0].options == {
        "small": "y", "large": "y"}  # below the node only


def test_choices_with_the_same_options_swap_theirs() -> None:
    blocks = tuple(Block(f"{choice} {option}", BlockKind.OTHER, (0,), 1, when={choice: option})
                   for choice in ("one", "two", "three") for option in "xy")
    problem = Problem("w", (Device("gpu"),), blocks, choices=dict.fromkeys(("one", "two", "three"), ("x", "y")))
    root = Partial(problem, Run.of(problem, 2), "makespan")
    found = [dict(node.options) for node in root.beside(root.at({"one": "x", "two": "y", "three": "x"}))]
    assert len(found) == 3 + 2
    assert {"one": "y", "two": "x", "three": "x"} in found and {"one": "x", "two": "x", "three": "y"} in found


def test_any_leaf_takes_the_first_option_of_what_is_open(root: Partial) -> None:
    leaf = root.at({"small": "y"}).any_leaf()
    assert leaf.options == {"small": "y", "large": "x"}
    assert leaf.bound <= root.bound


def with_choices(number: int) -> Problem:
    blocks = tuple(Block(f"b{i}", BlockKind.OTHER, (0,), 1 + place, when={f"c{i}": option})
                   for i in range(number) for place, option in enumerate("xyz"))
    return Problem("w", (Device("gpu"),), blocks, choices={f"c{i}": ("x", "y", "z") for i in range(number)})


def test_all_of_few() -> None:
    assert len(list(first_looks(with_choices(2)))) == 9 <= MOST_LOOKS


def test_of_many_the_first_options_the_second_ones_and_so_on() -> None:
    assert [set(options.values()) for options in first_looks(with_choices(3))] == [{"x"}, {"y"}, {"z"}]

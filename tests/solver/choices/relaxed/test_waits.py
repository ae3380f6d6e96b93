"""Waits that every assignment implies, directly and through what comes and goes."""

from __future__ import annotations

from collections.abc import Mapping

from weft.solver.choices.relaxed.certain import ByClass, CertainFacts
from weft.solver.choices.relaxed.waits import Wait, direct_waits, implied_waits
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem, per_class

_DEVICES = tuple(Device(str(number)) for number in range(4))
_CHOICES = {"way": ("one", "other")}


def _block(name: str, duration: int | dict[str, int], *after: Dependency, **when: str) -> Block:
    return Block(name, BlockKind.OTHER, (0,), after=after, when=when, **per_class(duration=duration))


def _whole(waits: Mapping[Wait, ByClass]) -> dict[Wait, tuple[int, ...]]:
    return {wait: tuple(map(int, length)) for wait, length in waits.items()}


def _implied(*blocks: Block) -> dict[Wait, tuple[int, ...]]:
    facts = CertainFacts(Problem("waits", _DEVICES, blocks, choices=_CHOICES))
    return _whole(implied_waits(facts, facts.certain()))


def test_a_duration_goes_with_its_own_lag() -> None:
    found = _implied(_block("a", 5, way="one"), _block("a", 2, way="other"),
                     _block("c", 1, Dependency("a", 1, when={"way": "one"}),
                            Dependency("a", 3, when={"way": "other"})))
    assert found == {("a", "c", 0): (5,)}  # 5 + 1 and 2 + 3, not 2 + 1


def test_a_wait_that_one_option_lacks_is_none() -> None:
    assert not _implied(_block("a", 5), _block("c", 1, Dependency("a", when={"way": "one"})),
                        _block("d", 1, way="other"))


def test_a_path_through_what_comes_and_goes() -> None:
    found = _implied(_block("a", 2), _block("x", 3, Dependency("a", 1), way="one"),
                     _block("c", 1, Dependency("x", distance=1), way="one"),
                     _block("c", 1, Dependency("a", 2, distance=1), way="other"))
    assert found == {("a", "c", 1): (4,)}  # the least of 2 + 1 + 3 and 2 + 2


def test_different_paths_of_both_options() -> None:
    found = _implied(_block("a", 2), _block("x", 3, Dependency("a"), way="one"),
                     _block("y", 1, Dependency("a"), way="other"), _block("z", 1, Dependency("y"), way="other"),
                     _block("c", 1, Dependency("x"), Dependency("z")))
    assert found == {("a", "c", 0): (4,)}


def test_classes_of_other_micro_batches_count_with_the_least() -> None:
    lasts = {"short": 1, "long": 4}
    found = _implied(_block("a", lasts), _block("x", lasts, Dependency("a", distance=1), way="one"),
                     _block("c", 1, Dependency("x"), way="one"),
                     _block("c", 1, Dependency("a", 9, distance=1), way="other"))
    assert found == {("a", "c", 1): (2, 5)}  # x is of another micro-batch than a


def test_given_options_make_more_certain() -> None:
    facts = CertainFacts(Problem("waits", _DEVICES, (_block("a", 2), _block("x", 3, Dependency("a"), way="one"),
                                                  _block("y", 3, way="other")), choices=_CHOICES))
    names = facts.certain({"way": "one"})
    assert facts.certain() == {"a"} and names == {"a", "x"}
    assert _whole(direct_waits(facts, names, names, {"way": "one"})) == {("a", "x", 0): (2,)}

"""Waits that every assignment implies, directly and through what comes and goes."""

from __future__ import annotations

from collections.abc import Mapping

from weft.solver.choices.relaxed.certain import ByClass, CertainFacts
from weft.solver.choices.relaxed.waits import Wait, implied_waits
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

_DEVICES = tuple(Device(str(number)) for number in range(4))
_CHOICES = {"way": ("one", "other")}


def _block(name: str, duration: int | dict[str, int], *after: WideDependency, **when: str) -> WideBlock:
    return WideBlock(name, BlockKind.OTHER, (0,), duration, after=after, when=when)


def _whole(waits: Mapping[Wait, ByClass]) -> dict[Wait, tuple[int, ...]]:
    return {wait: tuple(map(int, length)) for wait, length in waits.items()}


def _implied(*blocks: WideBlock) -> dict[Wait, tuple[int, ...]]:
    facts = CertainFacts(WideProblem("waits", _DEVICES, blocks, choices=_CHOICES))
    return _whole(implied_waits(facts, facts.certain()))


def test_a_duration_goes_with_its_own_lag() -> None:
    found = _implied(_block("a", 5, way="one"), _block("a", 2, way="other"),
                     _block("c", 1, WideDependency("a", 1, when={"way": "one"}),
                            WideDependency("a", 3, when={"way": "other"})))
    assert found == {("a", "c", 0): (5,)}  # 5 + 1 and 2 + 3, not 2 + 1


def test_a_wait_that_one_option_lacks_is_none() -> None:
    assert not _implied(_block("a", 5), _block("c", 1, WideDependency("a", when={"way": "one"})),
                        _block("d", 1, way="other"))

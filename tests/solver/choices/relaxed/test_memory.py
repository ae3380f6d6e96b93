"""Amounts that are never more than any assignment's: the example where the least of each is not, and its kin."""

from __future__ import annotations

from collections.abc import Mapping

from weft.solver.choices.relaxed.certain import CertainFacts
from weft.solver.choices.relaxed.memory import relaxed_amounts
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def _block(name: str, memory: int, *after: str, **when: str) -> Block:
    return Block(name, BlockKind.OTHER, (0,), 1, (memory,), after=tuple(map(Dependency, after)), when=when)


def _amounts(*blocks: Block, kept: str = "AB", choices: Mapping[str, tuple[str, ...]] | None = None
             ) -> dict[str, tuple[int, int]] | None:
    problem = Problem("amounts", (Device("gpu", 10),), blocks, choices=choices or {"way": ("one", "other")})
    found = relaxed_amounts(CertainFacts(problem), {0}, set(kept), None, None)
    return None if found is None else {name: (int(held.take), int(held.give)) for name, held in found.items()}


def test_the_rest_that_is_given_back_later() -> None:
    first = (_block("A", 10, way="one"), _block("B", -10, "A", way="one"))
    # What C gives after B may count as given at B, sooner than it is; what it gives before B may not.
    late = (_block("A", 10, way="other"), _block("B", -2, "A", way="other"), _block("C", -8, "B", way="other"))
    assert _amounts(*first, *late) == {"A": (10, 0), "B": (0, 10)}
    early = (_block("A", 10, way="other"), _block("B", -2, "C", way="other"), _block("C", -8, "A", way="other"))
    assert _amounts(*first, *early) == {"A": (10, 8), "B": (0, 2)}


def test_keep_or_recompute_keeps_what_both_hold() -> None:
    found = _amounts(_block("A", 4, way="one"), _block("B", -4, "A", way="one"), _block("A", 1, way="other"),
                     _block("R", 3, "A", way="other"), _block("B", -4, "R", way="other"))
    assert found == {"A": (1, 0), "B": (3, 4)}  # B may count as taking what was taken before


def test_no_amounts_where_what_is_given_was_not_taken_before() -> None:
    assert _amounts(_block("A", 4, way="one"), _block("B", -4, way="one"), _block("A", 1, way="other"),
                    _block("B", -1, way="other")) is None


def test_a_block_that_is_not_kept_holds_nothing() -> None:
    blocks = (_block("A", 4, way="one"), _block("B", -4, "A", way="one"), _block("A", 2, way="other"),
              _block("B", -2, "A", way="other"))
    assert _amounts(*blocks) == {"A": (2, 0), "B": (0, 2)}
    assert _amounts(*blocks, kept="A") == {"A": (2, 2)}


def test_too_many_cases() -> None:
    choices = {f"way{number}": ("one", "other") for number in range(7)}
    blocks = [_block("A", 1 + sum(bit == "1" for bit in f"{case:07b}"),
                     **{f"way{at}": choices[f"way{at}"][int(bit)] for at, bit in enumerate(f"{case:07b}")})
              for case in range(128)]
    assert _amounts(*blocks, choices=choices) is None

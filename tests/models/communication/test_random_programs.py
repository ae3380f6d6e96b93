"""Random programs under random passes: what is legal keeps all values, and what is not is refused."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import strategies as st

from tests.support.communication import error, random_pass, random_program
from tests.support.examples import for_all
from weft.communication import CommunicationError, random_values


def changed(seed: int, passes: int = 10) -> Counter[str]:
    """What became of random passes, each held against the program as it was written."""
    draw, found = random.Random(seed), Counter[str]()
    program = random_program(draw)
    given, at = random_values(program, seed), program
    for _ in range(passes):
        try:
            at = random_pass(at, draw)
        except CommunicationError as refusal:
            assert "\n" not in str(refusal)
            found["refused"] += 1
            continue
        found["legal"] += 1
        assert error(program, at, given) < 1e-12, f"{program}\n{at}"
    return found


@for_all(st.integers(0, 2**32), tries=75)
def test_legal_passes_keep_the_values(seed: int) -> None:
    changed(seed)


def test_random_passes_are_legal_often_enough_to_tell() -> None:
    found = sum(map(changed, range(60)), Counter[str]())
    assert found["legal"] > 100 and found["refused"] > 100

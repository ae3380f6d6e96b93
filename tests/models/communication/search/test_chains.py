"""What blocks take at least and at most, against the best of all orders of a few."""

from __future__ import annotations

from itertools import permutations

from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.models.communication.search.chains import least, listed
from weft.solver.problem import Block, BlockKind, Dependency


@st.composite
def few_blocks(draw: st.DrawFn) -> list[Block]:
    found: list[Block] = []
    for i in range(draw.__call__(st.integers(1, 6))):
        waits = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else set()
        devices = draw(st.sampled_from([(0,), (1,), (0, 1)]))
        found.append(Block(f"b{i}", BlockKind.OTHER, devices, draw(st.integers(1, 9)),
                           after=tuple(Dependency(f"b{j}") for j in sorted(waits))))
    return found


def shortest(blocks: list[Block]) -> float:
    """Over all orders in which each begins as soon as its waits and devices let it."""
    best = float("inf")
    for order in permutations(blocks):
        ends: dict[str, float] = {}
        free = [0.0, 0.0]
        for block in order:
            if any(wait.block not in ends for wait in block.after):
                break
            start = max([*(ends[wait.block] for wait in block.after), *(free[device] for device in block.devices)])
            ends[block.name] = start + block.duration
            for device in block.devices:
                free[device] = ends[block.name]
        else:
            best = min(best, *[max(ends.values())])
    return best


@for_all(few_blocks(), tries=60)
def test_the_best_lies_between(blocks: list[Block]) -> None:
    assert least(blocks) <= shortest(blocks) <= listed(blocks)

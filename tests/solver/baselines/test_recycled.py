"""3F1B on p uniform stages that run without gradients first: valid anywhere, and as long as its rule says."""

from __future__ import annotations

import pytest

from weft.solver import Block, BlockKind, Dependency, Device, NotApplicable, Problem, baseline, violations


def recycled(p: int, passes: int, *, forward: float = 1, backward: float = 2, split: bool = False,
             memory: int | None = None) -> Problem:
    """Pass after pass through p devices; the last has gradients."""
    count, blocks = p * (passes + 1), []
    for s in range(count):
        kept = (1,) if s >= p * passes else (0,)
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s % p,), forward, kept,
                            after=(Dependency(f"F{s - 1}"),) if s else ()))
    for s in reversed(range(p * passes, count)):
        before = Dependency(f"B{s + 1}" if s + 1 < count else f"F{s}")
        kind = BlockKind.INPUT_GRAD if split else BlockKind.BACKWARD
        blocks.append(Block(f"B{s}", kind, (s % p,), backward / 2 if split else backward, (0 if split else -1,),
                            after=(before,)))
        if split:
            blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, (s % p,), backward / 2, (-1,),
                                after=(Dependency(f"B{s}"),)))
    return Problem("recycled", tuple(Device(str(d), memory) for d in range(p)), tuple(blocks))


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("passes", [2, 3])
@pytest.mark.parametrize("split", [False, True])
def test_devices_are_idle_for_their_ramps_alone(p: int, passes: int, *, split: bool) -> None:
    problem, m = recycled(p, passes, split=split), 8 * p
    found = baseline("3f1b", problem, m)
    work = (passes + 3) * m
    assert found.makespan <= work + (p - 1) * 3  # as 1F1B's, of one forward and one backward for each device
    assert not violations(found, capacities=False)
    greatest = max(found.peak_memory)
    assert greatest <= 3 * p  # micro-batches between their last forward and their backward
    assert max(found.peak_memory) < m


def test_it_fits_where_it_can() -> None:
    problem = recycled(4, 2, memory=5)
    assert not violations(baseline("3f1b", problem, 16))


def test_what_is_no_such_pipeline_is_refused() -> None:
    both = Problem("both", (Device("0"), Device("1")), (
        Block("a", BlockKind.FORWARD, (0,), 1), Block("b", BlockKind.FORWARD, (1,), 1),
        Block("c", BlockKind.FORWARD, (1,), 1, after=(Dependency("a"),)),
        Block("d", BlockKind.BACKWARD, (1,), 1, after=(Dependency("c"),))))
    with pytest.raises(NotApplicable, match="does not wait for"):
        baseline("3f1b", both, 4)

"""The number of samples that stages of a DAG keep at once, each with its own micro-batch size.

The rule of GraphPipe's static scheduler (Jeon et al., ASPLOS 2025, section 5; its table is a picture in every copy we
know, so this is a reconstruction, which agrees with the stage files that its authors' runtime ships). A stage of
micro-batches of b samples must have sent a successor the samples that one holds, and beside these the larger of both
stages' b:

    f(x) = max over successors y of  f(y) + max(b(x), b(y)),       f(x) = b(x) without successors

rounded up to whole micro-batches of x: a stage of 4 samples before one of 1 that keeps 2 must run a second forward
before its first backward, or both wait for each other. (The files we know have no such case.)

With one micro-batch size and 1F1B that is the size times the stage's *depth*, the number of stages on the longest way
from it to the end: the memory depends on the position of a stage in the graph, not on the number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.solver.placement.problem import PlacementError


def in_flight_samples(after: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[int, ...]:
    """Per stage the most samples it keeps at once. ``after[x]``: the stages that directly follow stage x; ``sizes``:
    samples of each stage's micro-batches.

    Raises :class:`~weft.solver.placement.problem.PlacementError` if stages follow each other in a cycle.
    """
    found: dict[int, int] = {}
    for stage in _from_the_end(after):
        own = sizes[stage]
        held = max((found[y] + max(own, sizes[y]) for y in after[stage]), default=own)
        found[stage] = -(-held // own) * own
    return tuple(found[stage] for stage in range(len(after)))


def depths(after: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Per stage the number of stages on the longest way from it to the end, itself included."""
    return in_flight_samples(after, [1] * len(after))


def _from_the_end(after: Sequence[Sequence[int]]) -> list[int]:
    """Stages, each after all that follow it."""
    before: list[list[int]] = [[] for _ in after]
    waits = [len(set(following)) for following in after]
    for stage, following in enumerate(after):
        for other in set(following):
            before[other].append(stage)
    ready = [stage for stage, count in enumerate(waits) if not count]
    for stage in ready:
        for other in before[stage]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    if len(ready) < len(after):
        left = min(math.inf if stage in ready else stage for stage in range(len(after)))
        raise PlacementError(f"stage {left} is on a circle of stages that follow each other; a graph of stages has "
                             "none")
    return ready

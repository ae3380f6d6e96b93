"""How many samples stages of a DAG hold at once, each with its own micro-batch size.

The rule of GraphPipe's static scheduler (Jeon et al., ASPLOS 2025, section 5; its table is a picture in every copy we
know, so this is a reconstruction, which agrees with the stage files that its authors' runtime ships). A stage that
runs k forwards of b samples each before it runs k backwards (kFkB) must have sent a successor the samples that one
holds, and the larger of both stages' turns beside:

    f(x) = max over successors y of  f(y) + max(k(x) b(x), k(y) b(y)),       f(x) = k(x) b(x) without successors

rounded up to whole micro-batches of x: a stage of 4 samples before one of 1 that holds 2 must run a second forward
before its first backward, or both wait for each other. (The files we know have no such case.)

With one micro-batch size and 1F1B that is the size times the stage's *depth*, the number of stages on the longest way
from it to the end: what is held depends on where a stage stands in the graph, not on how many stages there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.solver.placement.problem import PlacementError

__all__ = ["Turn", "depths", "in_flight_samples", "least_micro_batches"]


@dataclass(frozen=True, slots=True)
class Turn:
    """``forwards`` forwards of ``micro_batch`` samples each, then as many backwards, in turns (kFkB)."""

    micro_batch: int
    forwards: int = 1

    def __post_init__(self) -> None:
        if self.micro_batch < 1 or self.forwards < 1:
            raise PlacementError(f"a turn of {self.forwards} forwards of {self.micro_batch} samples: both must be "
                                 "1 or more")

    @property
    def samples(self) -> int:
        """Samples in one turn."""
        return self.micro_batch * self.forwards


def in_flight_samples(after: Sequence[Sequence[int]], turns: Sequence[Turn]) -> tuple[int, ...]:
    """Per stage the most samples it holds at once. ``after[x]``: the stages that directly follow stage x.

    Raises :class:`~weft.solver.placement.problem.PlacementError` where stages follow each other in a circle.
    """
    found: dict[int, int] = {}
    for stage in _from_the_end(after):
        here, whole = turns[stage].samples, turns[stage].micro_batch
        held = max((found[y] + max(here, turns[y].samples) for y in after[stage]), default=here)
        found[stage] = -(-held // whole) * whole
    return tuple(found[stage] for stage in range(len(after)))


def depths(after: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Per stage the number of stages on the longest way from it to the end, itself included."""
    return in_flight_samples(after, [Turn(1)] * len(after))


def least_micro_batches(after: Sequence[Sequence[int]], sizes: Sequence[int], seconds: Callable[[int, int], float],
                        fits: Callable[[int, int, int], bool]) -> tuple[float, tuple[int, ...]] | None:
    """The micro-batch size of every stage (of ``sizes``, each a divisor of the next) that makes the slowest stage as
    fast as it can be a sample, and the seconds a sample of that stage; ``None`` where no choice fits.

    ``seconds(x, b)``: of stage x for one sample in micro-batches of b. ``fits(x, b, f)``: whether stage x has room for
    f samples in flight in micro-batches of b; less of either must fit too. Exact for these stages with 1F1B: under a
    limit on the time, the smallest size that keeps to it gives every stage the fewest samples in flight, since the
    rule above never falls as sizes rise to multiples; so a limit can be kept if that choice fits, and the least such
    limit is one of the times themselves.
    """
    count = len(after)
    times = [[seconds(x, b) for b in sizes] for x in range(count)]
    limits = sorted({time for row in times for time in row if time >= max(map(min, times))})

    def choice(limit: float) -> tuple[int, ...] | None:
        chosen = tuple(next(b for b, time in zip(sizes, row, strict=True) if time <= limit) for row in times)
        held = in_flight_samples(after, [Turn(b) for b in chosen])
        return chosen if all(fits(x, b, f) for x, (b, f) in enumerate(zip(chosen, held, strict=True))) else None

    low, high = 0, len(limits)
    while low < high:  # a larger limit never asks for larger sizes
        middle = (low + high) // 2
        low, high = (low, middle) if choice(limits[middle]) is not None else (middle + 1, high)
    if low == len(limits):
        return None
    chosen = choice(limits[low])
    assert chosen is not None
    return limits[low], chosen


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

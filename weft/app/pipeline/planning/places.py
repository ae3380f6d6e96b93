"""Exact cuts of a row of operators: minimise the largest stage load, then the bytes between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Seconds that a byte between two stages costs each of them, if links are not measured.
SECONDS_A_BYTE = 1e-9
#: Factor by which loads may exceed the minimal largest load to reduce bytes between stages.
SLACK = 1.05

Numbers = npt.NDArray[np.float64]


class Room(NamedTuple):
    """The memory limit of a stage: ``needed`` bytes by operator, and ``bytes`` available."""

    needed: Sequence[float]
    bytes: float


def cut_places(seconds: Sequence[float], sizes: Sequence[float | None], count: int, first: int = 1, *,
               seconds_a_byte: float = SECONDS_A_BYTE, slack: float = SLACK, shares: Sequence[float] | None = None,
               rooms: Sequence[Room] | None = None) -> list[int] | None:
    """The places of the cuts into ``count`` stages; ``None`` if there are too few places or nothing fits.

    ``seconds``: time of each operator. ``sizes``: bytes of activations at a cut before each operator (``None``: no cut
    is possible there). No cut is before operator ``first``. The load of a stage is the time of its operators plus that
    of the bytes at both borders in both directions at ``seconds_a_byte``, divided by the stage's entry of ``shares`` if
    given. ``rooms``: memory limits of the stages. Exact, by dynamic programming over all places: first for the minimal
    largest load, then for the fewest bytes among cuts whose largest load is at most ``slack`` times the minimum.
    """
    ends = [0, *(place for place in range(max(1, first), len(seconds)) if sizes[place] is not None), len(seconds)]
    if len(ends) - 1 < count:
        return None
    before = np.concatenate(([0.0], np.cumsum(np.asarray(seconds, dtype=float))))
    sent = np.array([0.0, *(float(sizes[place] or 0) for place in ends[1:-1]), 0.0])
    until, border = before[ends], 2 * seconds_a_byte * sent
    needed = [np.concatenate(([0.0], np.cumsum(np.asarray(room.needed, dtype=float))))[ends] for room in rooms or ()]

    def loads(stage: int, j: int) -> Numbers:
        """Loads of the stages that end at ``ends[j]``, by their begin."""
        found: Numbers = until[j] - until[:j] + border[:j] + border[j]
        if shares is not None:
            found = found / shares[stage]
        if rooms is not None:
            found = np.where(needed[stage][j] - needed[stage][:j] <= rooms[stage].bytes, found, np.inf)
        return found

    least, _ = _least(len(ends), count, loads, np.maximum)
    if not np.isfinite(least):
        return None

    def bytes_within(stage: int, j: int) -> Numbers:
        found: Numbers = np.where(loads(stage, j) <= slack * least, sent[j], np.inf)
        return found

    _, chosen = _least(len(ends), count, bytes_within, np.add)
    return [ends[i] for i in chosen]


def _least(count: int, stages: int, costs: Callable[[int, int], Numbers],
           joined: Callable[[Numbers, Numbers], Numbers]) -> tuple[float, list[int]]:
    """The least joined cost of a path of ``stages`` steps from 0 to ``count - 1``, and its inner points."""
    best = np.full(count, np.inf)
    best[0] = 0.0
    back: list[list[int]] = []
    for stage in range(stages):
        following, came = np.full(count, np.inf), [0] * count
        for j in range(1 if stage < stages - 1 else count - 1, count):
            total = joined(best[:j], costs(stage, j))
            came[j] = int(np.argmin(total))
            following[j] = total[came[j]]
        best = following
        back.append(came)
    point, points = count - 1, list[int]()
    for came in reversed(back[1:]):
        point = came[point]
        points.append(point)
    return float(best[-1]), points[::-1]

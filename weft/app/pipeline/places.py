"""Where to cut a row of operators: the least largest load of a stage, then the fewest bytes between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["cut_places"]

#: What one byte between two stages costs each of them, in seconds.
SECONDS_A_BYTE = 1e-9
#: Stages may be this much above the least largest load where fewer bytes pass between them so.
SLACK = 1.05

Numbers = npt.NDArray[np.float64]


def cut_places(seconds: Sequence[float], sizes: Sequence[float | None], count: int, first: int = 1) -> list[int] | None:
    """The places of the cuts into ``count`` stages; ``None`` if there are too few.

    ``seconds``: of each operator. ``sizes``: at each place the bytes that pass there, one way (``None``: no cut may be
    there). No cut is before ``first``. The load of a stage is the time of its operators and of the bytes on both its
    borders, both ways. The answer is exact: by dynamic programming over all places, first for the largest load, then,
    among all whose largest load is at most :data:`SLACK` times that, for the sum of bytes.
    """
    ends = [0, *(place for place in range(max(1, first), len(seconds)) if sizes[place] is not None), len(seconds)]
    if len(ends) - 1 < count:
        return None
    before = np.concatenate(([0.0], np.cumsum(np.asarray(seconds, dtype=float))))
    sent = np.array([0.0, *(float(sizes[place] or 0) for place in ends[1:-1]), 0.0])
    until, border = before[ends], 2 * SECONDS_A_BYTE * sent

    def loads(j: int) -> Numbers:
        """Of the stages that end at ``ends[j]``, by where they begin."""
        found: Numbers = until[j] - until[:j] + border[:j] + border[j]
        return found

    least, _ = _least(len(ends), count, loads, np.maximum)

    def bytes_within(j: int) -> Numbers:
        found: Numbers = np.where(loads(j) <= SLACK * least, sent[j], np.inf)
        return found

    _, chosen = _least(len(ends), count, bytes_within, np.add)
    return [ends[i] for i in chosen]


def _least(count: int, stages: int, costs: Callable[[int], Numbers],
           joined: Callable[[Numbers, Numbers], Numbers]) -> tuple[float, list[int]]:
    """The least joined cost of ``stages`` steps from 0 to ``count - 1``, and the points between."""
    best = np.full(count, np.inf)
    best[0] = 0.0
    back: list[list[int]] = []
    for _ in range(stages):
        following, came = np.full(count, np.inf), [0] * count
        for j in range(1, count):
            total = joined(best[:j], costs(j))
            came[j] = int(np.argmin(total))
            following[j] = total[came[j]]
        best = following
        back.append(came)
    point, points = count - 1, list[int]()
    for came in reversed(back[1:]):
        point = came[point]
        points.append(point)
    return float(best[-1]), points[::-1]

"""Points of a trade-off that no other point beats, for tables and pictures alike."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["non_dominated"]


def non_dominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of ``(memory, throughput)`` no other point beats, by rising memory.

    A point beats another if it has no more memory and no less throughput, and is better in one of the two; equal
    points do not beat each other.
    """
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1] or points[i] == points[front[-1]]:
            front.append(i)
    return front

"""Paths made of fewer, longer pieces, for the levels' program, whose cost grows with the lengths of a graph's paths.

A heuristic: it may lose every optimum. Interchangeable paths stay so.
"""

from __future__ import annotations

from weft.solver.placement.groups import Groups, contract
from weft.solver.placement.paths import Paths

__all__ = ["shorten_paths"]


def shorten_paths(groups: Groups, pieces: int) -> Groups:
    """Every path (:mod:`weft.solver.placement.paths`) made of at most ``pieces`` groups of about equal
    work, those next to each other joined."""
    label = list(range(groups.count))
    for path in Paths.of(groups, twins=False).paths:
        total, passed = sum(float(groups.least[g]) for g in path), 0.0
        first: dict[int, int] = {}
        for group in path:
            middle = passed + float(groups.least[group]) / 2
            label[group] = first.setdefault(min(pieces - 1, int(pieces * middle / total)) if total else 0, group)
            passed += float(groups.least[group])
    return contract(groups, label)

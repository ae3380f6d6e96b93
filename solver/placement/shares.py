"""A search in several steps, each with its share of what is left of one budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.solver.cpsat.solve import Budget

__all__ = ["part_of"]


@contextmanager
def part_of(whole: Budget, share: float) -> Iterator[Budget]:
    """A budget of ``share`` of what is left of ``whole``: of deterministic time if that is limited, else of the
    clock's. What it uses counts in the whole, and a Ctrl-C that comes while it is used ends the whole too."""
    limited = whole.deterministic is not None
    part = Budget(seconds=whole.left if limited else whole.left * share, seed=whole.seed, workers=whole.workers,
                  deterministic=whole.deterministic_left * share if limited else None)
    try:
        yield part
    finally:
        whole.deterministic_used += part.deterministic_used
        whole.interrupted |= part.interrupted

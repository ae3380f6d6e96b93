"""How a search may be run: what the public functions take as keywords, in one piece for everything they call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.cpsat import Budget

__all__ = ["SearchOptions"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``time_limit``: seconds on the clock. ``effort``: CP-SAT's deterministic time (about seconds) for all its runs
    together, so that a ``seed`` with one worker repeats a run exactly; ``None``: only the clock counts. ``workers``:
    CP-SAT's threads.
    """

    time_limit: float = 60.0
    effort: float | None = None
    seed: int = 0
    workers: int = 1

    def budget(self) -> Budget:
        """The budget of a search that begins now."""
        from solver.cpsat import Budget

        return Budget(seconds=self.time_limit, deterministic=self.effort, seed=self.seed, workers=self.workers)

"""How a search went: its best makespan and its proven bound over time."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MOST_ENTRIES", "History"]

#: A history longer than this loses every second entry: it goes into every result, and a curve needs no more.
MOST_ENTRIES = 256


@dataclass
class History:
    """Improvements of the best makespan or its bound. ``entries`` are ``[elapsed seconds, makespan, bound]``, in order.

    Best and bound never get worse along it. An entry that was dropped to keep it short makes it say of a moment less
    than was known then, never more.
    """

    entries: list[list[float]] = field(default_factory=list)

    def record(self, elapsed: float, makespan: float, bound: float) -> None:
        """Add the state after ``elapsed`` seconds, if it is better than the last."""
        if self.entries:
            _, best, proven = self.entries[-1]
            makespan = min(best, makespan)
            bound = min(max(proven, bound), makespan)
            if (makespan, bound) == (best, proven):
                return
        self.entries.append([round(elapsed, 3), makespan, min(bound, makespan)])
        if len(self.entries) > MOST_ENTRIES:
            self.entries = [*self.entries[:-1:2], self.entries[-1]]

    def to_json(self) -> list[list[float]]:
        """A copy that later records do not change."""
        return [list(entry) for entry in self.entries]

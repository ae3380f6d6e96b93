"""How often each technique of a search was used, its results and its time.

The history of a search: its best makespan and its proven bound over time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter


@dataclass
class Count:
    """One technique: ``calls`` are the periods a refuter tried, or the runs of an improver; ``proofs`` raised the
    bound, ``improvements`` shortened the best; ``seconds`` is wall time."""

    calls: int = 0
    proofs: int = 0
    improvements: int = 0
    seconds: float = 0.0


@dataclass
class Counts:
    """A :class:`Count` for each technique by name, in the order in which they came up."""

    by_name: dict[str, Count] = field(default_factory=dict)

    def of(self, name: str) -> Count:
        """The count of technique ``name``, new at the first call."""
        return self.by_name.setdefault(name, Count())

    @contextmanager
    def timed(self, name: str) -> Iterator[Count]:
        """The time inside counts as the technique's."""
        count, began = self.of(name), perf_counter()
        try:
            yield count
        finally:
            count.seconds += perf_counter() - began

    def add(self, other: Counts) -> None:
        """Add the counts of another search."""
        for name, more in other.by_name.items():
            count = self.of(name)
            count.calls += more.calls
            count.proofs += more.proofs
            count.improvements += more.improvements
            count.seconds += more.seconds

    def to_json(self) -> dict[str, dict[str, float]]:
        """By name, like the field ``techniques`` of a schedule's ``solver`` (docs/FORMATS.md)."""
        return {name: {"calls": count.calls, "proofs": count.proofs, "improvements": count.improvements,
                       "seconds": round(count.seconds, 3)} for name, count in self.by_name.items()}


#: A longer history loses every second entry: it is part of every result, and this is enough for a curve.
MOST_ENTRIES = 256


@dataclass
class History:
    """Improvements of the best makespan or its bound. ``entries`` are ``[elapsed seconds, makespan, bound]``, in order.

    Best and bound never get worse along it. Entries dropped to keep it short can make it understate, never overstate,
    the state at a moment.
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

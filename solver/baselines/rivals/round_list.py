"""List scheduling of a run of several jobs, or of unequal micro-batches: each with its own times and amounts.

A round is one micro-batch of the plain problem (:class:`~weft.solver.problem.rounds.Rounds`), so the rules of list
scheduling for micro-batches are applied to the run's own here: at most so many of *them* are in flight, and a block's
urgency is that of its place within *them*. With keys, a micro-batch's key is the work of the busiest device in those
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.priority_rule import fits_in_order, schedule_by_priority
from weft.solver.baselines.rivals.greedy import list_schedule, urgencies, widths
from weft.solver.control.clock import checkpoint
from weft.solver.problem.rounds import Rounds

#: Intervals between micro-batches' keys, in times of the busiest device's work in them; the number tried of those that
#: fit.
_STRETCHES = (0.5, 0.8, 1.0, 1.15, 1.5, 2.0, 3.0, 6.0, 14.0, 30.0)
_TRIED = 4


class RoundList:
    """The list schedules of ``rounds``."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.problem = rounds.problem
        self.amounts = Amounts.of(self.problem)

    def best(self, most: int | None = None) -> tuple[float, list[Row]] | None:
        """The makespan and the per-device orders of the shortest that fits; ``None`` if none does. ``most``: only the
        first so many are tried."""
        found: tuple[float, list[Row]] | None = None
        for number, made in enumerate(self.schedules()):
            if most is not None and number >= most and found is not None:
                break
            if made is not None and (found is None or made[0] < found[0]):
                found = made
        return found

    def schedules(self) -> Iterator[tuple[float, list[Row]] | None]:
        """All schedules tried; ``None`` for each that memory leaves stuck."""
        longest = max(map(len, self.rounds.run.classes.values()))
        few = sorted({*widths(longest), min(longest, len(self.problem.devices))}, reverse=True)
        for width in few:
            for urgency in self.urgencies:
                checkpoint()
                yield list_schedule(self.problem, self.rounds.run.rounds, width, urgency, self.amounts, self.parts)
        yield from self._by_keys()

    @cached_property
    def parts(self) -> list[int]:
        """For each block, the number of the micro-batch of the round that it is of, unique among all."""
        numbers: dict[tuple[str | None, int], int] = {}
        return [numbers.setdefault((self.rounds.origin.blocks[i].job, c), len(numbers))
                for i, c in self.rounds.places]

    @cached_property
    def urgencies(self) -> list[list[int]]:
        """The blocks by urgency within their micro-batch, in several ways; ties go to the earlier micro-batch."""
        alone = Rounds(self.rounds.origin, type(self.rounds.run)(
            {job: row[:1] for job, row in self.rounds.run.classes.items()}, 1)).problem
        found = []
        for urgency in urgencies(alone, Amounts.of(alone)):
            rank = {i: place for place, i in enumerate(urgency)}  # numbered alone as in the origin
            found.append(sorted(range(len(self.rounds.places)),
                                key=lambda block: (rank[self.rounds.places[block][0]], self.rounds.places[block][1])))
        return found

    def _by_keys(self) -> Iterator[tuple[float, list[Row]] | None]:
        count, tried = self.rounds.run.rounds, 0
        for stretch in _STRETCHES:
            offsets, interval = self._keys(stretch)
            if tried >= _TRIED or not fits_in_order(self.problem, count, offsets, interval, self.amounts):
                continue
            tried += 1
            for lead in (interval / max(len(set(self.parts)), 1), float("inf")):
                checkpoint()
                yield schedule_by_priority(self.problem, count, offsets, interval, lead, self.amounts)

    def _keys(self, stretch: float) -> tuple[list[float], float]:
        """The offset of every block, and the interval of rounds."""
        offsets = [0.0] * len(self.problem.blocks)
        interval = stretch * max(begins[-1] for begins in self._begins.values())
        for block in self.problem.topological_order:
            i, c = self.rounds.places[block]
            begins = self._begins[self.rounds.origin.blocks[i].job]
            scale = interval / begins[-1]  # all jobs' rounds are of one length
            within = max((offsets[j] - self._begun(j, interval) + self.problem.blocks[j].duration + lag
                          for j, lag in self._within[block]), default=0.0)
            offsets[block] = begins[c] * scale + within
        return offsets, interval

    def _begun(self, block: int, interval: float) -> float:
        i, c = self.rounds.places[block]
        begins = self._begins[self.rounds.origin.blocks[i].job]
        return begins[c] * interval / begins[-1]

    @cached_property
    def _within(self) -> list[list[tuple[int, float]]]:
        """Per block, the blocks it waits for in its own micro-batch."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.problem.blocks]
        for producer, consumer, wait in self.problem.dependencies():
            if wait.distance == 0 and self.parts[producer] == self.parts[consumer]:
                found[consumer].append((producer, float(wait.lag)))
        return found

    @cached_property
    def _begins(self) -> dict[str | None, list[float]]:
        """Per job, the work of the busiest device in the micro-batches of a round before each, and last in all."""
        found: dict[str | None, list[float]] = {}
        for job in self.rounds.run.classes:
            begins = [0.0]
            for name in self.rounds.run.per_round(job):
                work = [0.0] * len(self.problem.devices)
                for block in self.rounds.origin.blocks:
                    if block.job == job:
                        for device in block.devices:
                            work[device] += block.of_class(name).duration
                begins.append(begins[-1] + max(work))
            found[job] = begins
        return found

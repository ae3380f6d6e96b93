"""Sequences of classes with some open places: the nodes of the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, factorial, prod
from typing import TypeAlias

from weft.solver.problem import Problem
from weft.solver.problem.rounds import Run

#: The class of every micro-batch, for each job (``None`` if there are none, and if all are equal).
Sequence: TypeAlias = Mapping[str | None, tuple[str | None, ...]]
#: Up to this number of ways to divide micro-batches among classes, each gets its own root, where its load is known.
_MOST_COUNTS = 500


@dataclass(frozen=True)
class JobPart:
    """The part of one job: ``fixed`` has a class for each micro-batch, -1 if that is open; ``left`` the number of each
    class that may be put in the open places, in all at least as many as these."""

    names: tuple[str | None, ...]
    fixed: tuple[int, ...]
    left: tuple[int, ...]

    @cached_property
    def open(self) -> int:
        """The number of open places."""
        return self.fixed.count(-1)

    @cached_property
    def possible(self) -> tuple[int, ...]:
        """The classes that may be put in open places."""
        return tuple(c for c, count in enumerate(self.left) if count) if self.open else ()

    @cached_property
    def following(self) -> int:
        """The place to be decided next: the first and the last open one by turns, as both ends of a step count most."""
        first = self.fixed.index(-1)
        last = len(self.fixed) - 1 - self.fixed[::-1].index(-1)
        return first if first <= len(self.fixed) - 1 - last else last

    def placed(self, c: int) -> JobPart:
        """With class ``c`` in the following place."""
        place = self.following
        return replace(self, fixed=(*self.fixed[:place], c, *self.fixed[place + 1:]),
                       left=(*self.left[:c], self.left[c] - 1, *self.left[c + 1:]))

    def holding(self, row: tuple[str | None, ...]) -> JobPart:
        """With the classes of ``row`` in all places."""
        return replace(self, fixed=tuple(map(self.names.index, row)), left=(0,) * len(self.names))

    @cached_property
    def only(self) -> tuple[str | None, ...]:
        """The one sequence left, if at most one class may be put in open places."""
        rest = self.possible[0] if self.possible else -1
        return tuple(self.names[rest if c < 0 else c] for c in self.fixed)


@dataclass(frozen=True)
class Sequences:
    """Sequences with some open places, by job."""

    jobs: Mapping[str | None, JobPart]

    @property
    def is_one(self) -> bool:
        """Whether one sequence is left."""
        return all(len(part.possible) <= 1 for part in self.jobs.values())

    @property
    def only(self) -> Sequence:
        """That sequence."""
        return {job: part.only for job, part in self.jobs.items()}

    def children(self) -> Iterator[Sequences]:
        """One for each class that may stand in the next place: of the job with most places open."""
        job, part = max(((job, part) for job, part in self.jobs.items() if len(part.possible) > 1),
                        key=lambda entry: entry[1].open)
        for c in part.possible:
            yield Sequences({**self.jobs, job: part.placed(c)})

    def allows(self, sequence: Sequence) -> bool:
        """Whether ``sequence`` is one of those left open."""
        return self.jobs.keys() == sequence.keys() and all(_allows(part, sequence[job])
                                                           for job, part in self.jobs.items())

    @property
    def count(self) -> int:
        """The number of sequences left if as many of each class are as there are open places."""
        return prod(factorial(part.open) // prod(map(factorial, part.left)) for part in self.jobs.values() if part.open)


def _allows(part: JobPart, row: tuple[str | None, ...]) -> bool:
    if len(row) != len(part.fixed) or not {*row} <= {*part.names}:
        return False
    rest: Counter[int] = Counter()
    for c, name in zip(part.fixed, row, strict=True):
        if c < 0:
            rest[part.names.index(name)] += 1
        elif part.names[c] != name:
            return False
    return all(rest[c] <= count for c, count in enumerate(part.left))


def given_sequences(run: Run) -> Sequences:
    """All orders of the micro-batches of ``run``."""
    jobs = {}
    for job, row in run.classes.items():
        counts = Counter(row)
        jobs[job] = JobPart(tuple(counts), (-1,) * len(row), tuple(counts.values()))
    return Sequences(jobs)


def any_sequences(problem: Problem, counts: Mapping[str | None, int]) -> list[Sequences]:
    """All sequences of the given numbers of micro-batches of each job of any classes: a partial one for each way to
    divide them among the classes, or one for all if there are too many ways."""
    names: dict[str | None, tuple[str | None, ...]] = {job: problem.classes_of(job) or (None,) for job in counts}
    ways = prod(comb(count + len(names[job]) - 1, count) for job, count in counts.items())
    if ways > _MOST_COUNTS:
        return [Sequences({job: JobPart(names[job], (-1,) * count, (count,) * len(names[job]))
                           for job, count in counts.items()})]
    divided = []
    for job, count in counts.items():
        divided.append([JobPart(names[job], (-1,) * count, tuple(map(taken.count, range(len(names[job])))))
                        for taken in combinations_with_replacement(range(len(names[job])), count)])
    return [Sequences(dict(zip(counts, parts, strict=True))) for parts in product(*divided)]

"""The number of micro-batches of each job, the class of each, and the rounds in which they repeat.

Jobs and classes as a plain problem: one micro-batch of it is a round of the run.

A round holds p micro-batches of a job; copy c of a block runs micro-batches c, p + c, 2 p + c, ... of its job, with
what its class costs. A wait of distance h links copy (c - h) mod p to copy c, (h - c) / p rounded up to whole rounds
earlier. The copies of a block run in turn, as its micro-batches do: each waits for the one before, the first one for
the last of the round before. So the schedules of the plain problem are those of the run, with the same times, memory
and makespan: no bound is lost and none is gained. One job of one class has one copy, and is the plain problem itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import TypeAlias

from weft.solver.problem import Block, Dependency, Problem, ProblemError

#: Micro-batches of one job: how many, or the class of each.
Counted: TypeAlias = int | Sequence[str]


@dataclass(frozen=True)
class Run:
    """The micro-batches of every job (``None`` where there are no jobs): the class of each, ``None`` where all are
    alike; and ``rounds``, how often a round of them repeats. A round holds the same classes in the same order of each
    job every time, and is all of the run where nothing repeats.
    """

    classes: Mapping[str | None, tuple[str | None, ...]]
    rounds: int

    @classmethod
    def of(cls, problem: Problem, micro_batches: Counted | Mapping[str, Counted],
           ratio: Mapping[str, int] | None = None) -> Run:
        """The run of ``problem`` with ``micro_batches``: a number, the class of each, or one of these for each job.
        ``ratio`` says how many micro-batches of each job a round holds; without it rounds are as short as can be.

        Raises :class:`~weft.solver.problem.ProblemError` for jobs and classes that there are not or that are left out,
        and for numbers that are no multiple of the ratio.
        """
        listed = _by_job(problem, micro_batches)
        classes = {job: _classes(problem, job, counted) for job, counted in listed.items()}
        return cls(classes, _rounds(classes) if ratio is None else _rounds_at(problem, classes, ratio))

    @classmethod
    def of_any_class(cls, problem: Problem, numbers: Counted | Mapping[str, Counted],
                     ratio: Mapping[str, int] | None = None) -> Run:
        """The run with so many micro-batches (of each job), all of the first class, where they may be of any. Raises
        :class:`~weft.solver.problem.ProblemError` as :meth:`of` does, and for anything but numbers."""
        first: dict[str | None, Counted] = {}
        for job, count in _by_job(problem, numbers).items():
            if not isinstance(count, int):
                raise ProblemError("micro_batches lists classes, but each may be of any: give how many there are")
            first[job] = [names[0]] * count if count > 0 and (names := problem.classes_of(job)) else count
        return cls.of(problem, first.get(None, first), ratio)  # type: ignore[arg-type]

    def per_round(self, job: str | None) -> tuple[str | None, ...]:
        """The classes of the micro-batches of ``job`` in a round."""
        row = self.classes[job]
        return row[:len(row) // self.rounds]

    def within(self, problem: Problem) -> Run:
        """The run of ``problem``, which is the run's own problem with some options taken: without the jobs and classes
        that are gone with the other options."""
        rows = {job: self.classes[job] for job in problem.jobs or (None,)}
        classes = {job: row if problem.classes_of(job) else (None,) * len(row) for job, row in rows.items()}
        return self if classes == self.classes else replace(self, classes=classes)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of all jobs together."""
        return sum(map(len, self.classes.values()))

    def to_json(self) -> int | list[str] | dict[str, int | list[str]]:
        """The entry ``micro_batches`` of a ``weft.schedule/1`` file."""
        found = {job: [str(name) for name in row] if any(row) else len(row) for job, row in self.classes.items()}
        if set(found) == {None}:
            return found[None]
        return {str(job): value for job, value in found.items()}


def _by_job(problem: Problem, micro_batches: Counted | Mapping[str, Counted]) -> Mapping[str | None, Counted]:
    if not isinstance(micro_batches, Mapping):
        # The same number of each job; classes are one job's.
        if len(problem.jobs) > 1 and not isinstance(micro_batches, int):
            raise ProblemError("micro_batches lists classes, and there are the jobs "
                               + ", ".join(map(repr, problem.jobs)) + ": say whose micro-batches they are")
        return dict.fromkeys(problem.jobs or (None,), micro_batches)
    for job in micro_batches:
        if job not in problem.jobs:
            raise ProblemError(f"micro_batches: the job {job!r} has no block"
                               + (", there are the jobs " + ", ".join(map(repr, problem.jobs)) if problem.jobs else ""))
    for job in problem.jobs:
        if job not in micro_batches:
            raise ProblemError(f"micro_batches says nothing of the job {job!r}")
    return {job: micro_batches[job] for job in problem.jobs}


def _classes(problem: Problem, job: str | None, counted: Counted) -> tuple[str | None, ...]:
    whose = "" if job is None else f" of job {job!r}"
    names = problem.classes_of(job)
    if isinstance(counted, int):
        if counted < 1:
            raise ProblemError(f"micro_batches{whose} is {counted}, it must be at least 1")
        if len(names) > 1:
            raise ProblemError(f"micro_batches{whose} is {counted}, but they are of the classes "
                               + ", ".join(map(repr, names)) + ": list the class of each")
        return tuple([names[0] if names else None] * counted)
    if isinstance(counted, str) or not counted:
        raise ProblemError(f"micro_batches{whose} must be a number or a list of classes")
    for name in counted:
        if name not in names:
            raise ProblemError(f"micro_batches{whose}: there is no class {name!r}"
                               + (", there are " + ", ".join(map(repr, names)) if names else ": all are alike"))
    return tuple(counted)


def _rounds(classes: Mapping[str | None, tuple[str | None, ...]]) -> int:
    """The most rounds in which all jobs' classes repeat."""
    most = gcd(*map(len, classes.values()))
    return next(rounds for rounds in range(most, 0, -1)
                if most % rounds == 0 and all(_repeats(row, rounds) for row in classes.values()))


def _repeats(row: tuple[str | None, ...], rounds: int) -> bool:
    return row == row[:len(row) // rounds] * rounds


def _rounds_at(problem: Problem, classes: Mapping[str | None, tuple[str | None, ...]], ratio: Mapping[str, int]
               ) -> int:
    if set(ratio) != set(problem.jobs):
        raise ProblemError("the ratio is of the jobs " + ", ".join(map(repr, ratio)) + ", and there are "
                           + (", ".join(map(repr, problem.jobs)) or "none"))
    found = set()
    for job, share in ratio.items():
        count = len(classes[job])
        if share < 1 or count % share:
            raise ProblemError(f"the ratio has {share} of job {job!r} in a round, of which {count} micro-batches run: "
                               f"{count} is no multiple of {share}")
        found.add(count // share)
    if len(found) > 1:
        raise ProblemError("the ratio " + ":".join(str(ratio[job]) for job in problem.jobs)
                           + " is not that of the micro-batches, " + ":".join(str(len(classes[job]))
                                                                             for job in problem.jobs))
    rounds = found.pop()
    if not all(_repeats(row, rounds) for row in classes.values()):
        raise ProblemError("the classes do not repeat from round to round: give a longer round")
    return rounds


@dataclass(frozen=True)
class Rounds:
    """``origin``, a problem without open choices, in the rounds of ``run``, without jobs and classes of which the
    options taken have left nothing."""

    origin: Problem
    run: Run

    def __post_init__(self) -> None:
        if self.origin.choices:
            raise ProblemError(f"the choice {next(iter(self.origin.choices))!r} is open")
        for block in self.origin.blocks:
            self._check_transfers(block)
        object.__setattr__(self, "run", self.run.within(self.origin))

    @cached_property
    def problem(self) -> Problem:
        """The plain problem: its micro-batches are rounds. Raises :class:`~weft.solver.problem.ProblemError` for a
        circle of waits."""
        single = all(len(self.run.per_round(block.job)) == 1 for block in self.origin.blocks)
        return replace(self.origin, blocks=tuple(self._copy(*place) for place in self.places),
                       model=self.origin.model if single else None)

    @property
    def is_plain(self) -> bool:
        """Whether :attr:`problem` is the problem of one job and one class itself, and a round is a micro-batch."""
        return self.origin.is_plain and all(len(row) == self.run.rounds for row in self.run.classes.values())

    @property
    def counted(self) -> str:
        """What the micro-batches of :attr:`problem` are called: rounds, unless a round is one micro-batch."""
        sizes = {job: len(self.run.per_round(job)) for job in self.run.classes}
        if sizes == {None: 1}:
            return "micro-batches"
        return "rounds of " + " and ".join(f"{size} micro-batch{'es' if size > 1 else ''}"
                                           + ("" if job is None else f" of {job}") for job, size in sizes.items())

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Per plain block, the index of its origin's block and which copy of that it is. All of copy 0 come first; with
        links all copies of a block come together, as transfers of one producer run in the order of their consumers."""
        widths = [len(self.run.per_round(block.job)) for block in self.origin.blocks]
        if self.origin.links:
            return tuple((i, c) for i, width in enumerate(widths) for c in range(width))
        return tuple((i, c) for c in range(max(widths)) for i, width in enumerate(widths) if c < width)

    @cached_property
    def index(self) -> Mapping[tuple[int, int], int]:
        """The plain block that is a copy of the origin's."""
        return {place: number for number, place in enumerate(self.places)}

    def apart(self, block: int, round_: int) -> tuple[int, int]:
        """The origin's block, and the micro-batch of its job, that the plain ``block`` runs in ``round_``."""
        i, c = self.places[block]
        return i, round_ * self._width(i) + c

    def joined(self, block: int, micro_batch: int) -> tuple[int, int]:
        """The plain block and the round that the origin's ``block`` runs ``micro_batch`` of its job in."""
        width = self._width(block)
        return self.index[block, micro_batch % width], micro_batch // width

    def _check_transfers(self, block: Block) -> None:
        """Several transfers from one producer to one consumer would run in another order for each copy."""
        waits = [(wait.block, wait.link) for wait in block.after if wait.link is not None]
        if len(set(waits)) < len(waits) and len(self.run.per_round(block.job)) > 1:
            twice = next(wait for wait in waits if waits.count(wait) > 1)
            raise ProblemError(f"block {block.name!r} waits twice for {twice[0]!r} over the link {twice[1]!r}: where "
                               "micro-batches differ, or a round has several of a job, it may do so once")

    def _width(self, block: int) -> int:
        return len(self.run.per_round(self.origin.blocks[block].job))

    def _name(self, block: Block, copy: int) -> str:
        return block.name if len(self.run.per_round(block.job)) == 1 else f"{block.name}{self._mark}{copy}"

    @cached_property
    def _mark(self) -> str:
        """What stands between a name and its copy's number: such that no two names are alike."""
        mark = "*"
        while any(mark in block.name for block in self.origin.blocks):
            mark += "*"
        return mark

    def _copy(self, i: int, c: int) -> Block:
        block = self.origin.blocks[i]
        classes = self.run.per_round(block.job)
        width = len(classes)
        waits = []
        for wait in block.after:
            source = (c - wait.distance) % width
            waits.append(replace(wait.of_class(classes[source]),
                                 block=self._name(self.origin.blocks[self.origin.index[wait.block]], source),
                                 distance=-((c - wait.distance) // width)))
        if width > 1:
            waits.append(Dependency(self._name(block, (c - 1) % width), distance=int(c == 0)))
        return replace(block.of_class(classes[c]), name=self._name(block, c), after=tuple(waits))

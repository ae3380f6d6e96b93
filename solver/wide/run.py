"""How many micro-batches of each job run, and of which class each is; and what repeats in that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TypeAlias

from weft.solver.problem import ProblemError
from weft.solver.wide.problem import WideProblem

__all__ = ["Counted", "Run"]

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
    def of(cls, problem: WideProblem, micro_batches: Counted | Mapping[str, Counted],
           ratio: Mapping[str, int] | None = None) -> Run:
        """The run of ``problem`` with ``micro_batches``: a number, the class of each, or one of these for each job.
        ``ratio`` says how many micro-batches of each job a round holds; without it rounds are as short as can be.

        Raises :class:`~weft.solver.problem.ProblemError` for jobs and classes that there are not or that are left out,
        and for numbers that are no multiple of the ratio.
        """
        listed = _by_job(problem, micro_batches)
        classes = {job: _classes(problem, job, counted) for job, counted in listed.items()}
        return cls(classes, _rounds(classes) if ratio is None else _rounds_at(problem, classes, ratio))

    def per_round(self, job: str | None) -> tuple[str | None, ...]:
        """The classes of the micro-batches of ``job`` in a round."""
        row = self.classes[job]
        return row[:len(row) // self.rounds]

    def within(self, problem: WideProblem) -> Run:
        """The run of ``problem``, which is the run's own one where some options are taken: without the jobs and the
        classes of which these have left nothing."""
        rows = {job: self.classes[job] for job in problem.jobs or (None,)}
        classes = {job: row if problem.classes_of(job) else (None,) * len(row) for job, row in rows.items()}
        return self if classes == self.classes else replace(self, classes=classes)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of all jobs together."""
        return sum(map(len, self.classes.values()))

    def to_json(self) -> int | list[str] | dict[str, int | list[str]]:
        """As ``micro_batches`` stands in a ``weft.schedule/1`` file."""
        found = {job: [str(name) for name in row] if any(row) else len(row) for job, row in self.classes.items()}
        if set(found) == {None}:
            return found[None]
        return {str(job): value for job, value in found.items()}


def _by_job(problem: WideProblem, micro_batches: Counted | Mapping[str, Counted]) -> Mapping[str | None, Counted]:
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


def _classes(problem: WideProblem, job: str | None, counted: Counted) -> tuple[str | None, ...]:
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


def _rounds_at(problem: WideProblem, classes: Mapping[str | None, tuple[str | None, ...]], ratio: Mapping[str, int]
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

"""Shorter sequences by small changes: an order of operations is timed anew where two micro-batches change places.

An order of operations says who runs before whom, whatever classes are; so the orders of the best schedule so far are
timed with the classes of another sequence, and beside them a list schedule is made for it. A change that makes the
schedule shorter is kept.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from weft.solver.baselines import NotApplicable
from weft.solver.baselines.lib.round_list import RoundList
from weft.solver.baselines.on_rounds import baseline_on_rounds
from weft.solver.choices.sequences.node import SequenceNode, rounds_of, swapped
from weft.solver.choices.sequences.partial import Partial
from weft.solver.choices.sequences.partial import Sequence as ClassSequence
from weft.solver.control.clock import checkpoint
from weft.solver.judge.validate import violations
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.timing import DeadlockError, Orders, time_orders
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds

__all__ = ["Found", "cycles", "improved", "listed", "retimed"]

#: List schedules that are made of each sequence that is tried.
_LISTS = 4


@dataclass(frozen=True)
class Found:
    """A sequence with a schedule that fits, and who runs before whom in it: (wide block, micro-batch) per device."""

    sequence: ClassSequence
    schedule: Schedule
    rows: Orders

    @classmethod
    def of(cls, sequence: ClassSequence, schedule: Schedule, rounds: Rounds) -> Found:
        """The order is that of ``schedule``, of the problem of ``rounds``."""
        return cls(sequence, schedule, [[rounds.apart(block, m) for block, m in row] for row in schedule.orders])


def listed(rounds: Rounds, most: int | None = None) -> Schedule | None:
    """The shortest list schedule of ``rounds`` that fits, of the first ``most`` that do."""
    made = RoundList(rounds).best(most)
    return None if made is None else _judged(rounds, made[1])


def cycles(rounds: Rounds) -> Schedule | None:
    """DynaPipe's cycles of ``rounds``, if they are for such blocks and fit."""
    try:
        made = baseline_on_rounds("dynapipe", rounds)
    except NotApplicable:
        return None
    return None if violations(made, limit=1) else made


def retimed(rounds: Rounds, rows: Orders) -> Schedule | None:
    """The order ``rows`` with the times of ``rounds``; ``None`` where it does not fit."""
    return _judged(rounds, [[rounds.joined(block, m) for block, m in row] for row in rows])


def _judged(rounds: Rounds, orders: Orders) -> Schedule | None:
    try:
        made = Schedule(rounds.problem, rounds.run.rounds, time_orders(rounds.problem, rounds.run.rounds, orders), 0.0,
                        solver={"name": "weft"})
    except DeadlockError:
        return None
    return None if violations(made, limit=1) else made


def improved(root: SequenceNode, best: Found, roots: list[Partial], tries: int, seed: int) -> Iterator[Found | None]:
    """One entry for each change tried: what is shorter than all before, or ``None``. A sequence whose bound says that
    it is no shorter is left out. Ends after ``tries`` in a row that were none, or when all changes of a sequence were
    tried."""
    chance = random.Random(seed)
    seen = {tuple(best.sequence.values())}
    idle = 0
    while idle < tries:
        changes = [entry for entry in _changes(best.sequence, roots) if tuple(entry.values()) not in seen]
        chance.shuffle(changes)
        better = False
        for sequence in changes:
            checkpoint()
            seen.add(tuple(sequence.values()))
            hopeful = root.at(sequence).bound < best.schedule.makespan * (1 - RELATIVE_TOLERANCE)
            found = _tried(root.of.wide, sequence, best) if hopeful else None
            idle += 1
            if found is not None:
                best, idle, better = found, 0, True
            yield found
            if better or idle >= tries:
                break
        if not better:
            return


def _tried(wide: WideProblem, sequence: ClassSequence, best: Found) -> Found | None:
    rounds = rounds_of(wide, sequence)
    made = [schedule for schedule in (retimed(rounds, best.rows), listed(rounds, _LISTS)) if schedule is not None]
    shortest = min(made, key=lambda schedule: schedule.makespan, default=None)
    if shortest is None or shortest.makespan >= best.schedule.makespan * (1 - RELATIVE_TOLERANCE):
        return None
    return Found.of(sequence, shortest, rounds)


def _changes(sequence: ClassSequence, roots: list[Partial]) -> Iterator[ClassSequence]:
    """Two micro-batches in each other's place, one moved to another place; and, where the counts are open, one of
    another class."""
    for job, row in sequence.items():
        names = [name for part in [roots[0].jobs[job]] for name in part.names]
        for i in range(len(row)):
            for j in range(i + 1, len(row)):
                if row[i] != row[j]:
                    yield {**sequence, job: swapped(row, i, j)}
                    moved = (*row[:i], *row[i + 1:j + 1], row[i], *row[j + 1:])
                    yield {**sequence, job: moved}
            for name in names if len(roots) > 1 else ():
                if name != row[i]:
                    yield {**sequence, job: (*row[:i], name, *row[i + 1:])}

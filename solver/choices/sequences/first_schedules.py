"""First schedules of a sequence: list schedules and cycles."""

from __future__ import annotations

from dataclasses import dataclass

from weft.solver.baselines import NotApplicable
from weft.solver.baselines.on_rounds import baseline_on_rounds
from weft.solver.baselines.rivals.round_list import RoundList
from weft.solver.choices.carried import scheduled
from weft.solver.choices.sequences.partial import Sequence as ClassSequence
from weft.solver.judge.validate import violations
from weft.solver.schedule import Schedule
from weft.solver.wide.rounds import Rounds

__all__ = ["Found", "cycles", "listed"]


@dataclass(frozen=True)
class Found:
    """A sequence with a schedule that fits."""

    sequence: ClassSequence
    schedule: Schedule


def listed(rounds: Rounds, most: int | None = None) -> Schedule | None:
    """The shortest list schedule of ``rounds`` that fits, of the first ``most`` that do."""
    made = RoundList(rounds).best(most)
    return None if made is None else scheduled(rounds, made[1])


def cycles(rounds: Rounds) -> Schedule | None:
    """DynaPipe's cycles of ``rounds``, if they are for such blocks and fit."""
    try:
        made = baseline_on_rounds("dynapipe", rounds)
    except NotApplicable:
        return None
    return None if violations(made, limit=1) else made

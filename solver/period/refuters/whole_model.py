"""Periods refuted by the model of all blocks at once (:mod:`weft.solver.period.modulo_model`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import Doubling, Once
from weft.solver.period.decide import REFUTED, decide
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic
from weft.solver.period.technique import Refuter, Task

__all__ = ["WholeModel"]


class WholeModel(Refuter):
    """Refutes a period by CP-SAT. A schedule that the model finds instead is offered to the bracket.

    ``once``: only the least open period is asked.
    """

    name: ClassVar[str] = "whole-model"

    def __init__(self, bracket: Bracket, task: Task, *, once: bool = False) -> None:
        self.bracket, self.task, self.once = bracket, task, once

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None where the model has too many blocks to climb with."""
        return cls(bracket, task) if len(bracket.instance.durations) <= PARAMETERS.most_blocks else None

    def steps(self) -> Doubling | Once:
        """By doubling steps."""
        return Once() if self.once else Doubling(PARAMETERS.models_closest)

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """Those of which CP-SAT proves it, twice (:mod:`weft.solver.cpsat.confirm`)."""
        refuted = []
        for period in periods:
            outcome = decide(self.bracket.instance, period, time, self.bracket.best, parts=False,
                             distances=self.task.distances)
            if outcome is REFUTED:
                refuted.append(period)
            elif isinstance(outcome, Periodic):
                self.bracket.offer(outcome, self.name)
        return refuted

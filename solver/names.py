"""The names of a schedule's operations: those of the blocks and micro-batches that its user wrote.

A schedule of rounds (:mod:`weft.solver.problem.rounds`) runs copies of blocks; messages name the blocks that these are
copies of, their jobs' micro-batches, and the classes of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import Operation, Schedule


class Names:
    """The names in ``schedule``."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rounds = schedule.rounds or Rounds(schedule.problem, Run(
            dict.fromkeys(schedule.problem.jobs or (None,), (None,) * schedule.micro_batches), schedule.micro_batches))

    def block(self, block: int) -> str:
        """The name of the block with that index."""
        return self.rounds.origin.blocks[self.origin(block)].name

    def origin(self, block: int) -> int:
        """The index of the block that it is a copy of: copies differ only in their micro-batches."""
        return self.rounds.places[block][0]

    def micro_batch(self, operation: Operation) -> int:
        """The number of the operation's micro-batch, among those of its job."""
        return self.rounds.apart(operation.block, operation.micro_batch)[1]

    def job(self, block: int) -> str | None:
        """The job of the block, if there is more than one."""
        return None if len(self.jobs) < 2 else self.rounds.origin.blocks[self.origin(block)].job

    def class_of(self, block: int) -> str | None:
        """The class of the micro-batches that the block runs, if there is more than one."""
        if len(self.rounds.origin.classes) < 2:
            return None
        of, copy = self.rounds.places[block]
        return self.rounds.run.per_round(self.rounds.origin.blocks[of].job)[copy]

    def operation(self, operation: Operation) -> str:
        """``F0 of micro-batch 3``, with its job if there are several."""
        job = self.job(operation.block)
        return (f"{self.block(operation.block)} of micro-batch {self.micro_batch(operation)}"
                + ("" if job is None else f" of {job}"))

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs, in the order in which they are named."""
        return self.rounds.origin.jobs

    @cached_property
    def classes(self) -> Mapping[str | None, tuple[str | None, ...]]:
        """Per job (``None`` if there are none), the class of each micro-batch, if there is more than one."""
        if len(self.rounds.origin.classes) < 2:
            return {}
        return {job: row for job, row in self.rounds.run.classes.items() if any(row)}

    @property
    def period(self) -> str:
        """The unit whose time is a period: ``micro-batch``, or a round with its contents."""
        run = self.rounds.run
        if run.micro_batches == run.rounds:
            return "micro-batch"
        return f"round of {self._each({job: len(run.per_round(job)) for job in run.classes})}"

    def _each(self, counts: Mapping[str | None, int]) -> str:
        if len(counts) < 2:
            return _counted(sum(counts.values()))
        (first, count), *others = counts.items()
        parts = [f"{_counted(count)} of {first}", *(f"{number} of {job}" for job, number in others)]
        return ", ".join(parts[:-1]) + " and " + parts[-1]


def _counted(number: int) -> str:
    return f"{number} micro-batch{'es' * (number != 1)}"

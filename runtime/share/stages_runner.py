"""A job of stages among others: a pipeline, of which every pass waits for its turn.

Between two batches all ranks say whether the job is well. A rank with a fault goes on to the end of the batch with what
is empty: it computes nothing, and hands on zeros in place of results. So all messages of the batch come, whatever
carries them, and no rank waits for one in vain; nothing of such a batch is counted, and no optimizer steps.

No rank waits in a circle. The lists of all jobs, the turns among them, are parts of one global order, that of the ends
in the plan (:mod:`weft.runtime.plan.lowering`): a SEND and its RECV stand at the end of what they carry. So whatever an
instruction waits for, a turn, a message, or a RECV on another rank that a SEND has to meet, comes before it there.

Gradients of tied parameters are summed behind the last pass of the batch, not between passes: ranks wait for each other
there, and what other jobs have in the plan before the next batch does not wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from weft.runtime.execute.executor import Executor, Parcel, Task
from weft.runtime.interface.training import Training
from weft.runtime.plan.program import Reduce, StageWork, Work
from weft.runtime.ranks.health import require_finite
from weft.runtime.ranks.session import Session
from weft.runtime.share.job_plans import JobPlan
from weft.runtime.share.job_runner import InTurn, JobRunner, RunOptions
from weft.runtime.share.turns import JobOver, Turns
from weft.runtime.train.worker import Stages

__all__ = ["StagesRunner"]


class StagesRunner(JobRunner):
    """See :class:`~weft.runtime.share.job_runner.JobRunner`."""

    def __init__(self, job: JobPlan, session: Session, training: Training, turns: Turns,
                 held: Mapping[str, Sequence[int]], options: RunOptions) -> None:
        if training.after_backward is not None:
            training = replace(training, after_backward=self._safe(training.after_backward))
        super().__init__(job, session, training, turns, held, options)
        self.reduces: list[Reduce] = []
        gradients = self.trainer.gradients
        self.executor = Executor(gradients.plan, session, _Guarded(self.trainer.worker, self),
                                 reduce=self.reduces.append)

    def threads(self) -> Sequence[threading.Thread]:
        return (threading.Thread(target=self._compute, daemon=True, name=f"weft stages of {self.job.name}"),)

    def close(self) -> None:
        self.executor.close()
        self.trainer.worker.close()

    def guard(self, work: Callable[[], None]) -> None:
        """Do ``work``; what it raises is a fault of the job on this rank, and its turns are over here."""
        if self.fault is not None:
            return
        try:
            work()
        except ConnectionError:
            raise
        except JobOver:
            self.fail("its turns were taken from it")
        except Exception as error:
            self.fail(error)
            self.turns.end(self.job.name, self.devices)

    def _compute(self) -> None:
        try:
            for step in range(self.first, self.training.steps):
                self.step = step
                if not self._batch():
                    break
        except BaseException as error:
            self.broken = error
            self.fail(error)
        finally:
            self.turns.end(self.job.name, self.devices)
            self.ended_at = self.session.now()
            self.session.watch.rest()

    def _batch(self) -> bool:
        """Run one batch; False where the job is over."""
        self.trainer.begin(self.step)
        self.reduces.clear()
        self.executor.run(together=False)
        self.guard(lambda: require_finite(self.trainer.worker.losses, self.step))
        if not self.all_well(f"the end of batch {self.step}", self.session.members):
            return False
        loss = self.trainer.worker.loss()
        for instruction in self.reduces:
            self.trainer.gradients.start(instruction)
        self.guard(self._finish)
        if self.fault is None:  # a batch that no optimizer stepped after is not made
            self.add(loss)
        if not self.may_save(self.fault is None, self.step, self.session.members):
            return False
        if self.fault is None:  # where this rank has one, all know before the next batch counts
            self.save(self.step)
        return True

    def _finish(self) -> None:
        self.trainer.end(self.session, self.training, self.step)

    def _safe(self, call: Callable[[int], None]) -> Callable[[int], None]:
        """``call``, whose faults leave this rank in what all do together after it."""
        def safe(step: int) -> None:
            self.guard(lambda: call(step))
        return safe


class _Guarded(InTurn):
    """Passes in their turn; once this rank has a fault, what is empty."""

    runner: StagesRunner

    def __init__(self, worker: Stages, runner: StagesRunner) -> None:
        super().__init__(worker, runner)

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        made, guard = self.worker.prepare(work), self.runner.guard
        return None if made is None else lambda results: guard(lambda: made(results))

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        made, runner = self.worker.message(what, target), self.runner
        empty = {name: torch.zeros([length or 0 for length in shape], dtype=dtype, device=runner.session.device)
                 for name, (shape, dtype) in self.worker.layout(what, target).items()}

        def message(result: Parcel) -> Parcel:
            found = dict(empty)
            runner.guard(lambda: found.update(made(result)))
            return found

        return message

    def task(self, work: Work) -> Task:
        run, runner = super().task(work), self.runner
        assert isinstance(work, StageWork)
        several = len(self.worker.graph.stages[work.stage].ranks) > 1

        def task(results: Mapping[Work, Parcel]) -> Parcel:
            found: dict[str, torch.Tensor] = {}
            runner.guard(lambda: found.update(run(results)))
            if several and runner.fault is not None:  # the others may wait in a collective of the stage itself
                runner.session.watch.give_up(f"job {runner.job.name}: {runner.fault[1]}, in a stage on several ranks")
            return found

        return task

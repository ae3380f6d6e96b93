"""The runners of a job on shared ranks: a pipeline whose passes wait for their turns, and a data parallel job.

*Stages.* Between two batches all ranks exchange whether the job has failed. A rank with an error continues to the end
of the batch without computing, and sends zeros in place of results. So all messages of the batch arrive, over any
transport; such a batch does not count, and no optimizer steps.

There is no deadlock: the lists of all jobs and the turns are parts of one global order, that of the ends in the plan
(:mod:`weft.runtime.plan.lowering`), where a SEND and its RECV have the end of the work whose result they carry.
Everything that an instruction waits for (a turn, a message, the matching RECV of a SEND) comes earlier in that order.

Gradients of tied parameters are summed after the last pass of the batch, not between passes: ranks wait for each other
there, without delaying other jobs' work that the plan has before the next batch.

*Data parallel.* One thread computes and one sums, each in its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from weft.runtime.execute.executor import Executor, Parcel, Task
from weft.runtime.interface.training import Training
from weft.runtime.plan.program import ProgramError, Reduce, StageWork, Work
from weft.runtime.ranks.health import require_finite
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.share.job_runner import JobRunner, RunOptions, WorkerInTurn
from weft.runtime.share.stages_plan import JobPlan
from weft.runtime.share.turns import JobOver, Turns
from weft.runtime.train.worker import StageWorker


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
        return (threading.Thread(target=self.compute, daemon=True, name=f"weft stages of {self.job.name}"),)

    def guard(self, work: Callable[[], None]) -> None:
        """Run ``work`` unless the job has failed here; an error of it ends the job's turns on this rank."""
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
            self.turns.end(self.job.name, self.computing)

    def batch(self) -> bool:
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
        if self.fault is None:  # a batch without an optimizer step does not count
            self.add(loss)
        if not self.may_save(self.fault is None, self.step, self.session.members):
            return False
        if self.fault is None:  # otherwise all ranks learn of the error before the next batch counts
            self.save(self.step)
        return True

    def _finish(self) -> None:
        self.trainer.end(self.session, self.training, self.step)

    def _safe(self, call: Callable[[int], None]) -> Callable[[int], None]:
        """``call``, with errors recorded, so that this rank reaches the following collectives."""
        def safe(step: int) -> None:
            self.guard(lambda: call(step))
        return safe


class _Guarded(WorkerInTurn):
    """Passes in their turns; without computation once this rank has an error."""

    runner: StagesRunner

    def __init__(self, worker: StageWorker, runner: StagesRunner) -> None:
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
            if several and runner.fault is not None:  # other ranks may wait in a collective of the stage
                runner.session.watch.give_up(f"job {runner.job.name}: {runner.fault[1]}, in a stage on several ranks")
            return found

        return task


class DataParallelRunner(JobRunner):
    """See :class:`~weft.runtime.share.job_runner.JobRunner`. Before each sum all ranks exchange whether the job has
    failed."""

    def __init__(self, job: JobPlan, session: Session, training: Training, turns: Turns,
                 held: Mapping[str, Sequence[int]], options: RunOptions) -> None:
        super().__init__(job, session, training, turns, held, options)
        gradients = self.trainer.gradients
        try:
            self.reduces = job.reduces(gradients.plan)
        except ProgramError as error:
            raise SessionError(str(error)) from None
        self.executor = Executor(gradients.plan, session, WorkerInTurn(self.trainer.worker, self))
        self.computing = sorted({device for name, _ in job.blocks.values() for device in held[name]})
        self._done: set[tuple[str, int]] = set()
        self._over = False

    def threads(self) -> Sequence[threading.Thread]:
        return tuple(threading.Thread(target=target, daemon=True, name=f"weft {what} of {self.job.name}")
                     for what, target in (("computation", self.compute), ("sums", self._sum)))

    def done(self, name: str, number: int) -> None:
        """Record that the block ``name`` on ``number`` of this run is complete, and wake its waiters."""
        with self._changed:
            self._done.add((name, number))
            self._changed.notify_all()

    def batch(self) -> bool:
        self.trainer.begin(self.step)
        self.executor.run(together=False)
        self._await([(entry.name, self.step - self.first) for entry in self.job.sums])
        loss = self.trainer.worker.loss()
        self._finish()
        self.add(loss)
        self.save(self.step)
        return True

    def give_up(self, error: BaseException) -> None:
        """Record the error, which is reported to the other ranks before the next sum; a lost connection ends this
        process."""
        if isinstance(error, ConnectionError):
            self.broken = error
        self.fail(error)
        self.turns.end(self.job.name, self.computing)

    def _finish(self) -> None:
        """End the batch. If it is to be saved and a rank fails, the job ends on all ranks, so that none is left waiting
        before a sum or in the collective of saving."""
        error: Exception | None = None
        try:
            self.trainer.end(self.session, self.training, self.step)
        except ConnectionError:
            raise
        except Exception as found:
            error = found
        well = self.may_save(error is None, self.step, self.session.counterparts())
        if not well:
            self._end()
        if error is not None:
            raise error
        if not well:
            raise JobOver(self.job.name)

    def _sum(self) -> None:
        lanes: set[int] = {device for entry in self.job.sums for device in self.held[entry.name]}
        try:
            for number in range(self.training.steps - self.first):
                for entry in self.job.sums:
                    self._await([(need, number) for need in entry.needs], or_fault=True)
                    self.turns.take((self.job.name, entry.name, number), self.held[entry.name])
                    begun, waits = self.session.now(), False
                    try:
                        if not self.all_well(f"{entry.name} in step {self.first + number}",
                                             self.session.counterparts()):
                            raise JobOver(self.job.name)
                        for instruction in self.reduces[entry.name]:
                            self._reduce(instruction)
                        waits = True
                    finally:
                        self.end(entry.name, number, begun, waits=waits)
                    self.done(entry.name, number)
        except JobOver:
            self._end()
            self.turns.end(self.job.name, self.computing)
        except BaseException as error:
            self.broken = error
            self._end()
        finally:
            self.turns.end(self.job.name, lanes)
            self.session.watch.rest()

    def _reduce(self, instruction: Reduce) -> None:
        self.trainer.gradients.start(instruction)
        self.trainer.gradients.finish()

    def _await(self, keys: Sequence[tuple[str, int]], *, or_fault: bool = False) -> None:
        """Wait until all of ``keys`` are complete, or with ``or_fault`` until this rank has an error. Raises
        :class:`~weft.runtime.share.turns.JobOver` once the job is over on all ranks."""
        self.session.watch.rest()
        with self._changed:
            while True:
                if self._over:  # checked before an error of this rank, as no rank reaches the next sum then
                    raise JobOver(self.job.name)
                if all(key in self._done for key in keys) or (or_fault and self.fault is not None):
                    return
                self._changed.wait()

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

"""A data parallel job among others: a thread that computes and a thread that sums, each in its turn."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from weft.runtime.execute.executor import Executor
from weft.runtime.interface.training import Training
from weft.runtime.plan.program import ProgramError, Reduce
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.share.job_plans import JobPlan
from weft.runtime.share.job_runner import InTurn, JobRunner, RunOptions
from weft.runtime.share.turns import JobOver, Turns

__all__ = ["DataParallelRunner"]


class DataParallelRunner(JobRunner):
    """See :class:`~weft.runtime.share.job_runner.JobRunner`. Before each sum all ranks say whether the job is well."""

    def __init__(self, job: JobPlan, session: Session, training: Training, turns: Turns,
                 held: Mapping[str, Sequence[int]], options: RunOptions) -> None:
        super().__init__(job, session, training, turns, held, options)
        gradients = self.trainer.gradients
        try:
            self.reduces = job.reduces(gradients.plan)
        except ProgramError as error:
            raise SessionError(str(error)) from None
        self.executor = Executor(gradients.plan, session, InTurn(self.trainer.worker, self))
        self.computing = sorted({device for name, _ in job.blocks.values() for device in held[name]})
        self._done: set[tuple[str, int]] = set()
        self._over = False

    def threads(self) -> Sequence[threading.Thread]:
        return tuple(threading.Thread(target=target, daemon=True, name=f"weft {what} of {self.job.name}")
                     for what, target in (("computation", self._compute), ("sums", self._sum)))

    def close(self) -> None:
        self.executor.close()
        self.trainer.worker.close()

    def done(self, name: str, number: int) -> None:
        """The block ``name`` on ``number`` of this run is done: whoever waits for it may go on."""
        with self._changed:
            self._done.add((name, number))
            self._changed.notify_all()

    def _compute(self) -> None:
        try:
            for step in range(self.first, self.training.steps):
                self.step = step
                self.trainer.begin(self.step)
                self.executor.run(together=False)
                self._await([(entry.name, step - self.first) for entry in self.job.sums])
                loss = self.trainer.worker.loss()
                self._finish()
                self.add(loss)
                self.save(step)
        except JobOver:
            pass
        except ConnectionError as error:
            self.broken = error
            self._fail(error)
        except BaseException as error:
            self._fail(error)
        finally:
            self.turns.end(self.job.name, self.computing)
            self.ended_at = self.session.now()
            self.session.watch.rest()

    def _finish(self) -> None:
        """End the batch. Where it is to be saved and a rank cannot end it, the job is over on all of them: then none is
        left before a sum, or in the saving."""
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
        """Wait until all of ``keys`` are done, or with ``or_fault`` until this rank has a fault. Raises
        :class:`~weft.runtime.share.turns.JobOver` once the job is over on all ranks."""
        self.session.watch.rest()
        with self._changed:
            while True:
                if self._over:  # before a fault: no rank comes to the next sum then
                    raise JobOver(self.job.name)
                if all(key in self._done for key in keys) or (or_fault and self.fault is not None):
                    return
                self._changed.wait()

    def _fail(self, error: BaseException) -> None:
        self.fail(error)
        self.turns.end(self.job.name, self.computing)

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

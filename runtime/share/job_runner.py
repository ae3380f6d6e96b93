"""One job's training among others on a rank: a thread that computes and a thread that sums, each in its turn.

Before each sum all ranks of the job say whether it is well there. Where it is not, it is over on all of them: no rank
is left in a collective that another one never comes to, and the other jobs go on.

Whatever a job draws from torch's random numbers is its own: their state changes hands with the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from weft.runtime.execute.executor import Executor, Parcel, Task
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.program import ProgramError, Reduce, Work
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.stopwatch import sleep_until
from weft.runtime.replay.run import Trainer
from weft.runtime.share.job_plans import JobPlan
from weft.runtime.share.turns import JobOver, Turns
from weft.runtime.train.agreement import Allowed
from weft.runtime.train.worker import Stages

__all__ = ["JobRunner"]


class JobRunner:
    """The training of ``job`` on one rank. All ranks make theirs together, in one order of jobs.

    ``held``: per block, the devices of this rank that it holds. ``seconds``: what one of the plan's time units lasts at
    least, 0 where blocks last as long as they take. ``stopped_by``: a file whose coming ends the job. ``began``: per
    block that ran, its step and when it began, on the clock of all ranks. Raises
    :class:`~weft.runtime.ranks.session.SessionError` for stages that are not those of the plan.
    """

    def __init__(self, job: JobPlan, session: Session, training: Training, turns: Turns,
                 held: Mapping[str, Sequence[int]], seconds: float, allowed: Allowed | None = None,
                 stopped_by: Path | None = None) -> None:
        self.job, self.session, self.training, self.turns, self.held = job, session, training, turns, held
        self.seconds, self.stopped_by = seconds, stopped_by
        self.trainer = Trainer.of(job.plan, session, training, allowed)
        gradients = self.trainer.gradients
        try:
            self.reduces = job.reduces(gradients.plan)
        except ProgramError as error:
            raise SessionError(str(error)) from None
        self.executor = Executor(gradients.plan, session, _InTurn(self.trainer.worker, self))
        self.devices = sorted({device for devices in held.values() for device in devices})
        self.computing = sorted({device for name in job.blocks.values() for device in held[name]})
        self.losses: list[float] = []
        self.began: list[tuple[str, int, float]] = []
        self.fault: str | None = None  # why it ended before its last step, on this rank
        self.broken: BaseException | None = None  # what no job can go on after
        self.step = 0
        self._random = torch.get_rng_state()
        self._done: set[tuple[str, int]] = set()
        self._over = False
        self._changed = threading.Condition()

    def threads(self) -> tuple[threading.Thread, threading.Thread]:
        """What runs it, not started yet."""
        return tuple(threading.Thread(target=target, daemon=True, name=f"weft {what} of {self.job.name}")
                     for what, target in (("computation", self._compute), ("sums", self._sum)))  # type: ignore[return-value]

    def close(self) -> None:
        """Give the modules back."""
        self.executor.close()
        self.trainer.worker.close()

    # -- computing -----------------------------------------------------------------------------------------------------

    def _compute(self) -> None:
        try:
            for step in range(self.training.steps):
                self.step = step
                self.trainer.begin(self.step)
                self.executor.run(together=False)
                self._await([(entry.name, self.step) for entry in self.job.sums])
                loss = self.trainer.worker.loss()
                self.trainer.end(self.session, self.training, self.step)
                self.losses.append(loss)
        except JobOver:
            pass
        except BaseException as error:
            message = (str(error) or "no message").splitlines()[0]
            self._fail(f"{type(error).__name__} in step {self.step}: {message:.300}")
        finally:
            self.turns.end(self.job.name, self.computing)
            self.session.watch.rest()

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """The turn of the block ``name`` in this step, for at least as long as it is planned."""
        self.session.watch.rest()
        self.turns.take((self.job.name, name, self.step), self.held[name])
        self.session.doing(f"running {name} in step {self.step}")
        begun = self.session.now()
        elsewhere = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
            self._last(name, begun)
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(elsewhere)
            self.turns.give(self.held[name])
        self._say_done(name, self.step, begun)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _sum(self) -> None:
        lanes: set[int] = {device for entry in self.job.sums for device in self.held[entry.name]}
        try:
            for step in range(self.training.steps):
                for entry in self.job.sums:
                    self._await([(need, step) for need in entry.needs], or_fault=True)
                    self.turns.take((self.job.name, entry.name, step), self.held[entry.name])
                    begun = self.session.now()
                    try:
                        if not self._all_well(f"{entry.name} in step {step}"):
                            raise JobOver
                        for instruction in self.reduces[entry.name]:
                            self._reduce(instruction)
                        self._last(entry.name, begun)
                    finally:
                        self.turns.give(self.held[entry.name])
                    self._say_done(entry.name, step, begun)
        except JobOver:
            self._end()
            self.turns.end(self.job.name, self.computing)
        except BaseException as error:
            self.broken = error
            self._end()
        finally:
            self.turns.end(self.job.name, lanes)
            self.session.watch.rest()

    def _all_well(self, what: str) -> bool:
        """Whether no rank has a fault of this job, and none was told to stop it."""
        if self.fault is None and self.stopped_by is not None and self.stopped_by.exists():
            self._fail(f"stopped by {self.stopped_by}")
        well = torch.tensor([self.fault is None], dtype=torch.int32)
        self.session.watch.doing(f"waiting for the other ranks before {what} of job {self.job.name}",
                                 range(self.session.processes))
        dist.all_reduce(well, op=dist.ReduceOp.MIN, group=self.session.counterparts())
        return bool(well.item())

    def _reduce(self, instruction: Reduce) -> None:
        self.trainer.gradients.start(instruction)
        self.trainer.gradients.finish()

    # -- what both threads know ----------------------------------------------------------------------------------------

    def _last(self, name: str, begun: float) -> None:
        """Wait until the block ``name``, which ``begun`` then, has taken its planned time."""
        sleep_until(begun + self.job.durations[name] * self.seconds, self.session.now)

    def _say_done(self, name: str, step: int, begun: float) -> None:
        with self._changed:
            self.began.append((name, step, begun))
            self._done.add((name, step))
            self._changed.notify_all()

    def _await(self, keys: Sequence[tuple[str, int]], *, or_fault: bool = False) -> None:
        """Wait until all of ``keys`` are done, or with ``or_fault`` until this rank has a fault. Raises
        :class:`~weft.runtime.share.turns.JobOver` once the job is over on all ranks."""
        self.session.watch.rest()
        with self._changed:
            while not (all(key in self._done for key in keys) or (or_fault and self.fault is not None)):
                if self._over:
                    raise JobOver(self.job.name)
                self._changed.wait()

    def _fail(self, why: str) -> None:
        with self._changed:
            self.fault = self.fault or why
            self._changed.notify_all()
        self.turns.end(self.job.name, self.computing)

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


class _InTurn:
    """A worker whose passes wait for their turn."""

    def __init__(self, worker: Stages, runner: JobRunner) -> None:
        self.worker, self.runner = worker, runner

    def reads(self, work: Work) -> Sequence[Work]:
        return self.worker.reads(work)

    def keeps(self, work: Work) -> Work:
        return self.worker.keeps(work)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        return self.worker.layout(what, target)

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        return self.worker.message(what, target)

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        return self.worker.prepare(work)

    def task(self, work: Work) -> Task:
        """The pass, in its turn."""
        run, name = self.worker.task(work), self.runner.job.blocks[work]

        def in_turn(results: Mapping[Work, Parcel]) -> Parcel:
            with self.runner.turn(name):
                return run(results)

        return in_turn



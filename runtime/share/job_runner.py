"""One job's training on a rank that several jobs share: computation waits for its turn, and errors are confined to it.

Before any collective that a rank might not reach, all ranks of the job exchange whether it has failed there. If so, the
job ends on all of them: no rank is left in a collective, and the other jobs continue.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from weft.runtime.execute.executor import Executor, Parcel, Task
from weft.runtime.interface.training import Training
from weft.runtime.plan.program import Work
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.stopwatch import sleep_until
from weft.runtime.replay.run import Trainer
from weft.runtime.share.stages_plan import JobPlan
from weft.runtime.share.turns import JobOver, Turns
from weft.runtime.train.agreement import Allowed
from weft.runtime.train.worker import StageWorker

if TYPE_CHECKING:
    from weft.runtime.checkpoint.checkpoint import Checkpoints


@dataclass(frozen=True)
class RunOptions:
    """``seconds``: the least length of the plan's time unit (0: blocks take their own time). ``stopped_by``: a file
    whose existence ends the job. ``checkpoints``: where the job is saved. ``tell``: called with each batch and its loss
    on this rank."""

    seconds: float = 0.0
    allowed: Allowed | None = None
    stopped_by: Path | None = None
    checkpoints: Checkpoints | None = None
    tell: Callable[[int, float], None] = lambda batch, loss: None


class JobRunner(ABC):
    """The training of ``job`` on one rank. All ranks of the job create theirs together.

    ``held``: for each block, the devices of this rank on which it runs. ``began``: for each block that ran, its name,
    number and start, on the clock of all ranks. Raises :class:`~weft.runtime.ranks.session.SessionError` for stages
    other than the plan's.
    """

    executor: Executor

    def __init__(self, job: JobPlan, session: Session, training: Training, turns: Turns,
                 held: Mapping[str, Sequence[int]], options: RunOptions) -> None:
        self.job, self.session, self.training, self.turns, self.held = job, session, training, turns, held
        self.options = options
        self.trainer = Trainer.of(job.plan, session, training, options.allowed)
        self.trainer.worker.may_count = False
        self.computing = sorted({device for devices in held.values() for device in devices})  # where passes run
        self.losses: list[float] = []
        self.began: list[tuple[str, int, float]] = []
        self.fault: tuple[float, str] | None = None  # time and reason of an early end on this rank
        self.broken: BaseException | None = None  # an error that ends this process
        saved = options.checkpoints
        self.first = 0 if saved is None else saved.restore(job.plan, session, training)
        self.step = self.first
        self.ended_at = 0.0
        self._changed = threading.Condition()

    @abstractmethod
    def threads(self) -> Sequence[threading.Thread]:
        """The job's threads, not started."""

    @abstractmethod
    def batch(self) -> bool:
        """Run batch :attr:`step`; False if the job is over."""

    def compute(self) -> None:
        """Run all batches; the body of the computing thread."""
        try:
            for step in range(self.first, self.training.steps):
                self.step = step
                if not self.batch():
                    break
        except JobOver:
            pass
        except BaseException as error:
            self.give_up(error)
        finally:
            self.turns.end(self.job.name, self.computing)
            self.ended_at = self.session.now()
            self.session.watch.rest()

    def give_up(self, error: BaseException) -> None:
        """End this process's work after ``error``."""
        self.broken = error
        self.fail(error)

    def close(self) -> None:
        """Release the modules."""
        self.executor.close()
        self.trainer.worker.close()

    @property
    def has_losses(self) -> bool:
        """Whether it has losses."""
        return self.trainer.worker.wiring.has_losses

    # -- turns ---------------------------------------------------------------------------------------------------------

    def begin(self, name: str, number: int) -> float:
        """Wait for the turn of the block ``name`` on ``number`` of this run; returns when it began."""
        self.session.watch.rest()
        self.turns.take((self.job.name, name, number), self.held[name])
        self.session.doing(f"running {name} in step {self.step}")
        return self.session.now()

    def end(self, name: str, number: int, begun: float, *, waits: bool = True) -> None:
        """End the block ``name``, which began at ``begun``: after its planned time at least, if it ``waits``."""
        try:
            if waits:
                sleep_until(begun + self.job.durations[name] * self.options.seconds, self.session.now)
        finally:
            self.turns.give(self.held[name])
        with self._changed:
            self.began.append((name, number, begun))

    # -- health --------------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException | str) -> None:
        """Record this rank's fault, unless it already has one."""
        if isinstance(error, BaseException):
            message = (str(error) or "no message").splitlines()[0]
            error = f"{type(error).__name__} in step {self.step}: {message:.300}"
        with self._changed:
            self.fault = self.fault or (self.session.now(), error)
            self._changed.notify_all()

    def all_well(self, what: str, group: dist.ProcessGroup | None) -> bool:
        """Whether no rank of ``group`` has an error of this job or a request to stop it."""
        stopped_by = self.options.stopped_by
        if self.fault is None and stopped_by is not None and stopped_by.exists():
            self.fail(f"stopped by {stopped_by}")
        return self.all_say(self.fault is None, what, group)

    def all_say(self, well: bool, what: str, group: dist.ProcessGroup | None) -> bool:
        """Whether all ranks of ``group`` report ``well``."""
        flag = torch.tensor([well], dtype=torch.int32)
        self.session.watch.doing(f"waiting for the other ranks before {what} of job {self.job.name}")
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=group)
        return bool(flag.item())

    def may_save(self, well: bool, step: int, group: dist.ProcessGroup | None) -> bool:
        """Whether saving batch ``step`` may start: it ended ``well`` on all ranks of ``group``, as a rank with an error
        does not reach the collective. True if no checkpoint is due."""
        checkpoints = self.options.checkpoints
        return checkpoints is None or not checkpoints.due(self.training, step) or self.all_say(
            well, f"saving batch {step}", group)

    def save(self, step: int) -> None:
        """Save the training after batch ``step``, if due. On failure this process ends, as other ranks wait for it in
        collectives."""
        if self.options.checkpoints is None:
            return
        try:
            self.options.checkpoints.save(self.job.plan, self.session, self.training, step)
        except SessionError as error:
            self.session.watch.give_up(str(error), code=2)

    def done(self, name: str, number: int) -> None:  # noqa: B027 - optional
        """Called when the block ``name`` on ``number`` of this run is complete."""

    def add(self, loss: float) -> None:
        """Record the ``loss`` of batch :attr:`step` here."""
        self.losses.append(loss)
        self.options.tell(self.step, loss)


class WorkerInTurn:
    """The worker of ``runner``, with passes that wait for their turns."""

    def __init__(self, worker: StageWorker, runner: JobRunner) -> None:
        self.worker, self.runner = worker, runner
        self.reads, self.keeps, self.layout = worker.reads, worker.keeps, worker.layout
        self._begun = 0.0

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        return self.worker.message(what, target)

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        return self.worker.prepare(work)

    def task(self, work: Work) -> Task:
        """The pass, in its turn. A block of the plan with jobs may contain several passes: it begins with the first and
        ends with the last of them."""
        run, job, runner = self.worker.task(work), self.runner.job, self.runner
        name, micro_batch = job.blocks[work]
        opens, closes = work in job.opens, work in job.closes

        def in_turn(results: Mapping[Work, Parcel]) -> Parcel:
            number = (runner.step - runner.first) * job.size + micro_batch
            if opens:
                self._begun = runner.begin(name, number)
            try:
                found = run(results)
            except BaseException:
                runner.end(name, number, self._begun, waits=False)
                raise
            if closes:
                runner.end(name, number, self._begun)
                runner.done(name, number)
            return found

        return in_turn

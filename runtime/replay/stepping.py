"""Runs of a plan one batch at a time, in a user's training loop, which also steps the optimizer."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist

from weft.runtime.execute.executor import Executor
from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session
from weft.runtime.replay.options import seconds_in_unit
from weft.runtime.replay.run import Replay, Trainer, gather_replay
from weft.runtime.train.agreement import Allowed
from weft.runtime.train.worker import StageWorker

#: Batches that all ranks begin at one moment, so that their times can be compared with the plan: the first, with its
#: allocations, and some without.
TOGETHER = range(4)
#: The median time of a step is of this many last ones: a long training keeps no more.
KEPT = 1000
THEIRS = "running the script's own code between two steps"


class Running:
    """A plan that is ready to run with this rank's stages. ``weight``: its share of the batch in the next run."""

    def __init__(self, trainer: Trainer, plan: Plan, session: Session) -> None:
        self.trainer, self.weight, self.times = trainer, 1.0, 0
        self.executor = Executor(plan, session, trainer.worker, reduce=trainer.gradients.start)

    def run(self, together: bool = False) -> list[Measured]:
        """Run it once; the first time all ranks begin together."""
        self.trainer.worker.weight = self.weight
        self.times += 1
        return self.executor.run(together=together or self.times == 1)

    def close(self) -> None:
        """Release buffers and modules."""
        self.executor.close()
        self.trainer.worker.close()


class Stepping:
    """Rank ``session.rank`` of ``plan`` with ``training``, without its optimizer.

    All ranks create theirs together, and call :meth:`step` and :meth:`replay` together. Raises
    :class:`~weft.runtime.ranks.session.SessionError` for stages other than the plan's.
    """

    def __init__(self, plan: Plan, session: Session, training: Training, allowed: Allowed | None = None) -> None:
        session.add_groups(plan.groups)
        self.session, self.training = session, training
        self.trainer = Trainer.of(plan, session, training, allowed)
        self.plan = self.trainer.gradients.plan
        self.running = [Running(self.trainer, self.plan, session)]
        self.steps, self.norm = 0, None  # type: int, float | None
        #: ``added``: the number of batches accumulated so far.
        self.added, self._batches, self._behind = 0, 1, 0
        self._measured: list[list[Measured]] = []
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._tellers: dict[int, int] | None = None  # by process that has losses: its number in torch.distributed
        self._telling: dist.Work | None = None  # this rank's last broadcast

    def beside(self, plan: Plan, training: Training, before: int, whole: int) -> Running:
        """A runner of ``plan`` for micro-batches of another shape: those after the first ``before`` of ``whole``. All
        ranks create it together."""
        plan = plan.sharing(self.plan.shared)
        found = Running(self.trainer.beside(plan, self.session, training, before, whole), plan, self.session)
        self.running.append(found)
        return found

    def step(self, parts: Sequence[Running] = ()) -> float:
        """Run one batch, in ``parts`` where given (:meth:`beside`). Afterwards parameters have the gradients of its
        mean loss, which is returned on every rank; of several batches (:meth:`accumulate`) after the last.

        Raises :class:`~weft.runtime.ranks.health.RunError` if a loss is not finite.
        """
        begun = time.perf_counter()
        number, norm, loss = self._behind + self.steps, None, 0.0
        parts, is_plain, mean, counted = parts or self.running[:1], not parts, 0.0, 0.0
        for i, part in enumerate(parts):
            part.trainer.begin(number, self.added, self._batches, (i, len(parts)))
            measured = part.run(together=is_plain and self.steps in TOGETHER)
            if is_plain and self.steps in TOGETHER:
                self._measured.append(measured)
            norm = part.trainer.end(self.session, self.training, number)
            loss, total = self._everywhere(part.trainer.worker), part.trainer.worker.total
            mean, counted = mean + loss * (part.weight if total is None else total), counted + (total or 0.0)
        self.added += 1
        if self.added == self._batches:
            self.norm, self.added = norm, 0
        if self.steps and is_plain:
            self._seconds.append(time.perf_counter() - begun)
        self.steps += 1
        self.session.watch.doing(THEIRS)
        return loss if len(parts) == 1 else mean / counted if counted else mean

    def accumulate(self, batches: int) -> None:
        """From now on gradients are the mean over ``batches`` batches, ready after the last of them."""
        self.added, self._batches = 0, batches

    def go_on(self, behind: int, seed: int | None) -> None:
        """Continue with batch number ``behind`` of a training; ``seed``, if given, seeds random operators."""
        self._behind = behind - self.steps
        if seed is not None:
            for running in self.running:
                for runner in running.trainer.worker.runners.values():
                    runner.moment.seed = seed

    @property
    def seconds(self) -> float | None:
        """The median time of a step, from the second on and of the last :data:`KEPT`; ``None`` before there is one."""
        return statistics.median(self._seconds) if self._seconds else None

    def replay(self) -> Replay | None:
        """The comparison with the plan, on process 0, of a batch that all ranks started together: the median one, not
        counting the first if there are others."""
        counted = self._measured[1:] or self._measured or [[]]
        found = [replay for measured in counted if (replay := gather_replay(
            self.plan, self.session, seconds_in_unit(self.plan), measured)) is not None]
        return sorted(found, key=lambda replay: replay.timeline.makespan)[(len(found) - 1) // 2] if found else None

    def close(self) -> None:
        """Release buffers and modules."""
        if self._telling is not None:
            self._telling.wait()
        for running in reversed(self.running):
            running.close()

    def _everywhere(self, worker: StageWorker) -> float:
        """The mean over the copies of the losses of the ranks that have any; only these wait for each other."""
        session = self.session
        if self._tellers is None:
            told = session.everywhere((worker.own_losses != [], session.place(session.rank)), "asking who has losses")
            self._tellers = {process: place for process, (tells, place) in enumerate(told) if tells}
        values = {process: torch.tensor([worker.loss()], dtype=torch.float64) for process in self._tellers}
        works = {process: dist.broadcast(values[process], place, group=session.members, async_op=True)
                 for process, place in self._tellers.items()}
        self._telling = works.pop(session.process(session.rank), None)
        session.watch.doing("adding up the loss", works)
        for work in filter(None, works.values()):
            work.wait()
        return sum(map(float, values.values())) / session.replicas


def stages_of(plan: Plan, rank: int) -> tuple[int, ...]:
    """The stages that ``rank`` runs."""
    groups = plan.stage_groups or ()
    return tuple(s for s, ranks in enumerate(groups) if rank in ranks)

"""Runs of a plan on all ranks, emulated or once for each batch of a training, and their results, gathered on rank 0.

If losses are sums and counts, gradients are those of the mean over a batch's count
(:mod:`weft.runtime.interface.counting`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from weft.runtime.checkpoint.signature import SignatureError, require_signature
from weft.runtime.execute.emulate import Emulation
from weft.runtime.execute.executor import Executor, Worker
from weft.runtime.execute.pacing import Latencies, Paced, latencies
from weft.runtime.interface.fitting import misfit
from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Reduce
from weft.runtime.plan.timeline import AgainstPlan, Measured, Timeline, compare
from weft.runtime.ranks.health import RunError, require_finite
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.replay.options import seconds_in_unit
from weft.runtime.train.agreement import Allowed, require_agreement
from weft.runtime.train.reduction import Reduction
from weft.runtime.train.worker import StageWorker

if TYPE_CHECKING:
    from weft.runtime.checkpoint.checkpoint import Checkpoints


def run_emulated(plan: Plan, session: Session, seconds_per_unit: float, paced: bool = False) -> Replay | None:
    """Run ``plan`` once with emulated blocks; the result is on rank 0. ``paced``: micro-batches arrive at their planned
    times."""
    session.watch.doing("learning how long a short sleep lasts")
    executor = _executor(plan, session, Emulation(plan, seconds_per_unit, session.now),
                         pace=seconds_per_unit if paced else None)
    measured = executor.run()
    executor.close()
    return gather_replay(plan, session, seconds_per_unit, measured, paced=paced)


@dataclass(frozen=True)
class Trainer:
    """Runs a training on one rank: the ``worker`` that computes, the ``gradients`` that are summed, and the
    ``averaging`` of losses that have counts."""

    worker: StageWorker
    gradients: Reduction
    averaging: Averaging

    @classmethod
    def of(cls, plan: Plan, session: Session, training: Training, allowed: Allowed | None) -> Trainer:
        """The trainer of rank ``session.rank``. All ranks must create theirs together.

        Raises :class:`~weft.runtime.ranks.session.SessionError` for stages other than the plan's, unless ``allowed``
        (:mod:`weft.runtime.train.agreement`).
        """
        try:
            require_signature(plan, training)
        except SignatureError as error:
            raise SessionError(str(error)) from None
        _require_optimizer(training)
        worker = StageWorker(plan, session, training)
        require_agreement(plan, session, training, allowed)
        return cls(worker, Reduction(plan, session, training, worker.folding), Averaging())

    @property
    def has_backward(self) -> bool:
        """Whether there are gradients at all."""
        return self.worker.graph.has_backward

    def beside(self, plan: Plan, session: Session, training: Training, before: int, whole: int) -> Trainer:
        """A trainer of the same stages for parts of a batch of other shapes (see
        :class:`~weft.runtime.train.worker.StageWorker`), which adds to the same gradients. Its messages have other
        sizes than planned, and are not compared with the plan."""
        return Trainer(StageWorker(plan, session, training, before, whole), self.gradients, self.averaging)

    def begin(self, step: int, place: int = 0, count: int = 1, part: tuple[int, int] = (0, 1)) -> None:
        """Begin batch ``step``, number ``place`` of the ``count`` batches whose gradients are accumulated, or part
        ``part[0]`` of ``part[1]`` of it. Gradients are zeroed before the first one; a plan without backward does not
        change them."""
        self.worker.begin(step)
        self.worker.batches = count
        self.gradients.summing = place == count - 1 and part[0] == part[1] - 1
        if not place and not part[0]:
            self.averaging.begin()
        if not place and not part[0] and self.has_backward:
            self.gradients.clear()

    def end(self, session: Session, training: Training, step: int) -> float | None:
        """Finish the gradients of batch ``step``, then step the optimizer; neither if further batches will add to them.

        Returns the norm of the gradients before clipping (``None`` without clipping). Raises
        :class:`~weft.runtime.ranks.health.RunError` if a loss is not finite, or a batch counts nothing.
        """
        require_finite(self.worker.losses, step)
        factor = self.averaging.end(self.worker, session, step) if self.worker.may_count else None
        if not self.gradients.summing:
            return None
        if self.has_backward:
            self.gradients.finish()
            if factor is not None:
                self.gradients.scale(factor)
            if training.scaling is not None:
                self.gradients.unscale(training.scaling)
            self.gradients.add_before()
        session.doing(f"after the backward of batch {step}")
        if training.after_backward is not None:
            training.after_backward(step)
        norm = self.gradients.clip() if self.has_backward else None
        self.gradients.step()
        return norm


def run_training(plan: Plan, session: Session, training: Training, checkpoints: Checkpoints | None = None,
                 paced: bool = False, allowed: Allowed | None = None) -> Replay | None:
    """Run ``plan`` for each batch of ``training``, stepping its optimizer; the result is on rank 0.

    With ``checkpoints``, training is saved, and resumed if requested. ``paced``: micro-batches arrive at their planned
    times. Raises the errors of :meth:`Trainer.of` and :meth:`Trainer.end`.

    After each batch every parameter's gradient is that of the mean loss over the whole batch, over all replicas; with
    :class:`~weft.runtime.interface.optim.AdamA` it has been folded into the optimizer's moments and freed instead.
    """
    trainer = Trainer.of(plan, session, training, allowed)
    worker, gradients = trainer.worker, trainer.gradients
    executor = _executor(gradients.plan, session, worker, gradients.start, seconds_in_unit(plan) if paced else None)
    measured: list[Measured] = []
    losses: list[float] = []
    norms: list[float] = []
    first = 0 if checkpoints is None else checkpoints.restore(plan, session, training)
    for step in range(first, training.steps):
        trainer.begin(step)
        measured = executor.run(together=paced or step in (first, training.steps - 1))  # the last's timeline is kept
        if (norm := trainer.end(session, training, step)) is not None:
            norms.append(norm)
        losses.append(worker.loss())
        if checkpoints is not None:
            checkpoints.save(plan, session, training, step)
    executor.close()
    worker.close()
    return gather_replay(plan, session, seconds_in_unit(plan), measured, losses if worker.wiring.has_losses else (),
                         norms, paced)


def _require_optimizer(training: Training) -> None:
    """Raise :class:`~weft.runtime.ranks.session.SessionError` for an optimizer that would not train this rank's
    stages."""
    if training.optimizer is None:
        return
    own = [p for module in training.stages.values() for p in module.parameters() if p.requires_grad]
    masters = training.masters
    held = own if masters is None else [masters.of(parameter) for parameter in own]
    idle = [] if masters is None else [parameter for parameter in own if masters.of(parameter) is not parameter]
    where = "the parameters of its stages' modules" if masters is None else "masters.parameters()"
    if (why := misfit(training.optimizer, held, idle, where, folds=True)) is not None:
        raise SessionError(why)


def _executor(plan: Plan, session: Session, worker: Worker, reduce: Callable[[Reduce], None] | None = None,
              pace: float | None = None) -> Executor:
    """The executor of a plan; with ``pace``, the seconds of one of its time units, micro-batches arrive as planned."""
    if pace is not None:
        worker = Paced(worker, plan, session, pace, lambda: executor.begun)
    executor = Executor(plan, session, worker, reduce=reduce)
    return executor


class Averaging:
    """Sums the counts of losses over all ranks of all replicas. All ranks call it together."""

    def __init__(self) -> None:
        self._counted: bool | None = None  # whether losses have counts: known to all after the first batch
        self._behind = 0.0  # the count of the batches whose gradients are accumulated

    @property
    def is_counted(self) -> bool:
        """Whether losses have counts."""
        return bool(self._counted)

    def begin(self) -> None:
        """Restart the count: gradients have become zero."""
        self._behind = 0.0

    def end(self, worker: StageWorker, session: Session, step: int) -> float | None:
        """After batch ``step``, or a part of it, by ``worker``: the factor that makes the gradients of all batches
        since :meth:`begin` those of the mean over their count; ``None`` where losses are means.

        Raises :class:`~weft.runtime.ranks.health.RunError` for a batch with a count of 0.
        """
        mine = worker.is_counted
        if self._counted is None:
            self._counted = any(session.everywhere(mine, "asking whether losses have counts"))
        if mine is not None and mine != self._counted:
            raise SessionError(f"the loss of batch {step} is {_KIND[mine]}, but before it was {_KIND[self._counted]}: "
                               "give one kind for all micro-batches")
        if not self._counted:
            return None
        session.watch.doing("adding up what the batch counts", range(session.processes))
        total = torch.tensor([worker.count], dtype=torch.float64)
        dist.all_reduce(total, group=session.members)
        count = float(total)
        if not count > 0:
            raise RunError(f"batch {step} counts {count:g} in all its micro-batches: a mean needs at least one")
        worker.total = count
        self._behind += count
        return worker.batch_size * worker.batches / self._behind


_KIND = {True: "a sum and a count", False: "one number"}


@dataclass(frozen=True)
class Replay:
    """The result of a replay: the timeline of the last batch, its comparison with the plan (``None`` if the problem's
    time unit is no unit of time), and for each batch the mean loss (none without a loss) and the norm of the gradient
    before clipping (none without clipping). With replicas, the timeline is that of the first one. ``latencies``: of the
    micro-batches of a paced run."""

    timeline: Timeline
    comparison: AgainstPlan | None
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    latencies: Latencies | None = None

    def __str__(self) -> str:
        if not self.timeline.operations:
            return "nothing was left to run: the checkpoint has all batches behind it"
        lines = [f"measured makespan  {self.timeline.makespan:.6g} s"]
        if self.comparison is not None:
            lines.append(f"predicted          {self.comparison.predicted:.6g} s")
            lines.append(f"ratio              {self.comparison.ratio:.4f}")
        if self.latencies is not None:
            lines.append(str(self.latencies))
        if self.losses:
            lines.append("loss per batch     " + " ".join(f"{loss:.6g}" for loss in self.losses))
        return "\n".join(lines)


def gather_replay(plan: Plan, session: Session, seconds_per_unit: float | None, measured: Sequence[Measured],
                  losses: Sequence[float] = (), norms: Sequence[float] = (), paced: bool = False) -> Replay | None:
    """The results of all ranks, on process 0; ``None`` elsewhere. All ranks of all replicas must call it together.

    ``measured`` are this rank's blocks in the last batch, ``losses`` its parts of each batch's mean loss.
    ``seconds_per_unit``: the length of one of the plan's time units; ``None`` if unknown.
    """
    found = session.gather((measured, losses))
    if found is None:
        return None
    timeline = Timeline.of(plan, seconds_per_unit or 1.0, [o for blocks, _ in found[:session.world] for o in blocks])
    comparison = None if seconds_per_unit is None or not timeline.operations else compare(timeline, plan)
    by_batch = zip(*(parts for _, parts in found), strict=True)
    return Replay(timeline, comparison, tuple(sum(parts) / session.replicas for parts in by_batch), tuple(norms),
                  latencies(timeline, plan) if paced and timeline.operations else None)

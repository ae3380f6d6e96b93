"""Replaying a plan: what ``weft replay plan.json`` does on each rank that ``torchrun`` starts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.runtime.execute.pacing import Latencies, latencies
from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.plan.timeline import Comparison, Measured, Timeline, compare, save_timeline
from weft.runtime.replay.options import (
    ReplayError,
    asked_plan,
    device_for,
    require_clock,
    require_sense,
    seconds_in_unit,
    training_of,
)

if TYPE_CHECKING:
    from weft.runtime.checkpoint.checkpoint import Checkpoints
    from weft.runtime.execute.executor import Executor, Worker
    from weft.runtime.interface.training import Training
    from weft.runtime.plan.program import Reduce
    from weft.runtime.ranks.session import Session
    from weft.runtime.replay.prediction import Prediction
    from weft.runtime.train.agreement import Allowed

__all__ = ["Replay", "ReplayError", "replay", "replay_alone", "run_emulated", "run_training"]


@dataclass(frozen=True)
class Replay:
    """What a replay found: the timeline of its last batch, that held against the plan (``None`` if the problem's time
    unit says nothing in seconds), and for each batch its mean loss (none if no stage gives one) and the norm of its
    gradient before clipping (none without clipping). With replicas of a plan, the timeline is the first one's.
    ``latencies`` are those of its micro-batches, where they were paced."""

    timeline: Timeline
    comparison: Comparison | None
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


def replay(plan_path: str | os.PathLike[str], *, emulate: bool = False, stages: str | None = None,
           timeout: float = 60.0, timeline_path: str | os.PathLike[str] | None = None,
           time_scale: float = 1.0, transport: str | None = None, reserve: int | None = None,
           checkpoint: str | os.PathLike[str] | None = None, checkpoint_every: int = 0,
           resume: bool = False, unchecked: bool = False, replicas: int = 1, paced: bool = False,
           allow_unsplit: bool = False, allow_other_model: bool = False) -> Replay | None:
    """Run the plan in ``plan_path`` as one of the ranks that ``torchrun`` started; the result is on rank 0.

    With ``emulate``, blocks sleep for their predicted durations. Otherwise ``stages`` is ``"module:function"``, and
    ``function(plan, rank)`` gives that rank's :class:`~weft.runtime.interface.training.Training`, which runs on GPUs if
      this machine has one for each of its ranks. A function with an argument named ``session`` is handed the
      :class:`~weft.runtime.ranks.session.Session` too: its :meth:`~weft.runtime.ranks.session.Session.group` is what
      the layers of a stage on several ranks meet in. ``timeout`` is in seconds, for one instruction or one wait: past
      it every rank stops, says why, and exits with 1. ``time_scale`` makes emulated time that many times as long; a
      time unit that is not s, ms or us is emulated as a second. ``replicas`` copies of the plan train together, each on
      its part of every batch. With
    ``paced``, no micro-batch begins before the plan has it begin (:mod:`weft.runtime.execute.pacing`); otherwise all
      are there from the start.

    ``transport`` carries the messages: see :mod:`weft.runtime.transports`; by default NCCL on GPUs, else gloo.
      ``reserve`` is in bytes: what a device has beyond its capacity in the problem, for messages that arrive early
      (default: 1 GiB). Training is saved to the folder ``checkpoint`` after every ``checkpoint_every`` batches and
      after the last; with
    ``resume`` it goes on from the newest checkpoint there, which must be whole by its checksums; with ``unchecked``
    also from one of an earlier weft, which has none.

    Stages that are not those of the plan are refused: unless ``allow_unsplit``, those of which the executor cannot
    split the backward that the plan splits; unless ``allow_other_model``, those with other parameters, ties or values
    between them than the plan's problem tells of (:mod:`weft.runtime.train.agreement`).

    Raises :class:`ReplayError` or :class:`~weft.solver.io.entries.FormatError` on rank 0 for a mistake of the user; the
    other ranks then exit with 2 in silence.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        plan = asked_plan(plan_path, emulate, stages, timeout, timeline_path, time_scale, replicas)
        require_sense(emulate, transport, checkpoint, checkpoint_every, resume, unchecked)
        if emulate and (allow_unsplit or allow_other_model):
            raise ReplayError("--allow-unsplit and --allow-other-model are about stages: they need --stages")
        if paced and not emulate:
            require_clock(plan, plan_path)
    except ValueError:
        if rank == 0:
            raise
        time.sleep(1)  # torchrun stops all ranks when the first one exits: let rank 0 speak
        raise SystemExit(2) from None

    from weft.runtime.ranks.session import RESERVE, SessionError, join

    with join(timeout, None if emulate else device_for(transport), transport=transport,
              reserve=RESERVE if reserve is None else reserve, replicas=replicas) as session:
        session.add_groups(plan.groups)
        if emulate:
            result = run_emulated(plan, session, time_scale * (seconds_in_unit(plan) or 1.0), paced)
        else:
            assert stages is not None
            session.watch.doing(f"loading {stages}")
            from weft.runtime.checkpoint.checkpoint import Checkpoints
            from weft.runtime.train.agreement import Allowed

            saving = None if checkpoint is None else Checkpoints(Path(checkpoint), checkpoint_every, resume,
                                                                       unchecked)
            result = run_training(plan, session, training_of(stages, plan, session), saving, paced,
                                  Allowed(allow_unsplit, allow_other_model))
        if result is not None and timeline_path is not None:
            try:
                save_timeline(result.timeline, timeline_path)
            except OSError as error:
                raise SessionError(f"{os.fspath(timeline_path)}: cannot be written: {error.strerror}") from None
    return result


def replay_alone(plan_path: str | os.PathLike[str], ranks: Sequence[int] | None = None, *, stages: str,
                 device: str | None = None, repeats: int = 3, allow_unsplit: bool = False,
                 allow_other_model: bool = False) -> Prediction:
    """Run ``ranks`` of the plan in ``plan_path`` (default: all), one after another, each alone in this process.

    ``stages`` is as for :func:`replay`; ``device`` is ``"cpu"`` or ``"cuda"``, by default what there is. Medians are
    over ``repeats`` steps. See :mod:`weft.runtime.replay.single_rank` for what is run,
    :mod:`weft.runtime.replay.prediction` for what is made of it. Raises :class:`ReplayError`,
    :class:`~weft.runtime.ranks.session.SessionError` or :class:`~weft.solver.io.entries.FormatError`.
    """
    import gc

    import torch

    from weft.runtime.replay.prediction import predict
    from weft.runtime.replay.single_rank import alone, measure_rank
    from weft.runtime.train.agreement import Allowed

    plan = load_plan(plan_path)
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ReplayError(f"--device is {device!r}, it must be cpu, or cuda where torch has one")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    costs = []
    for rank in range(len(plan.program.ranks)) if ranks is None else ranks:
        with alone(plan, rank, where) as session:
            costs.append(measure_rank(plan, session, training_of(stages, plan, session), repeats,
                                      Allowed(allow_unsplit, allow_other_model)))
        gc.collect()  # what this rank held, before the next one is built
        if where.type == "cuda":
            torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "a CPU, one thread"
    return predict(plan, costs, name, seconds_in_unit(plan))


def run_emulated(plan: Plan, session: Session, seconds_per_unit: float, paced: bool = False) -> Replay | None:
    """Run ``plan`` once with emulated blocks; the result is on rank 0. ``paced``: see :func:`replay`."""
    from weft.runtime.execute.emulate import Emulation

    session.watch.doing("learning how long a short sleep lasts")
    executor = _executor(plan, session, Emulation(plan, seconds_per_unit, session.now),
                         pace=seconds_per_unit if paced else None)
    measured = executor.run()
    executor.close()
    return _result(plan, session, seconds_per_unit, measured, paced=paced)


def _executor(plan: Plan, session: Session, worker: Worker, reduce: Callable[[Reduce], None] | None = None,
              pace: float | None = None) -> Executor:
    """The executor of a plan; with ``pace``, the seconds of one of its time units, micro-batches arrive as planned."""
    from weft.runtime.execute.executor import Executor
    from weft.runtime.execute.pacing import Paced

    if pace is not None:
        worker = Paced(worker, plan, session, pace, lambda: executor.begun)
    executor = Executor(plan, session, worker, reduce=reduce)
    return executor


def run_training(plan: Plan, session: Session, training: Training,
                 checkpoints: Checkpoints | None = None, paced: bool = False,
                 allowed: Allowed | None = None) -> Replay | None:
    """Run ``plan`` for each batch of ``training``, stepping its optimizer; the result is on rank 0.

    With ``checkpoints``, training is saved, and perhaps taken up where it was left. ``paced``: see :func:`replay`.
    Raises :class:`~weft.runtime.ranks.session.SessionError` for stages that are not those of the plan, unless that is
    ``allowed`` (:mod:`weft.runtime.train.agreement`).

    After each batch every parameter's gradient is that of the mean loss over the whole batch, over all replicas; with
    :class:`~weft.runtime.interface.optim.AdamA` it has been folded into the optimizer's moments and freed instead.
    """
    from weft.runtime.checkpoint.signature import SignatureError, require_signature
    from weft.runtime.ranks.health import require_finite
    from weft.runtime.ranks.session import SessionError
    from weft.runtime.train.agreement import Allowed, require_agreement
    from weft.runtime.train.reduction import Reduction
    from weft.runtime.train.worker import Stages

    try:
        require_signature(plan, training)
    except SignatureError as error:
        raise SessionError(str(error)) from None
    worker = Stages(plan, session, training)
    require_agreement(plan, session, training, allowed or Allowed())
    gradients = Reduction(plan, session, training, worker.folding)
    executor = _executor(gradients.plan, session, worker, gradients.start, seconds_in_unit(plan) if paced else None)
    measured: list[Measured] = []
    losses: list[float] = []
    norms: list[float] = []
    first = 0 if checkpoints is None else checkpoints.restore(plan, session, training)
    for step in range(first, training.steps):
        worker.begin(step)
        gradients.clear()
        measured = executor.run(together=paced or step in (first, training.steps - 1))  # the last's timeline is kept
        require_finite(worker.losses, step)
        losses.append(worker.loss())
        if worker.graph.has_backward:
            gradients.finish()
        session.doing(f"after the backward of batch {step}")
        if training.after_backward is not None:
            training.after_backward(step)
        if worker.graph.has_backward and (norm := gradients.clip()) is not None:
            norms.append(norm)
        gradients.step()
        if checkpoints is not None:
            checkpoints.save(plan, session, training, step)
    executor.close()
    worker.close()
    return _result(plan, session, seconds_in_unit(plan), measured, losses if worker.wiring.has_losses else (), norms,
                   paced)


def _result(plan: Plan, session: Session, seconds_per_unit: float | None, measured: list[Measured],
            losses: Sequence[float] = (), norms: Sequence[float] = (), paced: bool = False) -> Replay | None:
    found = session.gather((measured, losses))
    if found is None:
        return None
    timeline = Timeline.of(plan, seconds_per_unit or 1.0, [o for rows, _ in found[:session.world] for o in rows])
    comparison = None if seconds_per_unit is None or not timeline.operations else compare(timeline, plan)
    by_step = zip(*(rows for _, rows in found), strict=True)  # each rank's part of each batch's loss
    return Replay(timeline, comparison, tuple(sum(parts) / session.replicas for parts in by_step), tuple(norms),
                  latencies(timeline, plan) if paced and timeline.operations else None)

"""Replaying a plan: what ``weft replay plan.json`` does on each rank that ``torchrun`` starts."""

from __future__ import annotations

import importlib
import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.pacing import Latencies, latencies
from runtime.plan import Plan, load_plan
from runtime.timeline import Comparison, Measured, Timeline, compare, save_timeline
from runtime.transports import TransportError, parse_transport

if TYPE_CHECKING:
    import torch

    from runtime.checkpoint import Checkpoints
    from runtime.executor import Executor, Worker
    from runtime.prediction import Prediction
    from runtime.program import Reduce
    from runtime.session import Session
    from runtime.training import Training

__all__ = ["Replay", "ReplayError", "load_factory", "replay", "replay_alone", "run_emulated", "run_training"]

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


class ReplayError(ValueError):
    """A replay that cannot begin, by a mistake of its user: one sentence."""


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
           resume: bool = False, replicas: int = 1, paced: bool = False) -> Replay | None:
    """Run the plan in ``plan_path`` as one of the ranks that ``torchrun`` started; the result is on rank 0.

    With ``emulate``, blocks sleep for their predicted durations. Otherwise ``stages`` is ``"module:function"``, and
    ``function(plan, rank)`` gives that rank's :class:`~runtime.training.Training`, which runs on GPUs if this machine
    has one for each of its ranks. A function with an argument named ``session`` is handed the
    :class:`~runtime.session.Session` too: its :meth:`~runtime.session.Session.group` is what the layers of a stage on
    several ranks meet in. ``timeout`` is in seconds, for one instruction or one wait: past it every rank stops, says
    why, and exits with 1. ``time_scale`` makes emulated time that many times as long; a time unit that is not s, ms or
    us is emulated as a second. ``replicas`` copies of the plan train together, each on its part of every batch. With
    ``paced``, no micro-batch begins before the plan has it begin (:mod:`runtime.pacing`); otherwise all are there from
    the start.

    ``transport`` carries the messages: see :mod:`runtime.transports`; by default NCCL on GPUs, else gloo. ``reserve``
    is in bytes: what a device has beyond its capacity in the problem, for messages that arrive early (default: 1 GiB).
    Training is saved to the folder ``checkpoint`` after every ``checkpoint_every`` batches and after the last; with
    ``resume`` it goes on from the newest checkpoint there.

    Raises :class:`ReplayError` or :class:`~solver.files.FormatError` on rank 0 for a mistake of the user; the other
    ranks then exit with 2 in silence.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        plan = _plan(plan_path, emulate, stages, timeout, timeline_path, time_scale, replicas)
        _require_sense(emulate, transport, checkpoint, checkpoint_every, resume)
        if paced and not emulate and _seconds_per_unit(plan) is None:
            raise ReplayError(f"--paced needs a plan in s, ms or us; {os.fspath(plan_path)} is in "
                              f"{plan.problem.time_unit!r}, which says nothing of when a micro-batch arrives")
    except ValueError:
        if rank == 0:
            raise
        time.sleep(1)  # torchrun stops all ranks when the first one exits: let rank 0 speak
        raise SystemExit(2) from None

    from runtime.session import RESERVE, SessionError, join

    with join(timeout, None if emulate else _device(transport), transport=transport,
              reserve=RESERVE if reserve is None else reserve, replicas=replicas) as session:
        session.add_groups(plan.groups)
        if emulate:
            result = run_emulated(plan, session, time_scale * (_seconds_per_unit(plan) or 1.0), paced)
        else:
            assert stages is not None
            session.watch.doing(f"loading {stages}")
            from runtime.checkpoint import Checkpoints

            saving = None if checkpoint is None else Checkpoints(Path(checkpoint), checkpoint_every, resume)
            result = run_training(plan, session, _training(stages, plan, session), saving, paced)
        if result is not None and timeline_path is not None:
            try:
                save_timeline(result.timeline, timeline_path)
            except OSError as error:
                raise SessionError(f"{os.fspath(timeline_path)}: cannot be written: {error.strerror}") from None
    return result


def replay_alone(plan_path: str | os.PathLike[str], ranks: Sequence[int] | None = None, *, stages: str,
                 device: str | None = None, repeats: int = 3) -> Prediction:
    """Run ``ranks`` of the plan in ``plan_path`` (default: all), one after another, each alone in this process.

    ``stages`` is as for :func:`replay`; ``device`` is ``"cpu"`` or ``"cuda"``, by default what there is. Medians are
    over ``repeats`` steps. See :mod:`runtime.alone` for what is run, :mod:`runtime.prediction` for what is made of it.
    Raises :class:`ReplayError`, :class:`~runtime.session.SessionError` or :class:`~solver.files.FormatError`.
    """
    import gc

    import torch

    from runtime.alone import alone, measure_rank
    from runtime.prediction import predict

    plan = load_plan(plan_path)
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ReplayError(f"--device is {device!r}, it must be cpu, or cuda where torch has one")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    costs = []
    for rank in range(len(plan.program.ranks)) if ranks is None else ranks:
        with alone(plan, rank, where) as session:
            costs.append(measure_rank(plan, session, _training(stages, plan, session), repeats))
        gc.collect()  # what this rank held, before the next one is built
        if where.type == "cuda":
            torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "a CPU, one thread"
    return predict(plan, costs, name, _seconds_per_unit(plan))


def run_emulated(plan: Plan, session: Session, seconds_per_unit: float, paced: bool = False) -> Replay | None:
    """Run ``plan`` once with emulated blocks; the result is on rank 0. ``paced``: see :func:`replay`."""
    from runtime.emulate import Emulation

    session.watch.doing("learning how long a short sleep lasts")
    executor = _executor(plan, session, Emulation(plan, seconds_per_unit, session.now),
                         pace=seconds_per_unit if paced else None)
    measured = executor.run()
    executor.close()
    return _result(plan, session, seconds_per_unit, measured, paced=paced)


def _executor(plan: Plan, session: Session, worker: Worker, reduce: Callable[[Reduce], None] | None = None,
              pace: float | None = None) -> Executor:
    """The executor of a plan; with ``pace``, the seconds of one of its time units, micro-batches arrive as planned."""
    from runtime.executor import Executor
    from runtime.pacing import Paced

    if pace is not None:
        worker = Paced(worker, plan, session, pace, lambda: executor.begun)
    executor = Executor(plan, session, worker, reduce=reduce)
    return executor


def run_training(plan: Plan, session: Session, training: Training,
                 checkpoints: Checkpoints | None = None, paced: bool = False) -> Replay | None:
    """Run ``plan`` for each batch of ``training``, stepping its optimizer; the result is on rank 0.

    With ``checkpoints``, training is saved, and perhaps taken up where it was left. ``paced``: see :func:`replay`.

    After each batch every parameter's gradient is that of the mean loss over the whole batch, over all replicas; with
    :class:`~runtime.optim.AdamA` it has been folded into the optimizer's moments and freed instead.
    """
    from runtime.health import require_finite
    from runtime.reduction import Reduction
    from runtime.session import SessionError
    from runtime.signature import SignatureError, require_signature
    from runtime.stages import Stages

    try:
        require_signature(plan, training)
    except SignatureError as error:
        raise SessionError(str(error)) from None
    worker = Stages(plan, session, training)
    gradients = Reduction(plan, session, training, worker.folding)
    executor = _executor(gradients.plan, session, worker, gradients.start, _seconds_per_unit(plan) if paced else None)
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
    return _result(plan, session, _seconds_per_unit(plan), measured, losses if worker.wiring.has_losses else (), norms,
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


def _plan(path: str | os.PathLike[str], emulate: bool, stages: str | None, timeout: float,
          timeline_path: str | os.PathLike[str] | None, time_scale: float, replicas: int) -> Plan:
    """The plan, after everything that can be said against the call without the other ranks."""
    name = os.fspath(path)
    if emulate == (stages is not None):
        raise ReplayError(f"{name}: say what to run: either --emulate, or --stages MODULE:FUNCTION")
    for option, value in (("--timeout", timeout), ("--time-scale", time_scale)):
        if not 0 < value < float("inf"):
            raise ReplayError(f"{option} is {value}, it must be a number greater than 0")
    if replicas < 1:
        raise ReplayError(f"--replicas is {replicas}, it must be at least 1")
    plan = load_plan(path)
    ranks = len(plan.program.ranks) * replicas
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        command = shlex.join(["torchrun", "--standalone", f"--nproc-per-node={ranks}", "-m", "weft", "replay", name,
                              *(["--emulate"] if emulate else ["--stages", str(stages)]),
                              *(["--replicas", str(replicas)] if replicas > 1 else [])])
        raise ReplayError(f"{name}: a plan runs under torchrun, one process a rank; use: {command}")
    if int(os.environ["WORLD_SIZE"]) != ranks:
        copies = f" ({replicas} replicas)" if replicas > 1 else ""
        started = os.environ["WORLD_SIZE"]
        raise ReplayError(f"{name}: the plan is for {ranks} ranks{copies}, but {started} were started; use torchrun"
                          f" --nproc-per-node={ranks}")
    if timeline_path is not None and not os.access(Path(timeline_path).absolute().parent, os.W_OK):
        raise ReplayError(f"{os.fspath(timeline_path)}: cannot be written, its folder is missing or not writable")
    return plan


def _require_sense(emulate: bool, transport: str | None, checkpoint: str | os.PathLike[str] | None,
                   checkpoint_every: int, resume: bool) -> None:
    """Refuse options that mean nothing, or nothing together."""
    if transport is not None:
        try:
            parse_transport(transport)
        except TransportError as error:
            raise ReplayError(str(error)) from None
    if checkpoint_every < 0:
        raise ReplayError(f"--checkpoint-every is {checkpoint_every}, it must be a number of batches")
    if checkpoint is None and (checkpoint_every or resume):
        raise ReplayError("--checkpoint-every and --resume need --checkpoint FOLDER")
    if checkpoint is not None and emulate:
        raise ReplayError("--checkpoint is for training: an emulated run has nothing to save")
    if checkpoint is not None and not (checkpoint_every or resume):
        raise ReplayError("--checkpoint needs --checkpoint-every N, or --resume")


def _device(transport: str | None) -> torch.device:
    import torch

    if transport == "shared" and torch.cuda.is_available():  # ranks may share a GPU
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if transport is not None and transport != "nccl":
        return torch.device("cpu")
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if enough else torch.device("cpu")


def _seconds_per_unit(plan: Plan) -> float | None:
    return SECONDS.get(plan.problem.time_unit)


def load_factory(factory: str) -> Callable[..., Any]:
    """The function that ``"module:function"`` names. Raises :class:`ReplayError`."""
    module_name, colon, function_name = factory.partition(":")
    if not colon:
        raise ReplayError(f"--stages is {factory!r}, it must be MODULE:FUNCTION")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the user's own module, from the folder where the command runs
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ReplayError(f"--stages {factory}: {error}") from None
    return function


def _training(factory: str, plan: Plan, session: Session) -> Training:
    from runtime.session import SessionError
    from runtime.training import Training

    try:
        function = load_factory(factory)
    except ReplayError as error:
        raise SessionError(str(error)) from None
    wants_session = "session" in inspect.signature(function).parameters
    training = function(plan, session.rank, **({"session": session} if wants_session else {}))
    if not isinstance(training, Training):
        raise SessionError(f"--stages {factory} gave {type(training).__name__}, it must give a "
                           "runtime.training.Training")
    return training

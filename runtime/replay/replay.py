"""Replaying a plan: what ``weft replay plan.json`` does on each rank that ``torchrun`` starts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.plan.timeline import save_timeline
from weft.runtime.replay.options import ReplayError, ReplayOptions, checked_plan, seconds_in_unit, training_of
from weft.runtime.replay.result import Replay
from weft.runtime.transports.registry import device_for

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session
    from weft.runtime.replay.prediction import Prediction

__all__ = ["replay", "replay_single_rank"]


def replay(plan_path: str | os.PathLike[str], options: ReplayOptions) -> Replay | None:
    """Run the plan in ``plan_path`` as one of the ranks that ``torchrun`` started; the result is on rank 0.

    Raises :class:`~weft.runtime.replay.options.ReplayError` or :class:`~weft.solver.io.entries.FormatError` on rank 0
    for a mistake of the user; the other ranks then exit with 2 and print nothing.
    """
    try:
        plan = checked_plan(plan_path, options)
    except ValueError:
        if int(os.environ.get("RANK", "0")) == 0:
            raise
        time.sleep(1)  # torchrun stops all ranks when the first one exits: let rank 0 speak
        raise SystemExit(2) from None

    from weft.runtime.ranks.session import RESERVE, SessionError, join

    with join(options.timeout, None if options.emulate else device_for(options.transport),
              transport=options.transport, reserve=RESERVE if options.reserve is None else options.reserve,
              replicas=options.replicas) as session:
        _require_alike(session, options)
        session.add_groups(plan.groups)
        result = _run(plan, session, options)
        if result is not None and options.timeline_path is not None:
            try:
                save_timeline(result.timeline, options.timeline_path)
            except OSError as error:
                raise SessionError(f"{os.fspath(options.timeline_path)}: cannot be written: {error.strerror}") from None
    return result


def _require_alike(session: Session, options: ReplayOptions) -> None:
    """Raise :class:`~weft.runtime.ranks.session.SessionError` where ranks replay in another way. That the plan is the
    same they see when they agree on messages."""
    asked = ("transport", "emulate", "paced", "replicas", "time_scale", "checkpoint_every", "resume")
    session.agree_on({f"--{name.replace('_', '-')}": getattr(options, name) for name in asked},
                     "the options of the replay")


def _run(plan: Plan, session: Session, options: ReplayOptions) -> Replay | None:
    """Run ``plan`` with emulated blocks or with the stages of ``options``."""
    from weft.runtime.replay.run import run_emulated, run_training

    if options.stages is None:
        return run_emulated(plan, session, options.time_scale * (seconds_in_unit(plan) or 1.0), options.paced)
    session.watch.doing(f"loading {options.stages}")
    from weft.runtime.checkpoint.checkpoint import Checkpoints
    from weft.runtime.train.agreement import Allowed

    saving = None if options.checkpoint is None else Checkpoints(Path(options.checkpoint), options.checkpoint_every,
                                                                 options.resume, options.unchecked)
    return run_training(plan, session, training_of(options.stages, plan, session), saving, options.paced,
                        Allowed(options.allow_unsplit, options.allow_other_model))


def replay_single_rank(plan_path: str | os.PathLike[str], ranks: Sequence[int] | None = None, *, stages: str,
                       device: str | None = None, repeats: int = 3, allow_unsplit: bool = False,
                       allow_other_model: bool = False) -> Prediction:
    """Run ``ranks`` of the plan in ``plan_path`` (default: all), one after another, each by itself in this process.

    ``stages`` is as in :class:`~weft.runtime.replay.options.ReplayOptions`; ``device`` is ``"cpu"`` or ``"cuda"``, by
    default what there is. Medians are over ``repeats`` steps. See :mod:`weft.runtime.replay.single_rank` for what is
    run, :mod:`weft.runtime.replay.prediction` for what is made of it. Raises
    :class:`~weft.runtime.replay.options.ReplayError`, :class:`~weft.runtime.ranks.session.SessionError` or
    :class:`~weft.solver.io.entries.FormatError`.
    """
    import gc

    import torch

    from weft.runtime.replay.prediction import predict
    from weft.runtime.replay.single_rank import measure_rank, single_rank
    from weft.runtime.train.agreement import Allowed

    plan = load_plan(plan_path)
    if plan.why_not_trained is not None:
        raise ReplayError(f"{os.fspath(plan_path)}: {plan.why_not_trained}")
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ReplayError(f"--device is {device!r}, it must be cpu, or cuda where torch has one")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    costs = []
    for rank in range(len(plan.program.ranks)) if ranks is None else ranks:
        with single_rank(plan, rank, where) as session:
            costs.append(measure_rank(plan, session, training_of(stages, plan, session), repeats,
                                      Allowed(allow_unsplit, allow_other_model)))
        gc.collect()  # what this rank held, before the next one is built
        if where.type == "cuda":
            torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "a CPU, one thread"
    return predict(plan, costs, name, seconds_in_unit(plan))

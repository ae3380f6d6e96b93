"""What a replay is asked for: its plan, its options and its stages, checked before the other ranks are waited for."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from weft.runtime.interface.factory import FactoryError, load_factory, takes_session
from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.transports import TransportError, parse_transport

if TYPE_CHECKING:
    import torch

    from weft.runtime.interface.training import Training
    from weft.runtime.ranks.session import Session

__all__ = ["ReplayError", "asked_plan", "device_for", "require_clock", "require_sense", "seconds_in_unit",
           "training_of"]

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


class ReplayError(ValueError):
    """A replay that cannot begin, by a mistake of its user: one sentence."""


def asked_plan(path: str | os.PathLike[str], emulate: bool, stages: str | None, timeout: float,
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


def require_sense(emulate: bool, transport: str | None, checkpoint: str | os.PathLike[str] | None,
                  checkpoint_every: int, resume: bool, unchecked: bool) -> None:
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
    if unchecked and not resume:
        raise ReplayError("--unchecked is for a checkpoint to go on from: it needs --resume")
    if checkpoint is not None and emulate:
        raise ReplayError("--checkpoint is for training: an emulated run has nothing to save")
    if checkpoint is not None and not (checkpoint_every or resume):
        raise ReplayError("--checkpoint needs --checkpoint-every N, or --resume")


def require_clock(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Refuse to pace real stages by a plan whose times are no seconds."""
    if seconds_in_unit(plan) is None:
        raise ReplayError(f"--paced needs a plan in s, ms or us; {os.fspath(path)} is in {plan.problem.time_unit!r}, "
                          "which says nothing of when a micro-batch arrives")


def device_for(transport: str | None) -> torch.device:
    """Where a rank's stages run: on a GPU of its own if each rank of this machine has one; over shared memory on any;
    else on the CPU."""
    import torch

    if transport == "shared" and torch.cuda.is_available():  # ranks may share a GPU
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if transport is not None and transport != "nccl":
        return torch.device("cpu")
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if enough else torch.device("cpu")


def seconds_in_unit(plan: Plan) -> float | None:
    """What one of the plan's time units is in seconds; ``None`` if it says nothing in seconds."""
    return SECONDS.get(plan.problem.time_unit)


def training_of(factory: str, plan: Plan, session: Session) -> Training:
    """What the function that ``factory`` names gives for this rank. Raises
    :class:`~weft.runtime.ranks.session.SessionError`."""
    from weft.runtime.ranks.session import SessionError

    try:
        function = load_factory(factory)
        return function(plan, session.rank, **({"session": session} if takes_session(function) else {}))
    except FactoryError as error:
        raise SessionError(str(error)) from error

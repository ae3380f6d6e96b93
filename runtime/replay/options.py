"""The options of a replay, its plan and its stages, checked before waiting for the other ranks."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from weft.runtime.interface.factory import FactoryError, load_factory, takes_session
from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.registry import parse_transport

if TYPE_CHECKING:
    from weft.runtime.interface.training import Training
    from weft.runtime.ranks.session import Session

Checked = TypeVar("Checked")

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


class ReplayError(ValueError):
    """A replay cannot start because of invalid input; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class TogetherOptions:
    """The options that one training and several jobs share; see :class:`ReplayOptions`."""

    timeout: float = 60.0
    time_scale: float = 1.0
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 0
    resume: bool = False
    allow_unsplit: bool = False
    allow_other_model: bool = False

    def require_numbers(self) -> None:
        """Raise :class:`ReplayError` for invalid times."""
        for option, value in (("--timeout", self.timeout), ("--time-scale", self.time_scale)):
            if not 0 < value < float("inf"):
                raise ReplayError(f"{option} is {value}, it must be a number greater than 0")

    def require_saving(self) -> None:
        """Raise :class:`ReplayError` for checkpoints without a folder, or never saved."""
        if self.checkpoint is None and (self.checkpoint_every or self.resume):
            raise ReplayError("--checkpoint-every and --resume need --checkpoint FOLDER")
        if self.checkpoint is not None and not (self.checkpoint_every or self.resume):
            raise ReplayError("--checkpoint needs --checkpoint-every N, or --resume")


def require_processes(name: str, what: str, ranks: int, arguments: Sequence[str], copies: str = "") -> None:
    """Refuse a call of ``weft replay NAME ARGUMENTS`` outside ``torchrun``, and a number of processes other than the
    ``ranks`` of the plan, or the job."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        command = shlex.join(["torchrun", "--standalone", f"--nproc-per-node={ranks}", "-m", "weft", "replay", name,
                              *arguments])
        raise ReplayError(f"{name}: a {what} runs under torchrun, one process a rank; use: {command}")
    if int(os.environ["WORLD_SIZE"]) != ranks:
        raise ReplayError(f"{name}: the {what} is for {ranks} ranks{copies}, but {os.environ['WORLD_SIZE']} were "
                          f"started; use torchrun --nproc-per-node={ranks}")


def on_rank_0(check: Callable[[], Checked]) -> Checked:
    """The result of ``check``. Its error is reported by rank 0 alone: the other ranks exit with 2 and print nothing."""
    try:
        return check()
    except ValueError:
        if int(os.environ.get("RANK", "0")) == 0:
            raise
        time.sleep(1)  # torchrun stops all ranks when the first one exits: let rank 0 report
        raise SystemExit(2) from None


@dataclass(frozen=True)
class ReplayOptions(TogetherOptions):
    """How a plan is replayed; the same on all ranks.

    Either ``emulate``: blocks sleep for their predicted durations, and no model is run. Or ``stages``,
    ``"module:function"`` or ``"file.py:function"``, where ``function(plan, rank)`` returns that rank's
    :class:`~weft.runtime.interface.training.Training`, which runs on GPUs if this machine has one for each of its
    ranks. A function with an argument named ``session`` also gets the :class:`~weft.runtime.ranks.session.Session`: its
    :meth:`~weft.runtime.ranks.session.Session.group` is the process group of the layers of a stage on several ranks.
    ``timeout`` is in seconds, for one instruction or one wait: past it every rank stops, says why, and exits with 1.
    The measured timeline is written to ``timeline_path``. ``time_scale`` multiplies emulated time; a time unit that is
    not s, ms or us is emulated as a second. ``replicas`` copies of the plan train together, each on its part of every
    batch. With ``paced``, no micro-batch begins before the plan begins it (:mod:`weft.runtime.execute.pacing`);
    otherwise all are there from the start.

    ``transport`` carries the messages: see :mod:`weft.runtime.transports`; by default NCCL on GPUs, else gloo.
    ``reserve`` is in bytes: a device's memory beyond its capacity in the problem, for messages that arrive early
    (default: 1 GiB). Training is saved to the folder ``checkpoint`` after every ``checkpoint_every`` batches and after
    the last; with ``resume`` it continues from the newest checkpoint there, which must be whole by its checksums
    (without it, a folder with a checkpoint is refused); with ``unchecked`` also from one of an earlier weft, which has
    none.

    Stages that differ from the plan's are refused: unless ``allow_unsplit``, those whose backward the plan splits but
    the executor cannot; unless ``allow_other_model``, those with other parameters, ties or values between them than the
    plan's problem (:mod:`weft.runtime.train.agreement`).
    """

    emulate: bool = False
    stages: str | None = None
    timeline_path: str | os.PathLike[str] | None = None
    transport: str | None = None
    reserve: int | None = None
    unchecked: bool = False
    replicas: int = 1
    paced: bool = False


def checked_plan(path: str | os.PathLike[str], options: ReplayOptions) -> Plan:
    """The plan in ``path``, after all checks that need no other rank.

    Raises :class:`ReplayError` and :class:`~weft.solver.io.entries.FormatError`.
    """
    _require_valid(os.fspath(path), options)
    plan = load_plan(path)
    _require_ranks(os.fspath(path), plan, options)
    if not options.emulate and plan.why_not_trained is not None:
        raise ReplayError(f"{os.fspath(path)}: {plan.why_not_trained}; use --emulate")
    if options.timeline_path is not None and not os.access(Path(options.timeline_path).absolute().parent, os.W_OK):
        raise ReplayError(f"{os.fspath(options.timeline_path)}: cannot be written, its folder is missing or not "
                          "writable")
    _require_consistent(options)
    if options.paced and not options.emulate and seconds_in_unit(plan) is None:
        raise ReplayError(f"--paced needs a plan in s, ms or us; {os.fspath(path)} is in {plan.problem.time_unit!r}, "
                          "which says nothing of when a micro-batch arrives")
    return plan


def _require_valid(name: str, options: ReplayOptions) -> None:
    """Refuse values that no plan can run with."""
    if options.emulate == (options.stages is not None):
        raise ReplayError(f"{name}: say what to run: either --emulate, or --stages MODULE:FUNCTION")
    options.require_numbers()
    if options.replicas < 1:
        raise ReplayError(f"--replicas is {options.replicas}, it must be at least 1")


def _require_ranks(name: str, plan: Plan, options: ReplayOptions) -> None:
    """Refuse a call outside ``torchrun``, and a number of processes other than the plan's."""
    copies = options.replicas > 1
    require_processes(name, "plan", len(plan.program.ranks) * options.replicas, [
        *(["--emulate"] if options.emulate else ["--stages", str(options.stages)]),
        *["--replicas", str(options.replicas)] * copies], f" ({options.replicas} replicas)" * copies)


def _require_consistent(options: ReplayOptions) -> None:
    """Refuse options that have no effect, or contradict each other."""
    if options.transport is not None:
        try:
            parse_transport(options.transport)
        except TransportError as error:
            raise ReplayError(str(error)) from None
    if options.checkpoint_every < 0:
        raise ReplayError(f"--checkpoint-every is {options.checkpoint_every}, it must be a number of batches")
    options.require_saving()
    if options.unchecked and not options.resume:
        raise ReplayError("--unchecked is for a checkpoint to go on from: it needs --resume")
    if options.checkpoint is not None and options.emulate:
        raise ReplayError("--checkpoint is for training: an emulated run has nothing to save")
    if options.emulate and (options.allow_unsplit or options.allow_other_model):
        raise ReplayError("--allow-unsplit and --allow-other-model are about stages: they need --stages")


def seconds_in_unit(plan: Plan) -> float | None:
    """The length of one of the plan's time units in seconds; ``None`` if it is not a unit of time."""
    return SECONDS.get(plan.problem.time_unit)


def training_of(factory: str, plan: Plan, session: Session) -> Training:
    """The training of the function ``factory`` for this rank. Raises
    :class:`~weft.runtime.ranks.session.SessionError`."""
    from weft.runtime.ranks.session import SessionError

    try:
        function = load_factory(factory)
        return function(plan, session.rank, **({"session": session} if takes_session(function) else {}))
    except FactoryError as error:
        raise SessionError(str(error)) from error

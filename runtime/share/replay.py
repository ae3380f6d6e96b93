"""Training the jobs of a plan: what ``weft replay plan.json --stages a=... --stages b=...`` does on each rank."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.plan.program import ProgramError
from weft.runtime.replay.options import ReplayError, seconds_in_unit
from weft.runtime.share.job_plans import job_plans

if TYPE_CHECKING:
    from weft.runtime.interface.training import Training
    from weft.runtime.ranks.session import Session
    from weft.runtime.share.run import Factory, SharedRun

__all__ = ["SharedOptions", "replay_shared"]


@dataclass(frozen=True)
class SharedOptions:
    """How the jobs of a plan are trained; the same on all ranks.

    ``stages``: for each job ``"module:function"`` or ``"file.py:function"``, as
    :class:`~weft.runtime.replay.options.ReplayOptions` has them for one training; each function gets its job's own plan
    and session, of one rank with a replica on each process. ``timeout``: seconds for one block or one wait. With
    ``stretched`` a block takes its planned time at least, times ``time_scale``. ``stop_folder``: where a file of its
    name ends a job. The last two allow what they allow there.
    """

    stages: Mapping[str, str]
    timeout: float = 60.0
    stretched: bool = False
    time_scale: float = 1.0
    stop_folder: str | os.PathLike[str] | None = None
    allow_unsplit: bool = False
    allow_other_model: bool = False


def replay_shared(plan_path: str | os.PathLike[str], options: SharedOptions) -> SharedRun | None:
    """Train the jobs of the plan in ``plan_path`` as one of the ranks that ``torchrun`` started; the result is on rank
    0.

    Raises :class:`~weft.runtime.replay.options.ReplayError` or :class:`~weft.solver.io.entries.FormatError` on rank 0
    for a mistake of the user; the other ranks then exit with 2 and print nothing.
    """
    try:
        plan = _checked(os.fspath(plan_path), options)
    except ValueError:
        if int(os.environ.get("RANK", "0")) == 0:
            raise
        time.sleep(1)  # torchrun stops all ranks when the first one exits: let rank 0 speak
        raise SystemExit(2) from None

    from weft.runtime.ranks.session import join
    from weft.runtime.replay.options import training_of
    from weft.runtime.share.run import run_shared
    from weft.runtime.train.agreement import Allowed

    def factory(stages: str) -> Factory:
        def made(own: Plan, session: Session) -> Training:
            return training_of(stages, own, session)
        return made

    scale = options.time_scale * (seconds_in_unit(plan) or 1.0) if options.stretched else 0.0
    with join(options.timeout) as session:
        return run_shared(plan, session, {job: factory(stages) for job, stages in options.stages.items()},
                          seconds_per_unit=scale, allowed=Allowed(options.allow_unsplit, options.allow_other_model),
                          stop_folder=None if options.stop_folder is None else Path(options.stop_folder))


def _checked(name: str, options: SharedOptions) -> Plan:
    """The plan, after every check of the call that needs no other rank."""
    for option, value in (("--timeout", options.timeout), ("--time-scale", options.time_scale)):
        if not 0 < value < float("inf"):
            raise ReplayError(f"{option} is {value}, it must be a number greater than 0")
    if options.time_scale != 1.0 and not options.stretched:
        raise ReplayError("--time-scale is of planned times: with stages of jobs it needs --stretched")
    plan = load_plan(name)
    try:
        jobs = [job.name for job in job_plans(plan)]
    except ProgramError as error:
        raise ReplayError(f"{name}: {error}") from None
    for job in jobs:
        if job not in options.stages:
            raise ReplayError(f"{name}: the plan has the jobs {', '.join(jobs)}, and --stages says nothing of {job!r}: "
                              f"give --stages {job}=MODULE:FUNCTION")
    for job in options.stages:
        if job not in jobs:
            raise ReplayError(f"--stages names the job {job!r}, and {name} has the jobs {', '.join(jobs)}")
    if options.stop_folder is not None and not Path(options.stop_folder).is_dir():
        raise ReplayError(f"--stop-folder {os.fspath(options.stop_folder)}: there is no such folder")
    _require_ranks(name, plan, options)
    return plan


def _require_ranks(name: str, plan: Plan, options: SharedOptions) -> None:
    """Refuse a call outside ``torchrun``, and another number of processes than the plan's."""
    ranks = len(plan.program.ranks)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        stages = [part for job, own in options.stages.items() for part in ("--stages", f"{job}={own}")]
        command = shlex.join(["torchrun", "--standalone", f"--nproc-per-node={ranks}", "-m", "weft", "replay", name,
                              *stages])
        raise ReplayError(f"{name}: a plan runs under torchrun, one process a rank; use: {command}")
    if int(os.environ["WORLD_SIZE"]) != ranks:
        raise ReplayError(f"{name}: the plan is for {ranks} ranks, but {os.environ['WORLD_SIZE']} were started; use "
                          f"torchrun --nproc-per-node={ranks}")

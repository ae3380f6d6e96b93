"""Running the jobs of a plan: what ``weft replay plan.json --stages a=... --stages b=...`` does on each rank.

In one set of processes (:func:`replay_shared`) all jobs of a rank are threads of its process, which ``torchrun``
started. One job by itself (:func:`replay_job`) has processes of its own, one for each of its ranks, and takes turns
with other jobs' through a folder of the machine; so it may be killed, and is the only one that ends.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.plan.program import ProgramError
from weft.runtime.replay.options import ReplayError, seconds_in_unit
from weft.runtime.share.boards import FileBoard
from weft.runtime.share.job_plans import JobPlan, orders_of
from weft.runtime.share.taking_apart import job_plans
from weft.runtime.share.turns import Turns, cells_of

if TYPE_CHECKING:
    from weft.runtime.interface.training import Training
    from weft.runtime.ranks.session import Session
    from weft.runtime.share.result import SharedRun
    from weft.runtime.share.run import Factory

__all__ = ["SharedOptions", "checked_shared", "losses_path", "replay_job", "replay_shared", "result_path", "turns_of"]

#: Seconds that a job waits for another one's processes at least: they import torch and build a model before they come.
PATIENCE = 120.0


@dataclass(frozen=True)
class SharedOptions:
    """How the jobs of a plan are run; the same on all ranks.

    ``stages``: for each job ``"module:function"`` or ``"file.py:function"``, as
    :class:`~weft.runtime.replay.options.ReplayOptions` has them for one training; each function gets its job's own plan
    and session: of a data parallel job one rank with a replica on each process, of any other its ranks. ``timeout``:
    seconds for one block or one wait. With ``stretched`` a block takes its planned time at least, times ``time_scale``.
    ``stop_folder``: where a file of its name ends a job.

    For a job with processes of its own: ``job`` names it; ``turns`` is a folder that the processes of all jobs on this
    machine share, new for each run. It is saved in a folder of its name in ``checkpoint`` after every
    ``checkpoint_every`` batches and after the last, and goes on from there with ``resume``, as one training does.
    Each rank writes its loss of each batch into the folder of turns, the first one what all came to.

    ``allow_unsplit`` and ``allow_other_model`` allow what they allow there.
    """

    stages: Mapping[str, str]
    timeout: float = 60.0
    stretched: bool = False
    time_scale: float = 1.0
    stop_folder: str | os.PathLike[str] | None = None
    job: str | None = None
    turns: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 0
    resume: bool = False
    allow_unsplit: bool = False
    allow_other_model: bool = False


def replay_shared(plan_path: str | os.PathLike[str], options: SharedOptions) -> SharedRun | None:
    """Run the jobs of the plan in ``plan_path`` as one of the ranks that ``torchrun`` started; the result is on rank 0.

    Raises :class:`~weft.runtime.replay.options.ReplayError` or :class:`~weft.solver.io.entries.FormatError` on rank 0
    for a mistake of the user; the other ranks then exit with 2 and print nothing.
    """
    plan, _ = _on_rank_0(lambda: _with_ranks(os.fspath(plan_path), options))

    from weft.runtime.ranks.session import join
    from weft.runtime.share.job_runner import RunOptions
    from weft.runtime.share.run import run_shared
    from weft.runtime.train.agreement import Allowed

    with join(options.timeout) as session:
        return run_shared(plan, session, {job: _factory(stages) for job, stages in options.stages.items()},
                          options=RunOptions(_scale(plan, options),
                                             Allowed(options.allow_unsplit, options.allow_other_model)),
                          stop_folder=_folder(options.stop_folder))


def replay_job(plan_path: str | os.PathLike[str], options: SharedOptions) -> SharedRun | None:
    """Run one job, ``options.job``, as one of its own processes; the result is on the first of them.

    Raises what :func:`replay_shared` does.
    """
    plan, job = _on_rank_0(lambda: _with_ranks(os.fspath(plan_path), options))
    assert job is not None

    from weft.runtime.checkpoint.checkpoint import Checkpoints
    from weft.runtime.ranks.session import join
    from weft.runtime.share.job_runner import RunOptions
    from weft.runtime.share.run import run_job
    from weft.runtime.train.agreement import Allowed

    number = int(os.environ["RANK"])
    saving = _folder(options.checkpoint)
    checkpoints = None if saving is None else Checkpoints(saving / job.name, options.checkpoint_every, options.resume)
    folder = _folder(options.turns)
    assert folder is not None
    tell = _told_in(folder, job.name, number)
    with join(options.timeout, replicas=job.replicas) as session:
        turns, board = _come(plan, job, job.ranks[number], options)
        with closing(board):
            found = run_job(plan, job.name, session, _factory(options.stages[job.name]), turns,
                            options=RunOptions(_scale(plan, options),
                                               Allowed(options.allow_unsplit, options.allow_other_model),
                                               checkpoints=checkpoints, tell=tell),
                            stop_folder=_folder(options.stop_folder))
            turns.leave(job.name)
    if found is not None:
        result = result_path(folder, job.name)
        partial = result.with_suffix(".partial")  # whoever is killed while it writes has written nothing
        partial.write_text(json.dumps(asdict(found.jobs[0])))
        partial.replace(result)
    return found


def turns_of(plan: Plan, jobs: tuple[JobPlan, ...], rank: int, folder: Path, patience: float, *,
             told_after: float = math.inf, within: float = math.inf) -> tuple[Turns, FileBoard]:
    """The turns of ``rank`` on the board in ``folder``, whose waits are those of
    :class:`~weft.runtime.share.boards.FileBoard`. Raises ``ValueError`` where it is of another plan."""
    orders = orders_of(plan, rank)
    counts = {job.name: job.batches * job.size for job in jobs}
    board = FileBoard(folder / f"rank{rank}.turns", cells_of(orders, list(counts)), plan.digest, list(counts), patience,
                      told_after=told_after, within=within)
    return Turns(orders, counts, board), board


def _come(plan: Plan, job: JobPlan, rank: int, options: SharedOptions) -> tuple[Turns, FileBoard]:
    from weft.runtime.ranks.session import SessionError

    jobs = job_plans(plan)
    folder = _folder(options.turns)
    assert folder is not None
    try:
        turns, board = turns_of(plan, jobs, rank, folder, max(options.timeout, PATIENCE), told_after=options.timeout)
        board.hold([other.name for other in jobs].index(job.name))
        if not turns.come(job.name):
            raise ValueError(f"{folder}: the job {job.name} was there before, or came so late that the others went on "
                             "without it: its turns are over; give each run a folder of its own")
    except (OSError, ValueError) as error:
        raise SessionError(str(error)) from None
    return turns, board


def result_path(folder: Path, job: str) -> Path:
    """Where the first process of ``job`` writes what it came to."""
    return folder / f"{quote(job, safe='')}.result"


def losses_path(folder: Path, job: str, number: int) -> Path:
    """Where process ``number`` of ``job`` writes its losses, a line a batch."""
    return folder / f"{quote(job, safe='')}.{number}.losses"


def _told_in(folder: Path, job: str, number: int) -> Callable[[int, float], None]:
    """What writes each batch's loss on this rank into ``folder``, for whoever looks at what a killed job had made."""
    path = losses_path(folder, job, number)

    def tell(batch: int, loss: float) -> None:
        with path.open("a") as file:
            file.write(json.dumps([batch, loss]) + "\n")
    return tell


def _factory(stages: str) -> Factory:
    def made(own: Plan, session: Session) -> Training:
        from weft.runtime.replay.options import training_of

        return training_of(stages, own, session)
    return made


def _scale(plan: Plan, options: SharedOptions) -> float:
    return options.time_scale * (seconds_in_unit(plan) or 1.0) if options.stretched else 0.0


def _folder(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


def _on_rank_0(check: Callable[[], tuple[Plan, JobPlan | None]]) -> tuple[Plan, JobPlan | None]:
    """What ``check`` gives. What it raises is said by rank 0 alone."""
    try:
        return check()
    except ValueError:
        if int(os.environ.get("RANK", "0")) == 0:
            raise
        time.sleep(1)  # torchrun stops all ranks when the first one exits: let rank 0 speak
        raise SystemExit(2) from None


def _with_ranks(name: str, options: SharedOptions) -> tuple[Plan, JobPlan | None]:
    """The plan and the one job that is asked for, after every check of the call that needs no other rank."""
    plan, jobs = checked_shared(name, options)
    job = next((job for job in jobs if job.name == options.job), None)
    _require_ranks(name, len(plan.program.ranks) if job is None else len(job.ranks), options)
    return plan, job


def checked_shared(name: str, options: SharedOptions) -> tuple[Plan, tuple[JobPlan, ...]]:
    """The plan in the file ``name`` and its jobs, after every check that says nothing of processes."""
    for option, value in (("--timeout", options.timeout), ("--time-scale", options.time_scale)):
        if not 0 < value < float("inf"):
            raise ReplayError(f"{option} is {value}, it must be a number greater than 0")
    if options.time_scale != 1.0 and not options.stretched:
        raise ReplayError("--time-scale is of planned times: with stages of jobs it needs --stretched")
    _require_saving(options)
    plan = load_plan(name)
    try:
        jobs = job_plans(plan)
    except ProgramError as error:
        raise ReplayError(f"{name}: {error}") from None
    names = [job.name for job in jobs]
    if options.job is not None and options.job not in names:
        raise ReplayError(f"--job names {options.job!r}, and {name} has the jobs {', '.join(names)}")
    for job in names if options.job is None else [options.job]:
        if job not in options.stages:
            raise ReplayError(f"{name}: the plan has the jobs {', '.join(names)}, and --stages says nothing of {job!r}"
                              f": give --stages {job}=MODULE:FUNCTION")
    for job in options.stages:
        if job not in names:
            raise ReplayError(f"--stages names the job {job!r}, and {name} has the jobs {', '.join(names)}")
    for option, folder in (("--stop-folder", options.stop_folder), ("--turns", options.turns)):
        if folder is not None and not Path(folder).is_dir():
            raise ReplayError(f"{option} {os.fspath(folder)}: there is no such folder")
    return plan, jobs


def _require_saving(options: SharedOptions) -> None:
    if options.checkpoint is None and (options.checkpoint_every or options.resume):
        raise ReplayError("--checkpoint-every and --resume need --checkpoint FOLDER")
    if options.checkpoint is not None and not (options.checkpoint_every or options.resume):
        raise ReplayError("--checkpoint needs --checkpoint-every N, or --resume")
    if options.turns is not None and options.job is None:
        raise ReplayError("--turns is for one job that is started by itself: it needs --job JOB")
    if options.job is not None and options.turns is None:
        raise ReplayError("--job needs --turns FOLDER, which the processes of all jobs on this machine share")


def _require_ranks(name: str, ranks: int, options: SharedOptions) -> None:
    """Refuse a call outside ``torchrun``, and another number of processes than the plan's."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        stages = [part for job, own in options.stages.items() for part in ("--stages", f"{job}={own}")]
        one = [] if options.job is None else ["--job", options.job, "--turns", os.fspath(options.turns or "")]
        command = shlex.join(["torchrun", "--standalone", f"--nproc-per-node={ranks}", "-m", "weft", "replay", name,
                              *one, *stages])
        raise ReplayError(f"{name}: a plan runs under torchrun, one process a rank; use: {command}")
    if int(os.environ["WORLD_SIZE"]) != ranks:
        raise ReplayError(f"{name}: the plan is for {ranks} ranks, but {os.environ['WORLD_SIZE']} were started; use "
                          f"torchrun --nproc-per-node={ranks}")

"""Runs one job of a plan on a rank: ``weft replay plan.json --job a --turns FOLDER --stages a=...``.

A job has its own processes, one per rank, and takes turns with those of other jobs through a folder of the machine; so
it may be killed without ending the others. Also the results of jobs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.plan.program import ProgramError
from weft.runtime.ranks.session import Session
from weft.runtime.replay.options import ReplayError, TogetherOptions, on_rank_0, require_processes, seconds_in_unit
from weft.runtime.share.job_runner import JobRunner, RunOptions
from weft.runtime.share.stages_plan import JobPlan, job_plans, orders_of
from weft.runtime.share.stages_runner import DataParallelRunner, StagesRunner
from weft.runtime.share.turns import FileBoard, Turns, cells_of

#: The least seconds that a job waits for another job's processes, which first import torch and build a model.
PATIENCE = 120.0


@dataclass(frozen=True)
class SharedOptions(TogetherOptions):
    """The options of a run of jobs; the same on all ranks.

    ``stages``: for each job ``"module:function"`` or ``"file.py:function"``, as in
    :class:`~weft.runtime.replay.options.ReplayOptions`; each function gets the job's own plan and session: for a data
    parallel job one rank with a replica on each process, for any other job its ranks. ``timeout``: seconds for one
    block or one wait. ``stretched``: a block takes at least its planned time, times ``time_scale``. ``stop_folder``: a
    file there with the name of a job ends the job.

    ``job``: the name of this process's job. ``turns``: a folder that the processes of all jobs on this machine share,
    new for each run; each rank writes its losses there, and the first rank of a job its result. A job is saved in a
    folder of its name in ``checkpoint`` after every ``checkpoint_every`` batches and after the last, and resumes from
    there with ``resume``.

    ``allow_unsplit`` and ``allow_other_model`` as in :class:`~weft.runtime.replay.options.ReplayOptions`.
    """

    stages: Mapping[str, str]
    stretched: bool = False
    stop_folder: str | os.PathLike[str] | None = None
    job: str | None = None
    turns: str | os.PathLike[str] | None = None


def replay_job(plan_path: str | os.PathLike[str], options: SharedOptions) -> SharedRun | None:
    """Run this process's rank of the job ``options.job``; the job's first process returns the result.

    Raises :class:`~weft.runtime.replay.options.ReplayError` or :class:`~weft.solver.io.entries.FormatError` on rank 0
    for invalid input; the other ranks then exit with code 2 and print nothing.
    """
    plan, job = on_rank_0(lambda: _with_ranks(os.fspath(plan_path), options))

    from weft.runtime.checkpoint.checkpoint import Checkpoints
    from weft.runtime.ranks.session import join
    from weft.runtime.train.agreement import Allowed

    number = int(os.environ["RANK"])
    saving = _folder(options.checkpoint)
    checkpoints = None if saving is None else Checkpoints(saving / job.name, options.checkpoint_every, options.resume)
    folder, stopping = Path(options.turns or ""), _folder(options.stop_folder)
    tell = _loss_writer(folder, job.name, number)
    with join(options.timeout, replicas=job.replicas) as session, taking_turns(
            plan, job, number, folder, options.timeout) as turns:
        found = run_job(job, session, _factory(options.stages[job.name]), turns, RunOptions(
            scale_of(plan, options), Allowed(options.allow_unsplit, options.allow_other_model),
            None if stopping is None else stopping / job.name, checkpoints, tell))
    if found is not None:
        result = result_path(folder, job.name)
        partial = result.with_suffix(".partial")  # so that a killed process leaves no partial result
        partial.write_text(json.dumps(asdict(found.jobs[0])))
        partial.replace(result)
    return found


def turns_of(plan: Plan, jobs: tuple[JobPlan, ...], rank: int, folder: Path, patience: float, *,
             report_after: float = math.inf, within: float = math.inf) -> tuple[Turns, FileBoard]:
    """The turns of ``rank`` on the board in ``folder``; other arguments as of
    :class:`~weft.runtime.share.turns.FileBoard`. Raises ``ValueError`` for a board of another plan."""
    orders = orders_of(plan, rank)
    counts = {job.name: job.batches * job.size for job in jobs}
    board = FileBoard(folder / f"rank{rank}.turns", cells_of(orders, list(counts)), plan.digest, list(counts), patience,
                      report_after=report_after, within=within)
    return Turns(orders, counts, board), board


@contextmanager
def taking_turns(plan: Plan, job: JobPlan, number: int, folder: Path, timeout: float) -> Iterator[Turns]:
    """Inside, process ``number`` of ``job`` is registered on the board in ``folder``; yields its turns.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for a folder of another run.
    """
    from weft.runtime.ranks.session import SessionError

    jobs = job_plans(plan)
    try:
        turns, board = turns_of(plan, jobs, job.ranks[number], folder, max(timeout, PATIENCE), report_after=timeout)
        board.hold([other.name for other in jobs].index(job.name))
        if not turns.come(job.name):
            raise ValueError(f"{folder}: the job {job.name} was there before, or came so late that the others went on "
                             "without it: its turns are over; give each run a folder of its own")
    except (OSError, ValueError) as error:
        raise SessionError(str(error)) from None
    with closing(board):
        yield turns
        turns.leave(job.name)


def result_path(folder: Path, job: str) -> Path:
    """The file in which the first process of ``job`` writes its result."""
    return folder / f"{quote(job, safe='')}.result"


def losses_path(folder: Path, job: str, number: int) -> Path:
    """The file in which process ``number`` of ``job`` writes its losses, a line a batch."""
    return folder / f"{quote(job, safe='')}.{number}.losses"


def _loss_writer(folder: Path, job: str, number: int) -> Callable[[int, float], None]:
    """A function that appends each batch's loss on this rank to a file in ``folder``, so that losses of a killed job
    remain."""
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


def scale_of(plan: Plan, options: SharedOptions) -> float:
    """The least length of the time unit of ``plan`` in seconds; 0 if blocks take their own time."""
    return options.time_scale * (seconds_in_unit(plan) or 1.0) if options.stretched else 0.0


def _folder(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


def _with_ranks(name: str, options: SharedOptions) -> tuple[Plan, JobPlan]:
    """The plan and the requested job, after all checks that need no other rank."""
    plan, jobs = checked_shared(name, options)
    job = next(job for job in jobs if job.name == options.job)
    stages = [part for named, own in options.stages.items() for part in ("--stages", f"{named}={own}")]
    require_processes(name, "job", len(job.ranks), [
        "--job", options.job or "", "--turns", os.fspath(options.turns or ""), *stages])
    return plan, job


def checked_shared(name: str, options: SharedOptions) -> tuple[Plan, tuple[JobPlan, ...]]:
    """The plan in the file ``name`` and its jobs, after all checks that do not depend on processes."""
    options.require_numbers()
    if options.time_scale != 1.0 and not options.stretched:
        raise ReplayError("--time-scale is of planned times: with stages of jobs it needs --stretched")
    options.require_saving()
    if options.turns is not None and options.job is None:
        raise ReplayError("--turns is for one job that is started by itself: it needs --job JOB")
    if options.job is not None and options.turns is None:
        raise ReplayError("--job needs --turns FOLDER, which the processes of all jobs on this machine share")
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


#: Makes the training of a job, given its plan and session.
Factory = Callable[[Plan, Session], Training]


@dataclass(frozen=True)
class _Part:
    """A rank's report on a job: its losses, the time and reason of an early end, the number of batches in all and from
    a checkpoint, the time of its end, and whether the rank has losses."""

    losses: Sequence[float]
    fault: tuple[float, str] | None
    steps: int
    first: int
    ended_at: float
    has_losses: bool


def run_job(job: JobPlan, session: Session, factory: Factory, turns: Turns, options: RunOptions) -> SharedRun | None:
    """Run the training of ``job``, which ``factory`` makes, in the processes of ``session``, taking ``turns`` with
    other jobs; the result is returned on process 0.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for a plan that cannot be run and for stages other than the
    job's.
    """
    runner = _runner(job, session, factory, turns, options)
    begun = session.common_start()
    threads = runner.threads()
    for thread in threads:
        thread.start()
    session.watch.rest()
    for thread in threads:
        thread.join()
    if runner.broken is not None:
        raise runner.broken
    runner.close()
    spent = max(0.0, session.now() - begun)  # the job may end before the common start
    found = session.gather((_Part(runner.losses, runner.fault, runner.training.steps, runner.first, runner.ended_at,
                                  runner.has_losses), spent))
    if found is None:
        return None
    return SharedRun((_result(job, [part for part, _ in found], begun),), max(seconds for _, seconds in found), None)


def _runner(job: JobPlan, session: Session, factory: Factory, turns: Turns, options: RunOptions) -> JobRunner:
    held: dict[str, list[int]] = {}
    for device, order in turns.orders.items():
        for name, block, _ in order:
            if name == job.name and device not in held.setdefault(block, []):
                held[block].append(device)
    kind = DataParallelRunner if job.data_parallel else StagesRunner
    return kind(job, session, factory(job.plan, session), turns, held, options)


def _result(job: JobPlan, parts: Sequence[_Part], begun: float) -> JobRun:
    """The result of ``job``, from its ranks' reports."""
    faults = sorted((when, f"{why} (rank {rank})") for rank, part in zip(job.ranks, parts, strict=True)
                    if part.fault is not None for when, why in [part.fault])
    complete = min(len(part.losses) for part in parts)
    losses = tuple(sum(own) / job.replicas for own in zip(*(part.losses[:complete] for part in parts), strict=True))
    first, steps = parts[0].first, parts[0].steps
    fault = faults[0][1] if faults else None if first + complete >= steps else "its turns were taken from it"
    return JobRun(job.name, losses if parts[0].has_losses else (), fault, steps=complete, first=first,
                  seconds=max(0.0, *(part.ended_at - begun for part in parts)))


@dataclass(frozen=True)
class JobRun:
    """The result of a job. ``steps``: the number of batches that it ran, after the ``first`` ones of a checkpoint.
    ``losses``: the mean loss of each (empty in inference). ``fault``: the reason of an early end, or ``None``.
    ``seconds``: until its end."""

    name: str
    losses: tuple[float, ...]
    fault: str | None = None
    steps: int = 0
    first: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class SharedRun:
    """The results of all jobs. ``seconds``: from the common start to the last end. ``predicted``: the plan's time in
    seconds, or ``None``; see :func:`predicted_seconds`."""

    jobs: tuple[JobRun, ...]
    seconds: float
    predicted: float | None

    def __str__(self) -> str:
        lines = [f"measured  {self.seconds:.6g} s"]
        if self.predicted is not None:
            lines.append(f"predicted {self.predicted:.6g} s")
        for job in self.jobs:
            before = f" after {job.first} of a checkpoint" if job.first else ""
            lines.append(f"{job.name}: {job.steps} steps{before}" + (f", then {job.fault}" if job.fault else ""))
            if job.losses:
                lines.append("  loss per step " + " ".join(f"{loss:.6g}" for loss in job.losses))
        return "\n".join(lines)


def predicted_seconds(plan: Plan, jobs: Sequence[JobPlan], runs: Sequence[JobRun], seconds_per_unit: float
                      ) -> float | None:
    """The plan's time in seconds for the batches of ``runs``; ``None`` if ``seconds_per_unit`` is 0 or a job ended
    early."""
    steps = {run.name: run.steps for run in runs if run.fault is None}
    if not seconds_per_unit or len(steps) < len(jobs):
        return None
    return plan.makespan * max(steps[job.name] / job.batches for job in jobs) * seconds_per_unit

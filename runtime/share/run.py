"""All jobs of a plan run on one rank among others, beside each other, until each has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import ProgramError
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.share.data_parallel_runner import DataParallelRunner
from weft.runtime.share.job_plans import JobPlan, orders_of
from weft.runtime.share.job_runner import JobRunner, RunOptions
from weft.runtime.share.job_session import in_one_set
from weft.runtime.share.result import JobRun, SharedRun, predicted_seconds
from weft.runtime.share.stages_runner import StagesRunner
from weft.runtime.share.taking_apart import job_plans
from weft.runtime.share.turns import Turns

__all__ = ["Factory", "run_job", "run_shared"]

#: Makes the training of a job, given its plan and session.
Factory = Callable[[Plan, Session], Training]


@dataclass(frozen=True)
class _Part:
    """What a rank tells of a job: its losses, when and why it ended early, how many batches it was to make and had
    made before, when it ended, and whether there are losses at all."""

    losses: Sequence[float]
    fault: tuple[float, str] | None
    steps: int
    first: int
    ended_at: float
    has_losses: bool


def run_shared(plan: Plan, session: Session, factories: Mapping[str, Factory], *, options: RunOptions | None = None,
               only: Collection[str] | None = None, stop_folder: Path | None = None) -> SharedRun | None:
    """Run the jobs of ``plan`` in one set of processes, each for as many batches as its training has; the result is on
    process 0.

    ``factories`` give each job's training. With seconds in its ``options`` every block takes its planned time at least:
    links and GPUs that are not there are emulated by time. ``only``: the jobs that run, the others being over from the
    start. A job ends early, on all its ranks, once there is a file of its name in ``stop_folder`` of any rank's
    machine.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for a plan that cannot be run and for stages that are not
    those of their job.
    """
    jobs = _jobs(plan)
    chosen = [job for job in jobs if only is None or job.name in only]
    turns = Turns(orders_of(plan, session.rank), counts_of(jobs))
    for job in jobs:
        if job not in chosen:
            turns.end(job.name, turns.orders)
    runners = []
    for job in chosen:
        own = _of_job(options or RunOptions(), stop_folder, job)
        made = in_one_set(session, job, lambda s, job=job, own=own: _runner(  # type: ignore[misc]
            s, job, factories[job.name], turns, own))
        if made is not None:
            runners.append(made)
    begun = session.common_start()
    _train(runners, session)
    spent = max(0.0, session.now() - begun)  # all may be over before the common start
    found = session.gather(({runner.job.name: _part(runner) for runner in runners}, spent, _sums(runners)))
    if found is None:
        return None
    parts = {job.name: [found[rank][0][job.name] for rank in job.ranks] for job in chosen}
    told = tuple(_told(job, parts[job.name], job.ranks, begun) for job in chosen)
    return SharedRun(told, max(seconds for _, seconds, _ in found),
                     predicted_seconds(plan, jobs, told, _seconds(options)),
                     {rank: sums for rank, (_, _, sums) in enumerate(found)})


def run_job(plan: Plan, name: str, session: Session, factory: Factory, turns: Turns, *,
            options: RunOptions | None = None, stop_folder: Path | None = None) -> SharedRun | None:
    """Run one job of ``plan`` in processes of its own, whose session this is, among other jobs that take ``turns``
    beside it; the result is on its process 0. Raises what :func:`run_shared` does."""
    job = next(job for job in _jobs(plan) if job.name == name)
    runner = _runner(session, job, factory, turns, _of_job(options or RunOptions(), stop_folder, job))
    begun = session.common_start()
    _train([runner], session)
    found = session.gather((_part(runner), max(0.0, session.now() - begun), _sums([runner])))
    if found is None:
        return None
    told = _told(job, [part for part, _, _ in found], range(len(found)), begun)
    return SharedRun((told,), max(seconds for _, seconds, _ in found), None,
                     {job.ranks[number]: sums for number, (_, _, sums) in enumerate(found)})


def counts_of(jobs: Sequence[JobPlan]) -> dict[str, int]:
    """How many micro-batches of each job a lap of the plan with jobs has, as that plan counts."""
    return {job.name: job.batches * job.size for job in jobs}


def _jobs(plan: Plan) -> Sequence[JobPlan]:
    try:
        return job_plans(plan)
    except ProgramError as error:
        raise SessionError(str(error)) from None


def _of_job(options: RunOptions, stop_folder: Path | None, job: JobPlan) -> RunOptions:
    return options if stop_folder is None else replace(options, stopped_by=stop_folder / job.name)


def _seconds(options: RunOptions | None) -> float:
    return 0.0 if options is None else options.seconds


def _runner(session: Session, job: JobPlan, factory: Factory, turns: Turns, options: RunOptions) -> JobRunner:
    held: dict[str, list[int]] = {}
    for device, order in turns.orders.items():
        for name, block, _ in order:
            if name == job.name and device not in held.setdefault(block, []):
                held[block].append(device)
    kind = DataParallelRunner if job.data_parallel else StagesRunner
    return kind(job, session, factory(job.plan, session), turns, held, options)


def _train(runners: Sequence[JobRunner], session: Session) -> None:
    """Run all to their ends. Raises what no job can go on after."""
    threads = [thread for runner in runners for thread in runner.threads()]
    for thread in threads:
        thread.start()
    session.watch.rest()
    for thread in threads:
        thread.join()
    for runner in runners:
        if runner.broken is not None:
            raise runner.broken
    for runner in runners:
        runner.close()


def _part(runner: JobRunner) -> _Part:
    return _Part(runner.losses, runner.fault, runner.training.steps, runner.first, runner.ended_at, runner.has_losses)


def _sums(runners: Sequence[JobRunner]) -> list[str]:
    """The sums of gradients in the order in which this rank began them."""
    began = sorted((begun, f"{name}[{number}]") for runner in runners for name, number, begun in runner.began
                   if name in {entry.name for entry in runner.job.sums})
    return [text for _, text in began]


def _told(job: JobPlan, parts: Sequence[_Part], ranks: Sequence[int], begun: float) -> JobRun:
    """What became of ``job``, from what its ranks say."""
    faults = sorted((when, f"{why} (rank {rank})") for part, rank in zip(parts, ranks, strict=True)
                    if part.fault is not None for when, why in [part.fault])
    complete = min(len(part.losses) for part in parts)
    losses = tuple(sum(own) / job.replicas for own in zip(*(part.losses[:complete] for part in parts), strict=True))
    first, steps = parts[0].first, parts[0].steps
    fault = faults[0][1] if faults else None if first + complete >= steps else "its turns were taken from it"
    return JobRun(job.name, losses if parts[0].has_losses else (), fault, steps=complete, first=first,
                  seconds=max(0.0, *(part.ended_at - begun for part in parts)))

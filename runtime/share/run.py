"""All jobs of a plan trained on one rank among others, beside each other, until each has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import ProgramError
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.watch import Activity
from weft.runtime.share.job_plans import JobPlan, job_plans, orders_of
from weft.runtime.share.job_runner import JobRunner
from weft.runtime.share.turns import Turns
from weft.runtime.train.agreement import Allowed

__all__ = ["Factory", "JobRun", "SharedRun", "run_shared"]

#: Makes the training of a job, given its plan and session.
Factory = Callable[[Plan, Session], Training]


@dataclass(frozen=True)
class JobRun:
    """What became of a job: the mean loss of each step that it made; ``fault``: why it made no more, ``None`` where it
    made all."""

    name: str
    losses: tuple[float, ...]
    fault: str | None = None


@dataclass(frozen=True)
class SharedRun:
    """What all jobs came to: ``seconds`` from the common start to the end of the last; ``predicted``: what the plan
    says of as many rounds, ``None`` where its times say nothing. ``sums``: per rank, the sums of all jobs in the order
    in which it began them."""

    jobs: tuple[JobRun, ...]
    seconds: float
    predicted: float | None
    sums: Mapping[int, Sequence[str]]

    def __str__(self) -> str:
        lines = [f"measured  {self.seconds:.6g} s"]
        if self.predicted is not None:
            lines.append(f"predicted {self.predicted:.6g} s")
        for job in self.jobs:
            lines.append(f"{job.name}: {len(job.losses)} steps" + (f", then {job.fault}" if job.fault else ""))
            if job.losses:
                lines.append("  loss per step " + " ".join(f"{loss:.6g}" for loss in job.losses))
        return "\n".join(lines)


@dataclass
class _JobSession(Session):
    """The session as one job sees it: its plan has one rank, of which there is a replica on each process."""

    job: str = field(default="")

    def activity(self, text: str, waits_for: object = ()) -> Activity:
        """What the watchdog is told."""
        return Activity(f"{text} of job {self.job}")


def run_shared(plan: Plan, session: Session, factories: Mapping[str, Factory], *, seconds_per_unit: float = 0.0,
               only: Collection[str] | None = None, allowed: Allowed | None = None, stop_folder: Path | None = None
               ) -> SharedRun | None:
    """Train the jobs of ``plan``, each for as many steps as its training has; the result is on process 0.

    ``factories`` give each job's training. With ``seconds_per_unit`` every block takes its planned time at least: links
    and GPUs that are not there are emulated by time. ``only``: the jobs that run, the others being over from the start.
    A job ends early, on all ranks, once there is a file of its name in ``stop_folder`` of any rank's machine.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for a plan that cannot be trained and for stages that are
    not those of their job.
    """
    try:
        jobs = job_plans(plan)
    except ProgramError as error:
        raise SessionError(str(error)) from None
    chosen = [job for job in jobs if only is None or job.name in only]
    turns = Turns(orders_of(plan, session.rank), {job.name: job.steps for job in jobs})
    for job in jobs:
        if job not in chosen:
            turns.end(job.name, turns.orders)
    runners = [_runner(session, job, factories[job.name], turns, seconds_per_unit, allowed,
                       None if stop_folder is None else stop_folder / job.name) for job in chosen]
    begun = session.common_start()
    threads = [thread for runner in runners for thread in runner.threads()]
    for thread in threads:
        thread.start()
    session.watch.rest()
    for thread in threads:
        thread.join()
    ended = session.now()
    for runner in runners:
        if runner.broken is not None:
            raise runner.broken
    for runner in runners:
        runner.close()
    return _gathered(plan, session, jobs, runners, ended - begun, seconds_per_unit)


def _runner(session: Session, job: JobPlan, factory: Factory, turns: Turns, seconds: float, allowed: Allowed | None,
            stopped_by: Path | None) -> JobRunner:
    own = _JobSession(0, 1, session.device, session.watch, session.offset, session.transport, session.reserve,
                      session.rank, session.world, job=job.name)
    session.watch.doing(f"making the training of job {job.name}")
    held: dict[str, list[int]] = {}
    for device, order in turns.orders.items():
        for name, block, _ in order:
            if name == job.name and device not in held.setdefault(block, []):
                held[block].append(device)
    return JobRunner(job, own, factory(job.plan, own), turns, held, seconds, allowed, stopped_by)


def _gathered(plan: Plan, session: Session, jobs: Sequence[JobPlan], runners: Sequence[JobRunner], seconds: float,
              seconds_per_unit: float) -> SharedRun | None:
    """What all ranks say, put together on process 0."""
    began = sorted((begun, f"{name}[{step}]") for runner in runners for name, step, begun in runner.began
                   if name not in runner.job.blocks.values())
    mine = ({runner.job.name: (runner.losses, runner.fault, runner.training.steps) for runner in runners}, seconds,
            [text for _, text in began])
    found = session.gather(mine)
    if found is None:
        return None
    told = []
    laps = 0.0
    for runner in runners:
        name = runner.job.name
        parts = [by_job[name][0] for by_job, _, _ in found]
        faults = [f"{by_job[name][1]} (rank {rank})" for rank, (by_job, _, _) in enumerate(found) if by_job[name][1]]
        complete = min(map(len, parts))
        losses = tuple(sum(own) / len(found) for own in zip(*(part[:complete] for part in parts), strict=True))
        told.append(JobRun(name, losses, faults[0] if faults else None))
        laps = max(laps, runner.training.steps / runner.job.steps)
    predicted = plan.makespan * laps * seconds_per_unit if len(runners) == len(jobs) and seconds_per_unit else None
    return SharedRun(tuple(told), max(own for _, own, _ in found), predicted,
                     {rank: sums for rank, (_, _, sums) in enumerate(found)})

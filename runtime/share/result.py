"""What jobs that were run beside each other came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.runtime.plan.plan import Plan
from weft.runtime.share.job_plans import JobPlan

__all__ = ["JobRun", "SharedRun", "predicted_seconds"]


@dataclass(frozen=True)
class JobRun:
    """What became of a job: ``steps`` batches that it made, after ``first`` that a checkpoint had, and the mean loss of
    each (nothing in inference); ``fault``: why it made no more, ``None`` where it made all; ``seconds`` until its
    end."""

    name: str
    losses: tuple[float, ...]
    fault: str | None = None
    steps: int = 0
    first: int = 0
    seconds: float = 0.0


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
            before = f" after {job.first} of a checkpoint" if job.first else ""
            lines.append(f"{job.name}: {job.steps} steps{before}" + (f", then {job.fault}" if job.fault else ""))
            if job.losses:
                lines.append("  loss per step " + " ".join(f"{loss:.6g}" for loss in job.losses))
        return "\n".join(lines)


def predicted_seconds(plan: Plan, jobs: Sequence[JobPlan], runs: Sequence[JobRun], seconds_per_unit: float
                      ) -> float | None:
    """How long the plan takes for what ``runs`` made of its jobs, where a time unit is so long; ``None`` where that is
    not said, or not all jobs ran to their ends."""
    steps = {run.name: run.steps for run in runs if run.fault is None}
    if not seconds_per_unit or len(steps) < len(jobs):
        return None
    return plan.makespan * max(steps[job.name] / job.batches for job in jobs) * seconds_per_unit

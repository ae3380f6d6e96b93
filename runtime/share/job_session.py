"""A job's own view of the processes: its ranks, its groups, its name in what the watchdog says.

In one set of processes a job may be on some of the ranks only, and every process has to take part in the making of a
group. So while the ranks of a job make its training, the others wait for them and make the groups that they are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch.distributed as dist

from weft.runtime.ranks.session import Session
from weft.runtime.ranks.watch import Activity
from weft.runtime.share.job_plans import JobPlan

__all__ = ["JobSession", "in_one_set"]

Made = TypeVar("Made")


@dataclass
class JobSession(Session):
    """The session as the job ``job`` sees it, which runs on the processes ``places``, in the order of its ranks."""

    job: str = field(default="")
    told: bool = False  # processes that are not the job's wait to be told of its groups

    def process(self, rank: int) -> int:
        return self.places[self.replica * self.world + rank]

    def activity(self, text: str, waits_for: Iterable[int] = ()) -> Activity:
        """What the watchdog is told: not for whom it waits, as that one may wait for another job."""
        return Activity(f"{text} of job {self.job}")

    def place(self, rank: int) -> int:
        return self.process(rank)  # the watch is that of all processes

    def _made(self, numbers: Sequence[int], backend: str | None = None) -> dist.ProcessGroup | int:
        wanted = [self.places[number] for number in numbers]
        if self.told:
            dist.broadcast_object_list([wanted], self.places[0])
        found: dist.ProcessGroup | int = dist.new_group(wanted)
        return found

    @property
    def _everyone(self) -> Sequence[int]:
        return self.places


def in_one_set(session: Session, job: JobPlan, make: Callable[[JobSession], Made]) -> Made | None:
    """What ``make`` gives for ``job`` on its ranks; ``None`` on others. All processes of ``session``, which has one
    replica, must call it together."""
    whole = len(job.ranks) == session.world
    group = dist.new_group(list(job.ranks))  # messages have no tags: each job's go by a group of its own
    if session.rank not in job.ranks:
        while True:
            told: list[list[int] | None] = [None]
            session.watch.doing(f"waiting for the ranks of job {job.name} to make its training", job.ranks)
            dist.broadcast_object_list(told, job.ranks[0])
            if told[0] is None:
                return None
            dist.new_group(told[0])
    session.watch.doing(f"making the training of job {job.name}")
    replica, rank = divmod(job.ranks.index(session.rank), len(job.ranks) // job.replicas)
    own = JobSession(rank, len(job.ranks) // job.replicas, session.device, session.watch, session.offset,
                     session.transport, session.reserve, replica, job.replicas, job=job.name, places=job.ranks,
                     told=not whole)
    assert isinstance(group, dist.ProcessGroup)
    own.members = group
    made = make(own)
    if not whole:
        dist.broadcast_object_list([None], job.ranks[0])
    return made

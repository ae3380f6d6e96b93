"""Micro-batches that arrive when the plan begins them, and how long each then takes.

A program is an order: run by order alone, every micro-batch is there from the start, and early ones queue. Under a plan
for inference they arrive one after another. Here no block that begins a micro-batch starts before the plan begins that
micro-batch; all others follow by order, which can only be sooner than planned.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Work
from weft.runtime.plan.timeline import Timeline

if TYPE_CHECKING:
    from weft.runtime.execute.executor import Parcel, Worker
    from weft.runtime.ranks.session import Session


SIGN_OF_LIFE = 0.5  # seconds: a rank that waits for a micro-batch is not stuck, and reports at this interval


def arrivals(plan: Plan) -> tuple[float, ...]:
    """When ``plan`` begins each micro-batch: its first start on any rank, in the problem's time unit. Micro-batches of
    several jobs with one number begin together."""
    found = [float("inf")] * _count(plan)
    for work, (start, _) in plan.times.items():
        found[work.micro_batch] = min(found[work.micro_batch], start)
    return tuple(found)


def _count(plan: Plan) -> int:
    return 1 + max(work.micro_batch for work in plan.times)


class Paced:
    """``worker``, whose blocks that begin a micro-batch wait for it to arrive.

    ``begun`` returns the moment on the session's clock at which the run began, once it has; ``seconds_per_unit`` is the
    length of one of the plan's time units. A wait is not counted as part of a block, and may exceed the session's
    timeout.
    """

    def __init__(self, worker: Worker, plan: Plan, session: Session, seconds_per_unit: float,
                 begun: Callable[[], float]) -> None:
        from weft.runtime.ranks.stopwatch import sleep_until

        self.worker, self.session, self.begun, self.sleep_until = worker, session, begun, sleep_until
        self.reads, self.keeps, self.layout = worker.reads, worker.keeps, worker.layout
        self.message, self.task = worker.message, worker.task
        moments = arrivals(plan)
        blocks = plan.problem.blocks
        first = {b for b, block in enumerate(blocks) if all(wait.distance for wait in block.after)}
        self.arrival = {work: moments[work.micro_batch] * seconds_per_unit for work in plan.times
                        if plan.vocabulary.block(work) in first}

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        """Wait until the micro-batch arrives, then for the inputs that ``worker`` waits for."""
        then, arrival = self.worker.prepare(work), self.arrival.get(work)
        if arrival is None:
            return then

        def wait(results: Mapping[Work, Parcel]) -> None:
            moment = self.begun() + arrival
            while (now := self.session.now()) < moment:
                self.session.doing(f"waiting for micro-batch {work.micro_batch} to arrive, for {work}")
                self.sleep_until(min(moment, now + SIGN_OF_LIFE), self.session.now)
            if then is not None:
                then(results)

        return wait


@dataclass(frozen=True)
class Latencies:
    """Seconds from a micro-batch's arrival to its last end on any rank, one for each micro-batch."""

    planned: tuple[float, ...]
    measured: tuple[float, ...]

    def __str__(self) -> str:
        return (f"latency            median {statistics.median(self.measured):.6g} s, most {max(self.measured):.6g} s; "
                f"planned {statistics.median(self.planned):.6g} s, most {max(self.planned):.6g} s")


def latencies(timeline: Timeline, plan: Plan) -> Latencies:
    """The latencies of a paced run of ``plan``. The first micro-batch arrives at the timeline's 0."""
    scale, arrived = timeline.seconds_per_unit, arrivals(plan)
    first = min(arrived)
    planned, measured = [0.0] * len(arrived), [0.0] * len(arrived)
    for work, (_, end) in plan.times.items():
        m = work.micro_batch
        planned[m] = max(planned[m], (end - arrived[m]) * scale)
    for operation in timeline.operations:
        m = operation.micro_batch
        measured[m] = max(measured[m], operation.end - (arrived[m] - first) * scale)
    return Latencies(tuple(planned), tuple(measured))

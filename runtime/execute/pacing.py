"""Paced runs: micro-batches arrive at their planned times, and their latencies are measured.

A program defines only an order: without pacing all micro-batches are available at the start, and queue. In a plan for
inference they arrive one after another. Here the first blocks of a micro-batch start no earlier than its planned start;
all other blocks follow in order, and may start earlier than planned.
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


SIGN_OF_LIFE = 0.5  # seconds between two reports to the watchdog while a rank waits for a micro-batch


def arrivals(plan: Plan) -> tuple[float, ...]:
    """The planned arrival of each micro-batch: its first start on any rank, in the problem's time unit. Micro-batches
    of several jobs with the same number arrive together."""
    first = [float("inf")] * _count(plan)
    for work, (start, _) in plan.times.items():
        first[work.micro_batch] = min(first[work.micro_batch], start)
    return tuple(first)


def _count(plan: Plan) -> int:
    return 1 + max(work.micro_batch for work in plan.times)


class Paced:
    """``worker`` with the first blocks of each micro-batch delayed until its arrival.

    ``begun``: returns the start of the run on the session's clock. ``seconds_per_unit``: the length of the plan's time
    unit. A wait does not count as part of a block, and may exceed the session's timeout.
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
        """Wait until the micro-batch arrives, then for the inputs of ``worker``."""
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
    """Seconds from the arrival of each micro-batch to its last end on any rank."""

    planned: tuple[float, ...]
    measured: tuple[float, ...]

    def __str__(self) -> str:
        return (f"latency            median {statistics.median(self.measured):.6g} s, most {max(self.measured):.6g} s; "
                f"planned {statistics.median(self.planned):.6g} s, most {max(self.planned):.6g} s")


def latencies(timeline: Timeline, plan: Plan) -> Latencies:
    """The latencies of a paced run of ``plan``. The first micro-batch arrives at time 0 of the timeline."""
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

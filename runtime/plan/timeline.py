"""The measured times of each block on each rank, and the file ``weft.timeline/1``; reading it does not import torch.

The file is one JSON object: ``format``; ``plan``, the :attr:`~weft.runtime.plan.plan.Plan.digest` of the plan that ran;
``name``, its problem's; ``seconds_per_unit``, the length of one of the problem's time units in seconds;
``operations[]``, each ``{block, micro_batch, rank, start, end}`` in seconds after the first start on any rank. A block
on several devices has one entry for each of its ranks; a lane's rank is its device's. With jobs or classes, blocks and
micro-batches are those of the jobs, as in the plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import RankMap
from weft.solver.io.entries import Entry, FormatError, read_json, require_format
from weft.solver.io.writing import write_atomically
from weft.solver.names import Names
from weft.solver.schedule import Operation, Schedule
from weft.solver.values import LARGEST_AMOUNT, SMALLEST_AMOUNT

TIMELINE_FORMAT = "weft.timeline/1"


class Measured(NamedTuple):
    """One block of one micro-batch on one rank; times in seconds after the first start on any rank."""

    block: str
    micro_batch: int
    rank: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A measured run of one batch: ``operations`` sorted by start."""

    plan: str
    name: str
    seconds_per_unit: float
    operations: tuple[Measured, ...]

    @classmethod
    def of(cls, plan: Plan, seconds_per_unit: float, operations: Iterable[Measured]) -> Timeline:
        """The timeline of a run of ``plan``; ``operations`` are on one clock, and are shifted to begin at 0."""
        ordered = sorted(operations, key=lambda operation: (operation.start, operation.rank))
        first = ordered[0].start if ordered else 0.0
        return cls(plan.digest, plan.problem.name, seconds_per_unit,
                   tuple(o._replace(start=o.start - first, end=o.end - first) for o in ordered))

    @property
    def makespan(self) -> float:
        """Latest end, in seconds."""
        return max((operation.end for operation in self.operations), default=0.0)


@dataclass(frozen=True)
class AgainstPlan:
    """Measured against predicted makespan, both in seconds."""

    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Measured / predicted: 1.02 is two percent slower than planned."""
        return self.measured / self.predicted


def places(schedule: Schedule) -> dict[tuple[str, int, int], tuple[Operation, tuple[int, ...]]]:
    """The operation and its devices for each block, micro-batch and rank of a timeline of ``schedule``."""
    ranks, names = RankMap.of(schedule.problem), Names(schedule)
    return {(names.block(operation.block), names.micro_batch(operation), rank):
            (operation, ranks.held(rank, operation.block))
            for operation in schedule.operations for rank in ranks.of_block(operation.block)}


def compare(timeline: Timeline, plan: Plan) -> AgainstPlan:
    """Compare ``timeline`` with ``plan``. Raises ``ValueError`` if it was measured on another plan."""
    if timeline.plan != plan.digest:
        raise ValueError(f"the timeline of {timeline.name!r} was not measured on this plan of {plan.problem.name!r}")
    return AgainstPlan(timeline.makespan, plan.makespan * timeline.seconds_per_unit)


def load_timeline(path: str | os.PathLike[str]) -> Timeline:
    """Read a ``weft.timeline/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return timeline_from_json(read_json(path), os.fspath(path))


def save_timeline(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.timeline/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(timeline_to_json(timeline), allow_nan=False) + "\n")


def timeline_to_json(timeline: Timeline) -> dict[str, Any]:
    """The ``weft.timeline/1`` object of ``timeline``."""
    return {"format": TIMELINE_FORMAT, "plan": timeline.plan, "name": timeline.name,
            "seconds_per_unit": timeline.seconds_per_unit,
            "operations": [operation._asdict() for operation in timeline.operations]}


def timeline_from_json(value: Any, where: str = "timeline") -> Timeline:
    """The timeline of a ``weft.timeline/1`` object; error messages begin with ``where``, such as a file name."""
    entry = Entry(value, where)
    require_format(entry, TIMELINE_FORMAT)
    entry.allow("format", "plan", "name", "seconds_per_unit", "operations")
    seconds_per_unit = entry.number("seconds_per_unit")
    if not SMALLEST_AMOUNT <= seconds_per_unit <= LARGEST_AMOUNT:
        raise FormatError(f"{where}: seconds_per_unit is {seconds_per_unit}, it must be from {SMALLEST_AMOUNT:g} to "
                          f"{LARGEST_AMOUNT:g}")
    operations = tuple(_measured(item) for item in entry.list("operations"))
    return Timeline(entry.text("plan"), entry.text("name"), float(seconds_per_unit),
                    tuple(sorted(operations, key=lambda operation: (operation.start, operation.rank))))


def _measured(entry: Entry) -> Measured:
    entry.allow("block", "micro_batch", "rank", "start", "end")
    start, end = float(entry.number("start")), float(entry.number("end"))
    if not 0 <= start <= end:
        raise FormatError(f"{entry.where}: start is {start} and end {end}, it must be 0 <= start <= end")
    return Measured(entry.text("block"), entry.count("micro_batch"), entry.count("rank"), start, end)

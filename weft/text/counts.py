"""How many micro-batches and devices there are, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.text.options import assignment_title

if TYPE_CHECKING:
    from weft.solver.problem import Problem
    from weft.solver.schedule import Schedule
    from weft.solver.wide.run import Run

__all__ = ["choices_text", "devices_text", "micro_batches_text", "run_text", "unit_text"]

#: What a micro-batch of a schedule is, where it is none of the spec's.
_UNITS: Mapping[object, str] = {"step": "step", "pair": "pair of micro-batches"}


def micro_batches_text(schedule: Schedule) -> str:
    """``"8 micro-batches"``; of each job and class, where there are several."""
    if schedule.rounds is None:
        return _counted(schedule.micro_batches, unit_text(schedule))
    return run_text(schedule.rounds.run)


def run_text(run: Run) -> str:
    """The micro-batches of each job, by class, and in how many rounds."""
    jobs = []
    for job, classes in run.classes.items():
        counted = Counter(classes)
        kinds = "" if set(counted) == {None} else " (" + ", ".join(f"{n} {name}" for name, n in counted.items()) + ")"
        jobs.append(_counted(len(classes), "micro-batch") + ("" if job is None else f" of {job}") + kinds)
    rounds = "" if run.rounds in (1, run.micro_batches) else f" in {run.rounds} rounds"
    return " and ".join(jobs) + rounds


def choices_text(schedule: Schedule) -> str:
    """The options taken, and over how many assignments its bound holds."""
    taken = assignment_title(schedule.choices)
    count = schedule.solver.get("assignments")
    return taken + (f"; bound over all {count} assignments" if isinstance(count, int) else "")


def unit_text(schedule: Schedule) -> str:
    """What a period is the time of."""
    if schedule.rounds is not None:
        return "round"
    return _UNITS.get(schedule.solver.get("unit"), "micro-batch")


def devices_text(problem: Problem) -> str:
    """``"4 devices"``, lanes beside."""
    lanes = sum(device.lane_of is not None for device in problem.devices)
    return _counted(len(problem.devices) - lanes, "device") + (f" and {_counted(lanes, 'lane')}" if lanes else "")


def _counted(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    first, of, rest = what.partition(" of ")
    return f"{number} {first}" + ("es" if first.endswith("ch") else "s") + of + rest

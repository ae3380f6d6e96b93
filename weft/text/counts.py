"""Numbers of micro-batches and devices in words.

Options in words: those taken, and the cost of each of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.solver.schedule import Schedule
from weft.text.units import time_unit

if TYPE_CHECKING:
    from weft.solver.problem import Problem
    from weft.solver.problem.rounds import Run


#: The meaning of a schedule's micro-batch, if it is not one of the spec's.
_UNITS: Mapping[object, str] = {"step": "step", "pair": "pair of micro-batches"}


def micro_batches_text(schedule: Schedule) -> str:
    """``"8 micro-batches"``; for each job and class, if there are several."""
    if schedule.rounds is None:
        return _counted(schedule.micro_batches, unit_text(schedule))
    return run_text(schedule.rounds.run)


def run_text(run: Run) -> str:
    """The micro-batches of each job, by class, and the number of rounds."""
    jobs = []
    for job, classes in run.classes.items():
        counted = Counter(classes)
        kinds = "" if set(counted) == {None} else " (" + ", ".join(f"{n} {name}" for name, n in counted.items()) + ")"
        jobs.append(_counted(len(classes), "micro-batch") + ("" if job is None else f" of {job}") + kinds)
    rounds = "" if run.rounds in (1, run.micro_batches) else f" in {run.rounds} rounds"
    return " and ".join(jobs) + rounds


def choices_text(schedule: Schedule) -> str:
    """The options taken, and the number of assignments covered by the bound."""
    taken = assignment_title(schedule.choices)
    count = schedule.solver.get("assignments")
    return taken + (f"; bound over all {count} assignments" if isinstance(count, int) else "")


def unit_text(schedule: Schedule) -> str:
    """The unit whose time a period is."""
    if schedule.rounds is not None:
        return "round"
    return _UNITS.get(schedule.solver.get("unit"), "micro-batch")


def devices_text(problem: Problem) -> str:
    """``"4 devices"``, and lanes."""
    lanes = sum(device.lane_of is not None for device in problem.devices)
    return _counted(len(problem.devices) - lanes, "device") + (f" and {_counted(lanes, 'lane')}" if lanes else "")


def _counted(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    first, of, rest = what.partition(" of ")
    return f"{number} {first}" + ("es" if first.endswith("ch") else "s") + of + rest


def taken_text(choices: Mapping[str, str]) -> str:
    """The option taken for each choice, grouped by option if several take the same: ``recompute: gpu1, gpu3; keep:
    gpu2``; otherwise ``chunks: 8; gpu1: keep``."""
    by_option: dict[str, list[str]] = {}
    for choice, option in choices.items():
        by_option.setdefault(option, []).append(choice)
    if len(by_option) == len(choices):
        return "; ".join(f"{choice}: {option}" for choice, option in choices.items())
    return "; ".join(f"{option}: {', '.join(names)}" for option, names in by_option.items())


def assignment_title(choices: Mapping[str, str]) -> str:
    """The options taken, for a placement's title."""
    return ", ".join(f"{choice} {option}" for choice, option in choices.items())


def option_lines(schedule: Schedule) -> list[str]:
    """The options taken, and for each other one the proven bound on schedules with it and the best found."""
    if not schedule.choices:
        return []
    lines = [f"Options taken: {taken_text(schedule.choices)}."]
    rows = [[f"{entry['choice']}: {entry['option']}", _cost(schedule, entry.get("bound"), entry.get("makespan"))]
            for entry in schedule.solver.get("options", ()) if not entry.get("taken")]
    width = max((len(row[0]) for row in rows), default=0)
    if rows:
        lines.append("What each other option would cost, the rest chosen anew:")
    return lines + [f"  {name.ljust(width)}  {cost}" for name, cost in rows]


def _cost(schedule: Schedule, bound: Any, makespan: Any) -> str:
    parts = []
    if bound is None:
        return "no schedule fits"
    if isinstance(bound, (int, float)) and bound > 0:
        parts.append("at least " + _against(schedule, bound))
    if isinstance(makespan, (int, float)):
        parts.append(f"{_against(schedule, makespan)} found")
    return ", ".join(parts) or "nothing is known"


def _against(schedule: Schedule, value: float) -> str:
    """``value``, and its excess over the schedule's; a bound below that is not informative."""
    shown = time_unit(schedule.problem, 10 * abs(value)).show(value, 5)
    base = schedule.value
    share = value / base - 1 if 0 < base < float("inf") else 0.0
    return f"{shown} (no more)" if abs(share) < 5e-5 else f"{shown} ({share:+.1%})".replace("-", "−")


def listed(parts: Sequence[str]) -> str:
    """``"a, b and c"``."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]

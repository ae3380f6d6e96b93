"""Options in words: which were taken, and what each of the others would cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.solver.schedule import Schedule
from weft.text.units import time_unit

__all__ = ["assignment_title", "option_lines", "taken_text"]


def taken_text(choices: Mapping[str, str]) -> str:
    """Which option of each choice was taken, those with one option together: ``recompute: gpu1, gpu3; keep: gpu2``."""
    by_option: dict[str, list[str]] = {}
    for choice, option in choices.items():
        by_option.setdefault(option, []).append(choice)
    return "; ".join(f"{option}: {', '.join(names)}" for option, names in by_option.items())


def assignment_title(choices: Mapping[str, str]) -> str:
    """The options taken, as a placement's title has them."""
    return ", ".join(f"{choice} {option}" for choice, option in choices.items())


def option_lines(schedule: Schedule) -> list[str]:
    """The options that were taken, and for each other one what is proven of schedules with it and what was found."""
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
    told = []
    if bound is None:
        return "no schedule fits"
    if isinstance(bound, (int, float)) and bound > 0:
        told.append("at least " + _against(schedule, bound))
    if isinstance(makespan, (int, float)):
        told.append(f"{_against(schedule, makespan)} found")
    return ", ".join(told) or "nothing is known"


def _against(schedule: Schedule, value: float) -> str:
    """``value``, and by how much it is above the schedule's; below it a bound says nothing."""
    shown = time_unit(schedule.problem, 10 * abs(value)).show(value, 5)
    base = schedule.value
    share = value / base - 1 if 0 < base < float("inf") else 0.0
    return f"{shown} (no more)" if abs(share) < 5e-5 else f"{shown} ({share:+.1%})".replace("-", "−")

"""Schedules that somebody hands in: read, and judged before anything is made of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.schedule import Schedule
    from weft.api.sources import PathLike

__all__ = ["judged", "read_schedule"]


def read_schedule(path: PathLike) -> Schedule:
    """The schedule in a file, not judged. Raises ``FormatError``, which for a model spec says how to come to one."""
    from solver.entries import FormatError
    from solver.files import load_schedule

    name = os.fspath(path)
    if name.lower().endswith((".yaml", ".yml")):
        raise FormatError(f"{name}: is a model spec by its ending, and this needs a schedule; make one with "
                          f"`weft solve {name} -o schedule.json`")
    return load_schedule(path)


def judged(schedule: Schedule | PathLike, *, in_turn: bool = True, capacities: bool = True) -> Schedule:
    """``schedule``, read if it is a path, which keeps every rule.

    ``in_turn=False`` allows a block to run micro-batches in any order: devices can run such schedules as they stand,
    and other tools make them; only what bounds and periods say does not hold for them. ``capacities=False`` allows it
    to need more memory than there is. Raises :class:`~solver.validate.InvalidSchedule`, its sentences led by the file's
    name, and ``FormatError``.
    """
    from solver.validate import InvalidSchedule, violations

    where = ""
    if isinstance(schedule, str | os.PathLike):
        where, schedule = f"{os.fspath(schedule)}: ", read_schedule(schedule)
    faults = violations(schedule, in_turn=in_turn, capacities=capacities)
    if faults:
        raise InvalidSchedule([where + fault for fault in faults])
    return schedule

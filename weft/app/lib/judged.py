"""Schedules supplied by the user: read, and judged before use."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.app.lib.sources import PathLike
    from weft.solver.schedule import Schedule


@dataclass(frozen=True)
class Judgement:
    """The judge's verdict on a schedule and its statements.

    ``faults`` has a sentence for each broken rule and each false statement. ``verified`` names the statements that
    follow from the operations, ``not_checked`` the others, each with the reason.
    """

    faults: list[str]
    verified: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data, led by ``valid``."""
        return {"valid": not self.faults, "faults": self.faults, "verified": self.verified,
                "not_checked": [{"claim": claim, "reason": reason} for claim, reason in self.not_checked.items()]}


def read_schedule(path: PathLike) -> Schedule:
    """The schedule in a file, not judged. Raises ``FormatError``, which for a model spec explains how to get a
    schedule."""
    from weft.solver.io.schedule_files import schedule_from_json

    return schedule_from_json(_content(path), os.fspath(path))


def _content(path: PathLike) -> Any:
    """The JSON value in a schedule file."""
    from weft.solver.io.entries import FormatError, read_json

    name = os.fspath(path)
    if name.lower().endswith((".yaml", ".yml")):
        raise FormatError(f"{name}: is a model spec by its ending, and this needs a schedule; make one with "
                          f"`weft solve {name} -o schedule.json`")
    return read_json(path)


def judged(schedule: Schedule | PathLike, *, in_turn: bool = True, capacities: bool = True) -> Schedule:
    """``schedule``, read if it is a path, if it obeys every rule.

    ``in_turn=False`` allows a block to run micro-batches in any order: devices can run such schedules, and other tools
    produce them; only bounds and periods do not apply to them. ``capacities=False`` allows it to exceed the memory.
    Raises :class:`~weft.solver.InvalidSchedule`, its sentences led by the file's name, and ``FormatError``.
    """
    from weft.solver.judge.validate import InvalidSchedule, violations

    where = ""
    if isinstance(schedule, str | os.PathLike):
        where, schedule = f"{os.fspath(schedule)}: ", read_schedule(schedule)
    _require_schedule(schedule)
    faults = violations(schedule, in_turn=in_turn, capacities=capacities)
    if faults:
        raise InvalidSchedule([where + fault for fault in faults])
    return schedule


def verdict(schedule: Schedule | PathLike) -> Judgement:
    """The judgement on a schedule, or on a file and every number in it. Raises ``FormatError`` if the file is not a
    schedule."""
    from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
    from weft.solver.judge.claims import judge_claims
    from weft.solver.judge.validate import violations

    value: Any
    if isinstance(schedule, str | os.PathLike):
        value = _content(schedule)
        loaded = schedule_from_json(value, os.fspath(schedule))
    else:
        _require_schedule(schedule)
        loaded, value = schedule, schedule_to_json(schedule)
    faults = violations(loaded)
    if faults and loaded.micro_batches < 1:
        return Judgement(faults)
    stated = judge_claims(value, loaded)
    faults += [fault for fault in stated.false if fault not in faults]
    return Judgement(faults, [] if faults else ["operations", *stated.verified], {} if faults else stated.open)


def _require_schedule(schedule: object) -> None:
    from weft.solver.schedule import Schedule

    if not isinstance(schedule, Schedule):
        raise ValueError(f"the schedule is a {type(schedule).__name__}, it must be a Schedule or the name of its file")

"""What golden runs say: numbers as they are, long things as digests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from weft.solver import Infeasible, Schedule

#: A wall limit that no run comes near: only the effort ends a search, so a busy machine changes nothing.
UNLIMITED = 3600.0

#: What gives the answers of one golden run by name, as JSON can hold them.
Run: TypeAlias = Callable[[], Mapping[str, Any]]


def digest(value: object) -> str:
    """Of a text, or of anything whose ``repr`` says all of it, in short."""
    return hashlib.sha256((value if isinstance(value, str) else repr(value)).encode()).hexdigest()[:16]


def starts(schedule: Schedule) -> str:
    """Which operation starts when, in short."""
    return digest(sorted((op.block, op.micro_batch, round(op.start, 9)) for op in schedule.operations))


def said(schedule: Schedule) -> dict[str, Any]:
    """The numbers of a plain schedule."""
    return {"makespan": schedule.makespan, "bound": schedule.makespan_bound, "period": schedule.period,
            "period_bound": schedule.period_bound, "status": schedule.status, "operations": starts(schedule)}


def said_wide(schedule: Schedule) -> dict[str, Any]:
    """The same of the best over assignments and orders, with these; by its own objective."""
    rounds = schedule.rounds
    return {"value": schedule.value, "value_bound": schedule.value_bound, **said(schedule),
            "choices": None if schedule.choices is None else dict(schedule.choices),
            "run": None if rounds is None else rounds.run.to_json(),
            "options": digest(json.dumps(schedule.solver.get("options", [])))}


def or_refused(run: Run) -> Mapping[str, Any]:
    """What ``run`` says, or which refusal it ends with."""
    try:
        return run()
    except Infeasible as refusal:
        return {"refused": type(refusal).__name__}


def fields(value: object) -> object:
    """``value`` without the names of its classes and fields, so that a renaming changes nothing: what they hold, as
    lists; mappings and sets in order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [fields(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return sorted(([fields(key), fields(entry)] for key, entry in value.items()), key=repr)
    if isinstance(value, set | frozenset):
        return sorted(map(fields, value), key=repr)
    if isinstance(value, list | tuple):
        return list(map(fields, value))
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else value

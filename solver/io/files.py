"""The two JSON files other programs rely on: ``weft.problem/1`` and ``weft.schedule/1``.

Readers refuse an unknown ``format``, an unknown field, a missing one and values of the wrong type, and say which
entry and which field (:class:`~weft.solver.io.entries.FormatError`); what the values mean is checked by
:class:`~weft.solver.problem.Problem` itself. Writers go through :func:`~weft.solver.io.writing.write_atomically`, so
that a full disk or a killed process leaves no half file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from weft.solver.io.entries import Entry, FormatError, named, near, number, read_json, require_format, show
from weft.solver.io.model_files import facts_from_json, facts_to_json
from weft.solver.io.provenance import check_provenance
from weft.solver.io.writing import write_atomically
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem, ProblemError
from weft.solver.schedule import Operation, Repetend, Schedule

__all__ = ["PROBLEM_FORMAT", "SCHEDULE_FORMAT", "load_problem", "load_schedule", "problem_from_json", "problem_to_json",
           "save_problem", "save_schedule", "schedule_from_json", "schedule_to_json"]

#: Up to so many micro-batches may be more than there are operations.
_LOST = 1000

PROBLEM_FORMAT = "weft.problem/1"
SCHEDULE_FORMAT = "weft.schedule/1"


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a ``weft.problem/1`` file. Raises :class:`FormatError`."""
    return problem_from_json(read_json(path), os.fspath(path))


def save_problem(problem: Problem, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.problem/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(problem_to_json(problem), indent=1, allow_nan=False) + "\n")


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a ``weft.schedule/1`` file. Raises :class:`FormatError`. Feasibility is not checked here."""
    return schedule_from_json(read_json(path), os.fspath(path))


def save_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.schedule/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, _schedule_text(schedule) + "\n")


def _schedule_text(schedule: Schedule) -> str:
    """What ``json.dumps`` makes of :func:`schedule_to_json`, without an object for each operation."""
    operations = schedule.operations
    kinds = {kind for column in zip(*operations, strict=True) for kind in set(map(type, column))}
    if not operations or not kinds <= {int, float} or not all(
            math.isfinite(start) and math.isfinite(end) for _, _, start, end in operations):
        return json.dumps(schedule_to_json(schedule), allow_nan=False)
    value = schedule_to_json(schedule, operations=False)
    fields = [f"{json.dumps(key)}: {json.dumps(field, allow_nan=False)}" for key, field in value.items()]
    heads = [f'{{"block": {json.dumps(block.name)}, "micro_batch": ' for block in schedule.problem.blocks]
    listed = ", ".join([f'{heads[block]}{m}, "start": {start!r}, "end": {end!r}}}'
                        for block, m, start, end in operations])
    fields[list(value).index("operations")] = f'"operations": [{listed}]'
    return f"{{{', '.join(fields)}}}"


# -- problems ----------------------------------------------------------------------------------------------------


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """The ``weft.problem/1`` object of ``problem``."""
    result: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "name": problem.name,
        "time_unit": problem.time_unit,
        "memory_unit": problem.memory_unit,
        "devices": [{"name": device.name, "memory": device.memory,
                     **({"static": device.static} if device.static else {}),
                     **({"lane_of": device.lane_of} if device.lane_of is not None else {})}
                    for device in problem.devices],
    }
    if problem.links:
        result["links"] = [{"name": link.name, "source": problem.devices[link.source].name,
                            "target": problem.devices[link.target].name} for link in problem.links]
    result["blocks"] = [_block_to_json(block) for block in problem.blocks]
    if problem.model is not None:
        result["model"] = facts_to_json(problem.model)
    return result


def problem_from_json(value: Any, where: str = "problem") -> Problem:
    """The problem of a ``weft.problem/1`` object; ``where`` (a file name) leads every error message."""
    entry = Entry(value, where)
    require_format(entry, PROBLEM_FORMAT)
    entry.allow("format", "name", "time_unit", "memory_unit", "devices", "links", "blocks", "model")
    devices = tuple(_device(item) for item in entry.list("devices"))
    names = {device.name: i for i, device in enumerate(devices)}
    blocks = tuple(_block(item) for item in entry.list("blocks"))
    with _naming(where):
        return Problem(
            name=entry.text("name"),
            devices=devices,
            links=tuple(_link(item, names) for item in entry.list("links", required=False)),
            blocks=blocks,
            time_unit=entry.text("time_unit"),
            memory_unit=entry.text("memory_unit"),
            model=facts_from_json(entry.child("model"), (block.name for block in blocks)) if entry.has("model")
            else None,
        )


def _device(entry: Entry) -> Device:
    entry.allow("name", "memory", "static", "lane_of")
    lane_of = entry.text("lane_of") if entry.get("lane_of", None) is not None else None
    memory = None if entry.get("memory", *([None] if lane_of is not None else [])) is None else entry.number("memory")
    static = entry.number("static") if entry.has("static") else 0
    with _naming(entry.where):
        return Device(entry.text("name"), memory, static, lane_of)


def _link(entry: Entry, devices: Mapping[str, int]) -> Link:
    entry.allow("name", "source", "target")
    ends = []
    for field in ("source", "target"):
        name = entry.text(field)
        if name not in devices:
            raise FormatError(f"{entry.where}: {field}: there is no device named {named(name)}{near(name, devices)}")
        ends.append(devices[name])
    return Link(entry.text("name"), *ends)


def _block(entry: Entry) -> Block:
    entry.allow("name", "kind", "devices", "duration", "memory", "workspace", "after")
    kind = entry.text("kind")
    if kind not in set(BlockKind):
        allowed = ", ".join(BlockKind)
        raise FormatError(f"{entry.where}: kind is {named(kind)}, it must be one of {allowed}{near(kind, BlockKind)}")
    devices = entry.get("devices")
    if not isinstance(devices, list) or not all(isinstance(d, int) and not isinstance(d, bool) for d in devices):
        raise FormatError(f"{entry.where}: devices is {show(devices)}, it must be a list of indices into devices")
    with _naming(entry.where):
        return Block(
            name=entry.text("name"),
            kind=BlockKind(kind),
            devices=tuple(devices),
            duration=entry.number("duration"),
            memory=_amounts(entry, "memory", len(devices)),
            workspace=_amounts(entry, "workspace", len(devices)) if entry.has("workspace") else (),
            after=tuple(_dependency(item) for item in entry.list("after", text_as="block")),
        )


def _amounts(entry: Entry, field: str, devices: int) -> tuple[Number, ...]:
    value = entry.get(field)
    values = value if isinstance(value, list) else [value] * devices
    if len(values) != devices:
        raise FormatError(f"{entry.where}: {field} has {len(values)} entries for {devices} devices")
    return tuple(number(item, f"{entry.where}: {field}") for item in values)


def _dependency(entry: Entry) -> Dependency:
    entry.allow("block", "lag", "link", "distance")
    link = entry.text("link") if entry.get("link", None) is not None else None
    distance = entry.get("distance", 0)
    if not isinstance(distance, int) or isinstance(distance, bool):
        raise FormatError(f"{entry.where}: distance is {show(distance)}, it must be a whole number")
    return Dependency(entry.text("block"), entry.number("lag") if entry.has("lag") else 0, link, distance)


def _block_to_json(block: Block) -> dict[str, Any]:
    result: dict[str, Any] = {"name": block.name, "kind": str(block.kind), "devices": list(block.devices),
                              "duration": block.duration, "memory": _amounts_to_json(block.memory)}
    if any(block.workspace):
        result["workspace"] = _amounts_to_json(block.workspace)
    result["after"] = [_dependency_to_json(dependency) for dependency in block.after]
    return result


def _amounts_to_json(amounts: tuple[Number, ...]) -> Number | list[Number]:
    return amounts[0] if len(set(amounts)) == 1 else list(amounts)


def _dependency_to_json(dependency: Dependency) -> str | dict[str, Any]:
    if not dependency.lag and dependency.link is None and not dependency.distance:
        return dependency.block
    result: dict[str, Any] = {"block": dependency.block}
    if dependency.lag:
        result["lag"] = dependency.lag
    if dependency.link is not None:
        result["link"] = dependency.link
    if dependency.distance:
        result["distance"] = dependency.distance
    return result


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Turns a :class:`ProblemError` raised inside into a :class:`FormatError` that starts with the place."""
    try:
        yield
    except ProblemError as error:
        raise FormatError(f"{where}: {error}") from None


# -- schedules ---------------------------------------------------------------------------------------------------


def schedule_to_json(schedule: Schedule, *, operations: bool = True) -> dict[str, Any]:
    """The ``weft.schedule/1`` object of ``schedule``; with an empty list for its operations unless they are asked for.
    """
    names = [block.name for block in schedule.problem.blocks]
    repetend = schedule.repetend
    return {
        "format": SCHEDULE_FORMAT,
        "problem": problem_to_json(schedule.problem),
        "micro_batches": schedule.micro_batches,
        "operations": [{"block": names[o.block], "micro_batch": o.micro_batch, "start": o.start, "end": o.end}
                       for o in (schedule.operations if operations else ())],
        "makespan": schedule.makespan,
        "makespan_bound": schedule.makespan_bound,
        "period": schedule.period,
        "period_bound": schedule.period_bound,
        "repetend": None if repetend is None else {"first": repetend.first, "count": repetend.count,
                                                   "micro_batches": repetend.micro_batches},
        "peak_memory": list(schedule.peak_memory),
        "status": schedule.status,
        "solver": dict(schedule.solver),
    }


def schedule_from_json(value: Any, where: str = "schedule") -> Schedule:
    """The schedule of a ``weft.schedule/1`` object; ``where`` (a file name) leads every error message.

    Whether what it says is true is not asked here: :mod:`weft.solver.judge` judges the operations,
    :mod:`weft.solver.judge.claims` the fields that say something of them.
    """
    entry = Entry(value, where)
    require_format(entry, SCHEDULE_FORMAT)
    entry.allow("format", "problem", "micro_batches", "operations", "makespan", "makespan_bound", "period",
                "period_bound", "repetend", "peak_memory", "status", "solver")
    problem = problem_from_json(entry.get("problem"), f"{where}: problem")
    solver = check_provenance(entry.get("solver"), len(problem.devices), f"{where}: solver")
    _check_derived_fields(entry, len(problem.devices))
    operations = tuple(_operation(item, problem) for item in entry.list("operations"))
    return Schedule(
        problem=problem,
        micro_batches=_micro_batches(entry, len(operations)),
        operations=operations,
        makespan_bound=entry.number("makespan_bound"),
        period=_positive(entry, "period"),
        period_bound=None if entry.get("period_bound") is None else entry.number("period_bound"),
        repetend=None if entry.get("repetend") is None else _repetend(entry.child("repetend")),
        solver=solver,
    )


def _micro_batches(entry: Entry, operations: int) -> int:
    """As few missing operations as a person may have lost are told one by one; tables for a billion are not made."""
    count = entry.count("micro_batches", minimum=1)
    if count > max(operations, _LOST):
        raise FormatError(f"{entry.where}: micro_batches is {count}, but there are {operations} operations; every "
                          "micro-batch has one of each block")
    return count


def _positive(entry: Entry, field: str) -> Number | None:
    value = None if entry.get(field) is None else entry.number(field)
    if value is not None and value <= 0:
        raise FormatError(f"{entry.where}: {field} is {show(value)}, it must be greater than 0")
    return value


def _operation(entry: Entry, problem: Problem) -> Operation:
    entry.allow("block", "micro_batch", "start", "end")
    name = entry.text("block")
    if name not in problem.index:
        raise FormatError(f"{entry.where}: block: there is no block named {named(name)}{near(name, problem.index)}")
    return Operation(problem.index[name], entry.count("micro_batch"), entry.number("start"), entry.number("end"))


def _repetend(entry: Entry) -> Repetend:
    entry.allow("first", "count", "micro_batches")
    return Repetend(entry.count("first"), entry.count("count", minimum=1), entry.count("micro_batches", minimum=1))


def _check_derived_fields(entry: Entry, devices: int) -> None:
    entry.number("makespan")
    entry.text("status")
    peaks = entry.get("peak_memory")
    if not isinstance(peaks, list) or len(peaks) != devices:
        raise FormatError(f"{entry.where}: peak_memory must list one number for each of the {devices} devices")
    for device, peak in enumerate(peaks):
        number(peak, f"{entry.where}: peak_memory[{device}]")

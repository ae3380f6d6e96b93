"""The two JSON files other programs rely on: ``weft.problem/1`` and ``weft.schedule/1``.

Readers refuse an unknown ``format``, an unknown field, a missing one and values of the wrong type, and say which
entry and which field (:class:`FormatError`); what the values mean is checked by :class:`~solver.problem.Problem`
itself. Writers go through :func:`write_atomically`, so that a full disk or a killed process leaves no half file.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem, ProblemError, is_finite_number
from solver.schedule import Operation, Repetend, Schedule

__all__ = [
    "Entry", "FormatError", "load_problem", "load_schedule", "misstatements", "problem_from_json", "problem_to_json",
    "read_json", "read_text", "require_format", "save_problem", "save_schedule", "schedule_from_json",
    "schedule_to_json", "write_atomically",
]

PROBLEM_FORMAT = "weft.problem/1"
SCHEDULE_FORMAT = "weft.schedule/1"


class FormatError(ValueError):
    """A file that is not what it should be: the message names the file, the entry and the field."""


# -- reading and writing files -----------------------------------------------------------------------------------


def read_text(path: str | os.PathLike[str]) -> str:
    """The text in ``path``. Raises :class:`FormatError` for a file that cannot be read or is no UTF-8."""
    name = os.fspath(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{name}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{name}: is not UTF-8 text") from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in ``path``. Raises :class:`FormatError` for a missing, empty or broken file."""
    name, text = os.fspath(path), read_text(path)
    if not text.strip():
        raise FormatError(f"{name}: is empty")
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except json.JSONDecodeError as error:
        raise FormatError(f"{name}: line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except ValueError as error:  # a whole number with thousands of digits
        raise FormatError(f"{name}: not JSON ({str(error).partition(':')[0]})") from None
    except _DuplicateKeyError as error:
        raise FormatError(f"{name}: the key {error} appears twice in one object") from None
    except RecursionError:
        raise FormatError(f"{name}: is nested too deeply") from None


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content`` to ``path`` whole or not at all.

    Raises ``OSError`` (folder missing or unwritable, disk full); the old file, if any, is then untouched and no
    temporary file stays behind.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


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
    write_atomically(path, json.dumps(schedule_to_json(schedule), allow_nan=False) + "\n")


# -- problems ----------------------------------------------------------------------------------------------------


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """The ``weft.problem/1`` object of ``problem``."""
    result: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "name": problem.name,
        "time_unit": problem.time_unit,
        "memory_unit": problem.memory_unit,
        "devices": [{"name": device.name, "memory": device.memory} for device in problem.devices],
    }
    if problem.links:
        result["links"] = [{"name": link.name, "source": problem.devices[link.source].name,
                            "target": problem.devices[link.target].name} for link in problem.links]
    result["blocks"] = [_block_to_json(block) for block in problem.blocks]
    return result


def problem_from_json(value: Any, where: str = "problem") -> Problem:
    """The problem of a ``weft.problem/1`` object; ``where`` (a file name) leads every error message."""
    entry = Entry(value, where)
    require_format(entry, PROBLEM_FORMAT)
    entry.allow("format", "name", "time_unit", "memory_unit", "devices", "links", "blocks")
    devices = tuple(_device(item) for item in entry.list("devices"))
    names = {device.name: i for i, device in enumerate(devices)}
    with _naming(where):
        return Problem(
            name=entry.text("name"),
            devices=devices,
            links=tuple(_link(item, names) for item in entry.list("links", required=False)),
            blocks=tuple(_block(item) for item in entry.list("blocks")),
            time_unit=entry.text("time_unit"),
            memory_unit=entry.text("memory_unit"),
        )


def _device(entry: Entry) -> Device:
    entry.allow("name", "memory")
    memory = None if entry.get("memory") is None else entry.number("memory")
    with _naming(entry.where):
        return Device(entry.text("name"), memory)


def _link(entry: Entry, devices: Mapping[str, int]) -> Link:
    entry.allow("name", "source", "target")
    ends = []
    for field in ("source", "target"):
        name = entry.text(field)
        if name not in devices:
            raise FormatError(f"{entry.where}: {field}: there is no device named {name!r}{_near(name, devices)}")
        ends.append(devices[name])
    return Link(entry.text("name"), *ends)


def _block(entry: Entry) -> Block:
    entry.allow("name", "kind", "devices", "duration", "memory", "workspace", "after")
    kind = entry.text("kind")
    if kind not in set(BlockKind):
        allowed = ", ".join(BlockKind)
        raise FormatError(f"{entry.where}: kind is {kind!r}, it must be one of {allowed}{_near(kind, BlockKind)}")
    devices = entry.get("devices")
    if not isinstance(devices, list) or not all(isinstance(d, int) and not isinstance(d, bool) for d in devices):
        raise FormatError(f"{entry.where}: devices is {_show(devices)}, it must be a list of indices into devices")
    with _naming(entry.where, inner=entry.get("name")):
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
    return tuple(_number(item, f"{entry.where}: {field}") for item in values)


def _dependency(entry: Entry) -> Dependency:
    entry.allow("block", "lag", "link", "distance")
    link = entry.text("link") if entry.get("link", None) is not None else None
    distance = entry.get("distance", 0)
    if not isinstance(distance, int) or isinstance(distance, bool):
        raise FormatError(f"{entry.where}: distance is {_show(distance)}, it must be a whole number")
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


# -- schedules ---------------------------------------------------------------------------------------------------


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """The ``weft.schedule/1`` object of ``schedule``."""
    names = [block.name for block in schedule.problem.blocks]
    repetend = schedule.repetend
    return {
        "format": SCHEDULE_FORMAT,
        "problem": problem_to_json(schedule.problem),
        "micro_batches": schedule.micro_batches,
        "operations": [{"block": names[o.block], "micro_batch": o.micro_batch, "start": o.start, "end": o.end}
                       for o in schedule.operations],
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

    Whether what it says is true is not asked here: :mod:`solver.validate` judges the operations, and
    :func:`misstatements` compares the fields that follow from them.
    """
    entry = Entry(value, where)
    require_format(entry, SCHEDULE_FORMAT)
    entry.allow("format", "problem", "micro_batches", "operations", "makespan", "makespan_bound", "period",
                "period_bound", "repetend", "peak_memory", "status", "solver")
    problem = problem_from_json(entry.get("problem"), f"{where}: problem")
    solver = entry.get("solver")
    if not isinstance(solver, dict):
        raise FormatError(f"{where}: solver is {_show(solver)}, it must be an object")
    _check_derived_fields(entry, len(problem.devices))
    schedule = Schedule(
        problem=problem,
        micro_batches=entry.count("micro_batches", minimum=1),
        operations=tuple(_operation(item, problem) for item in entry.list("operations")),
        makespan_bound=entry.number("makespan_bound"),
        period=None if entry.get("period") is None else entry.number("period"),
        period_bound=None if entry.get("period_bound") is None else entry.number("period_bound"),
        repetend=None if entry.get("repetend") is None else _repetend(entry.child("repetend")),
        solver=solver,
    )
    try:
        json.dumps([solver, schedule.makespan, schedule.peak_memory], allow_nan=False)
    except ValueError:
        raise FormatError(f"{where}: solver holds a number that is not finite, or operations and memory amounts add "
                          "up to one") from None
    return schedule


def _operation(entry: Entry, problem: Problem) -> Operation:
    entry.allow("block", "micro_batch", "start", "end")
    name = entry.text("block")
    if name not in problem.index:
        raise FormatError(f"{entry.where}: block: there is no block named {name!r}{_near(name, problem.index)}")
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
        _number(peak, f"{entry.where}: peak_memory[{device}]")


def misstatements(value: Mapping[str, Any], schedule: Schedule) -> list[str]:
    """What a ``weft.schedule/1`` object states of itself that does not follow from its operations and bounds.

    ``value`` is the object that ``schedule`` was read from. ``makespan``, ``peak_memory`` and ``status`` are there for
    other programs; this one derives them.
    """
    wrong = []
    if not math.isclose(value["makespan"], schedule.makespan, rel_tol=1e-9, abs_tol=1e-12):
        wrong.append(f"makespan is stated as {value['makespan']}, but the last operation ends at {schedule.makespan}")
    for device, (stated, actual) in enumerate(zip(value["peak_memory"], schedule.peak_memory, strict=True)):
        if not math.isclose(stated, actual, rel_tol=1e-9, abs_tol=1e-9):
            wrong.append(f"peak_memory[{device}] is stated as {stated}, but the operations there reach {actual}")
    if value["status"] != schedule.status:
        wrong.append(f"status is stated as {value['status']!r}, but makespan and makespan_bound make it "
                     f"{schedule.status!r}")
    return wrong


# -- one object of a file, with its place in it ------------------------------------------------------------------


class Entry:
    """A JSON object and where it stands; its readers raise :class:`FormatError` with that place."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where}: is {_show(value)}, it must be an object")
        self.value: dict[str, Any] = value
        self.where = where

    def allow(self, *fields: str) -> None:
        for field in self.value:
            if field not in fields:
                raise FormatError(f"{self.where}: unknown field {field!r}{_near(field, fields)}")

    def has(self, field: str) -> bool:
        return field in self.value

    def get(self, field: str, *default: Any) -> Any:
        if field in self.value:
            return self.value[field]
        if default:
            return default[0]
        raise FormatError(f"{self.where}: the field {field!r} is missing")

    def text(self, field: str) -> str:
        value = self.get(field)
        if not isinstance(value, str):
            raise FormatError(f"{self.where}: {field} is {_show(value)}, it must be text")
        return value

    def number(self, field: str) -> Number:
        return _number(self.get(field), f"{self.where}: {field}")

    def count(self, field: str, minimum: int = 0) -> int:
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise FormatError(f"{self.where}: {field} is {_show(value)}, "
                              f"it must be a whole number of at least {minimum}")
        return value

    def child(self, field: str) -> Entry:
        return Entry(self.get(field), f"{self.where}: {field}")

    def list(self, field: str, *, required: bool = True, text_as: str | None = None) -> Iterable[Entry]:
        value = self.get(field) if required else self.get(field, [])
        if not isinstance(value, list):
            raise FormatError(f"{self.where}: {field} is {_show(value)}, it must be a list")
        for i, item in enumerate(value):
            if text_as is not None and isinstance(item, str):
                item = {text_as: item}
            yield Entry(item, f"{self.where}: {field}[{i}]")


class _naming(contextlib.AbstractContextManager["_naming"]):
    """Turns a :class:`ProblemError` raised inside into a :class:`FormatError` that starts with the place."""

    def __init__(self, where: str, inner: Any = None) -> None:
        self.where = where

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProblemError):
            raise FormatError(f"{self.where}: {error}") from None


class _DuplicateKeyError(Exception):
    pass


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(repr(next(key for key in keys if keys.count(key) > 1)))
    return result


def require_format(entry: Entry, expected: str) -> None:
    """Raise :class:`FormatError` unless the ``format`` field of ``entry`` is ``expected``."""
    found = entry.text("format")
    if found == expected:
        return
    family, _, version = found.partition("/")
    if family == expected.partition("/")[0]:
        raise FormatError(f"{entry.where}: format is {found!r}; this weft reads {expected!r} only"
                          + ("; the file comes from a newer weft" if version > expected.partition("/")[2] else ""))
    raise FormatError(f"{entry.where}: format is {found!r}, it must be {expected!r}")


def _number(value: Any, where: str) -> Number:
    if not is_finite_number(value):
        raise FormatError(f"{where} is {_show(value)}, it must be a finite number")
    number: Number = value
    return number


def _near(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, map(str, known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _show(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."

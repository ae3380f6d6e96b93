"""The JSON files of block problems, ``weft.problem/1``, where they are plain (:mod:`weft.solver.io.wide_files`).

Readers refuse an unknown ``format``, an unknown field, a missing one and values of the wrong type, and say which
entry and which field (:class:`~weft.solver.io.entries.FormatError`); what the values mean is checked by
:class:`~weft.solver.problem.Problem` itself. Writers go through :func:`~weft.solver.io.writing.write_atomically`, so
that a full disk or a killed process leaves no half file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.solver.io.entries import Entry, FormatError, named, number, read_json, require_format, show
from weft.solver.io.model_files import facts_from_json, facts_to_json
from weft.solver.io.writing import write_atomically
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem, ProblemError
from weft.solver.spelling import near

__all__ = ["PROBLEM_FORMAT", "amounts_from_json", "amounts_to_json", "block_place", "frame_from_json", "frame_to_json",
           "load_problem", "naming", "problem_from_json", "problem_to_json", "save_problem", "wait_place"]


PROBLEM_FORMAT = "weft.problem/1"


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a ``weft.problem/1`` file. Raises :class:`FormatError`."""
    return problem_from_json(read_json(path), os.fspath(path))


def save_problem(problem: Problem, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.problem/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(problem_to_json(problem), indent=1, allow_nan=False) + "\n")


# -- problems ----------------------------------------------------------------------------------------------------


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """The ``weft.problem/1`` object of ``problem``."""
    result = frame_to_json(problem.name, problem.time_unit, problem.memory_unit, problem.devices, problem.links)
    result["blocks"] = [_block_to_json(block) for block in problem.blocks]
    if problem.model is not None:
        result["model"] = facts_to_json(problem.model)
    return result


def frame_to_json(name: str, time_unit: str, memory_unit: str, devices: Sequence[Device], links: Sequence[Link]
                  ) -> dict[str, Any]:
    """What stands before the blocks."""
    result: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "name": name,
        "time_unit": time_unit,
        "memory_unit": memory_unit,
        "devices": [{"name": device.name, "memory": device.memory,
                     **({"static": device.static} if device.static else {}),
                     **({"lane_of": device.lane_of} if device.lane_of is not None else {})} for device in devices],
    }
    if links:
        result["links"] = [{"name": link.name, "source": devices[link.source].name,
                            "target": devices[link.target].name} for link in links]
    return result


def problem_from_json(value: Any, where: str = "problem") -> Problem:
    """The problem of a ``weft.problem/1`` object; ``where`` (a file name) leads every error message."""
    entry = Entry(value, where)
    require_format(entry, PROBLEM_FORMAT)
    entry.allow("format", "name", "time_unit", "memory_unit", "devices", "links", "blocks", "model")
    devices, links = frame_from_json(entry)
    blocks = tuple(_block(item) for item in entry.list("blocks"))
    with naming(where):
        return Problem(
            name=entry.text("name"),
            devices=devices,
            links=links,
            blocks=blocks,
            time_unit=entry.text("time_unit"),
            memory_unit=entry.text("memory_unit"),
            model=facts_from_json(entry.child("model"), (block.name for block in blocks)) if entry.has("model")
            else None,
        )


def frame_from_json(entry: Entry) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """The devices of a problem and the links between them."""
    devices = tuple(_device(item) for item in entry.list("devices"))
    names = {device.name: i for i, device in enumerate(devices)}
    return devices, tuple(_link(item, names) for item in entry.list("links", required=False))


def _device(entry: Entry) -> Device:
    entry.allow("name", "memory", "static", "lane_of")
    lane_of = entry.text("lane_of") if entry.get("lane_of", None) is not None else None
    memory = None if entry.get("memory", *([None] if lane_of is not None else [])) is None else entry.number("memory")
    static = entry.number("static") if entry.has("static") else 0
    with naming(entry.where):
        return Device(entry.text("name"), memory, static, lane_of)


def _link(entry: Entry, devices: Mapping[str, int]) -> Link:
    entry.allow("name", "source", "target")
    ends = []
    for field in ("source", "target"):
        name = entry.text(field)
        if name not in devices:
            raise FormatError(f"{entry.where}: {field}: there is no device named {named(name)}{near(name, devices)}")
        ends.append(devices[name])
    with naming(entry.where):
        return Link(entry.text("name"), *ends)


def block_place(entry: Entry, *further: str) -> tuple[BlockKind, tuple[int, ...]]:
    """A block's kind and devices; ``further``: which fields it may have beside those of every block."""
    entry.allow("name", "kind", "devices", "duration", "memory", "workspace", "after", *further)
    kind = entry.text("kind")
    if kind not in set(BlockKind):
        allowed = ", ".join(BlockKind)
        raise FormatError(f"{entry.where}: kind is {named(kind)}, it must be one of {allowed}{near(kind, BlockKind)}")
    devices = entry.get("devices")
    if not isinstance(devices, list) or not all(isinstance(d, int) and not isinstance(d, bool) for d in devices):
        raise FormatError(f"{entry.where}: devices is {show(devices)}, it must be a list of indices into devices")
    return BlockKind(kind), tuple(devices)


def _block(entry: Entry) -> Block:
    kind, devices = block_place(entry)
    with naming(entry.where):
        return Block(
            name=entry.text("name"),
            kind=kind,
            devices=devices,
            duration=entry.number("duration"),
            memory=_amounts(entry, "memory", len(devices)),
            workspace=_amounts(entry, "workspace", len(devices)) if entry.has("workspace") else (),
            after=tuple(_dependency(item) for item in entry.list("after", text_as="block")),
        )


def _amounts(entry: Entry, field: str, devices: int) -> tuple[Number, ...]:
    return amounts_from_json(entry.get(field), f"{entry.where}: {field}", devices)


def amounts_from_json(value: Any, where: str, devices: int) -> tuple[Number, ...]:
    """A number for each of so many devices; one that stands alone is that of all."""
    values = value if isinstance(value, list) else [value] * devices
    if len(values) != devices:
        raise FormatError(f"{where} has {len(values)} entries for {devices} devices")
    return tuple(number(item, where) for item in values)


def wait_place(entry: Entry, *further: str) -> tuple[str | None, int]:
    """A wait's link and distance; ``further``: which fields it may have beside those of every wait."""
    entry.allow("block", "lag", "link", "distance", *further)
    link = entry.text("link") if entry.get("link", None) is not None else None
    distance = entry.get("distance", 0)
    if not isinstance(distance, int) or isinstance(distance, bool):
        raise FormatError(f"{entry.where}: distance is {show(distance)}, it must be a whole number")
    return link, distance


def _dependency(entry: Entry) -> Dependency:
    link, distance = wait_place(entry)
    return Dependency(entry.text("block"), entry.number("lag") if entry.has("lag") else 0, link, distance)


def _block_to_json(block: Block) -> dict[str, Any]:
    result: dict[str, Any] = {"name": block.name, "kind": str(block.kind), "devices": list(block.devices),
                              "duration": block.duration, "memory": amounts_to_json(block.memory)}
    if any(block.workspace):
        result["workspace"] = amounts_to_json(block.workspace)
    result["after"] = [_dependency_to_json(dependency) for dependency in block.after]
    return result


def amounts_to_json(amounts: tuple[Number, ...]) -> Number | list[Number]:
    """One number where it is that of all devices."""
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
def naming(where: str) -> Iterator[None]:
    """Turns a :class:`ProblemError` raised inside into a :class:`FormatError` that starts with the place."""
    try:
        yield
    except ProblemError as error:
        raise FormatError(f"{where}: {error}") from None

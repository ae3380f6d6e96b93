"""Block problems with choices, jobs and classes in ``weft.problem/1`` files: the optional fields of the format.

``choices`` of the problem; ``when`` and ``job`` of a block, ``when`` of a wait; a number for each class where else one
stands. A file without any of these is a plain problem (:mod:`weft.solver.io.problem_files`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from weft.solver.io.entries import Entry, FormatError, number, read_json, require_format, show
from weft.solver.io.model_files import facts_from_json, facts_to_json
from weft.solver.io.problem_files import (
    PROBLEM_FORMAT,
    amounts_from_json,
    amounts_to_json,
    block_place,
    frame_from_json,
    frame_to_json,
    naming,
    problem_from_json,
    problem_to_json,
    wait_place,
)
from weft.solver.problem import Number, Problem
from weft.solver.wide.block import Amounts, WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

__all__ = ["any_problem_from_json", "any_problem_to_json", "is_wide", "load_any_problem", "wide_problem_from_json",
           "wide_problem_to_json"]

Value = TypeVar("Value")


def load_any_problem(path: str | os.PathLike[str]) -> Problem | WideProblem:
    """Read a ``weft.problem/1`` file, plain or not. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return any_problem_from_json(read_json(path), os.fspath(path))


def any_problem_from_json(value: Any, where: str = "problem") -> Problem | WideProblem:
    """The problem of a ``weft.problem/1`` object, plain where nothing in it is open."""
    if not is_wide(value):
        return problem_from_json(value, where)
    wide = wide_problem_from_json(value, where)
    with naming(where):
        return wide.plain() if wide.is_plain else wide


def any_problem_to_json(problem: Problem | WideProblem) -> dict[str, Any]:
    """The ``weft.problem/1`` object of ``problem``."""
    return problem_to_json(problem) if isinstance(problem, Problem) else wide_problem_to_json(problem)


def is_wide(value: Any) -> bool:
    """Whether a ``weft.problem/1`` object has one of the optional fields that make it no plain problem."""
    if not isinstance(value, dict):
        return False
    blocks = value.get("blocks")
    return "choices" in value or (isinstance(blocks, list) and any(map(_is_wide_block, blocks)))


def _is_wide_block(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    waits = value.get("after")
    return ("when" in value or "job" in value
            or any(isinstance(value.get(label), dict) for label in ("duration", "memory", "workspace"))
            or (isinstance(waits, list) and any(isinstance(wait, dict) and ("when" in wait or
                                                                            isinstance(wait.get("lag"), dict))
                                                for wait in waits)))


# -- reading -------------------------------------------------------------------------------------------------------


def wide_problem_from_json(value: Any, where: str = "problem") -> WideProblem:
    """The problem of a ``weft.problem/1`` object with optional fields; ``where`` leads every error message."""
    entry = Entry(value, where)
    require_format(entry, PROBLEM_FORMAT)
    entry.allow("format", "name", "time_unit", "memory_unit", "devices", "links", "choices", "blocks", "model")
    devices, links = frame_from_json(entry)
    blocks = tuple(map(_block, entry.list("blocks")))
    facts = (facts_from_json(entry.child("model"), (block.name for block in blocks)) if entry.has("model") else None)
    with naming(where):
        return WideProblem(entry.text("name"), devices, blocks, links, _choices(entry), entry.text("time_unit"),
                           entry.text("memory_unit"), facts)


def _choices(entry: Entry) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    if not entry.has("choices"):
        return found
    listed = entry.child("choices")
    for choice, options in listed.value.items():
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            raise FormatError(f"{listed.where}: {choice} is {show(options)}, it must be a list of options")
        found[choice] = tuple(options)
    return found


def _block(entry: Entry) -> WideBlock:
    kind, devices = block_place(entry, "when", "job")
    with naming(entry.where):
        return WideBlock(
            name=entry.text("name"), kind=kind, devices=devices,
            duration=_per_class(entry, "duration", number),
            memory=_per_class(entry, "memory", lambda value, where: amounts_from_json(value, where, len(devices))),
            workspace=_per_class(entry, "workspace",
                                 lambda value, where: amounts_from_json(value, where, len(devices)), ()),
            after=tuple(map(_wait, entry.list("after", text_as="block"))),
            when=_when(entry), job=entry.text("job") if entry.has("job") else None)


def _wait(entry: Entry) -> WideDependency:
    link, distance = wait_place(entry, "when")
    return WideDependency(entry.text("block"), _per_class(entry, "lag", number, 0), link, distance, _when(entry))


def _when(entry: Entry) -> Mapping[str, str]:
    if not entry.has("when"):
        return {}
    found = entry.child("when")
    for choice, option in found.value.items():
        if not isinstance(option, str):
            raise FormatError(f"{found.where}: {choice} is {show(option)}, it must be one of its options")
    return found.value


def _per_class(entry: Entry, field: str, read: Callable[[Any, str], Value], *default: Value
               ) -> Value | Mapping[str, Value]:
    if default and not entry.has(field):
        return default[0]
    value, where = entry.get(field), f"{entry.where}: {field}"
    if not isinstance(value, dict):
        return read(value, where)
    if not value:
        raise FormatError(f"{where} is empty, it must have a number for each class")
    return {name: read(item, f"{where}: {name}") for name, item in value.items()}


# -- writing -------------------------------------------------------------------------------------------------------


def wide_problem_to_json(problem: WideProblem) -> dict[str, Any]:
    """The ``weft.problem/1`` object of ``problem``."""
    result = frame_to_json(problem.name, problem.time_unit, problem.memory_unit, problem.devices, problem.links)
    if problem.choices:
        result["choices"] = {choice: list(options) for choice, options in problem.choices.items()}
    result["blocks"] = list(map(_block_to_json, problem.blocks))
    if problem.model is not None:
        result["model"] = facts_to_json(problem.model)
    return result


def _block_to_json(block: WideBlock) -> dict[str, Any]:
    return {"name": block.name, "kind": str(block.kind), "devices": list(block.devices),
            "duration": _each(block.duration, _same), "memory": _each(block.memory, _shown),
            **({"workspace": _each(block.workspace, _shown)} if block.workspace else {}),
            **({"when": dict(block.when)} if block.when else {}),
            **({"job": block.job} if block.job is not None else {}),
            "after": list(map(_wait_to_json, block.after))}


def _wait_to_json(wait: WideDependency) -> str | dict[str, Any]:
    result: dict[str, Any] = {"block": wait.block}
    if wait.lag:
        result["lag"] = _each(wait.lag, _same)
    if wait.link is not None:
        result["link"] = wait.link
    if wait.distance:
        result["distance"] = wait.distance
    if wait.when:
        result["when"] = dict(wait.when)
    return wait.block if len(result) == 1 else result


def _each(value: Value | Mapping[str, Value], shown: Callable[[Value], Any]) -> Any:
    return {name: shown(item) for name, item in value.items()} if isinstance(value, Mapping) else shown(value)


def _same(value: Number) -> Number:
    return value


def _shown(amounts: Amounts) -> Number | list[Number]:
    return amounts_to_json(amounts) if amounts else 0

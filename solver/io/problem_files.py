"""The JSON files of block problems, ``weft.problem/1``, plain or not.

The fields beyond those of a plain problem are optional: ``choices`` of the problem; ``when`` and ``job`` of a block,
``when`` of a wait; a number for each class in place of one number.

Readers refuse an unknown ``format``, an unknown field, a missing one and values of the wrong type, and say which entry
and which field (:class:`~weft.solver.io.entries.FormatError`); the meaning of the values is checked by
:class:`~weft.solver.problem.Problem` itself. Writers go through :func:`~weft.solver.io.writing.write_atomically`, so
that a full disk or a killed process leaves no partial file.

The facts about a problem's model are in the optional entry ``model`` of ``weft.problem/1``.

``{"stages": [{"forward", "layers", "parameters", "parameter_bytes", "output_bytes", "deferred", "micro_batch"}],
"ties":
[{"parameter", "stages"}], "tolerance"}``. A stage goes by the name of its forward block; of its other entries each may
be absent, as may ``ties`` and ``tolerance``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from weft.solver.io.entries import Entry, FormatError, named, number, read_json, require_format, show
from weft.solver.io.writing import write_atomically
from weft.solver.model_facts import ModelFacts, StageFacts, TieFacts
from weft.solver.problem import (
    Amounts,
    Block,
    BlockKind,
    Dependency,
    Device,
    Link,
    Number,
    Problem,
    ProblemError,
    per_class,
)
from weft.solver.spelling import near

Value = TypeVar("Value")

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
    devices = problem.devices
    result: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "name": problem.name,
        "time_unit": problem.time_unit,
        "memory_unit": problem.memory_unit,
        "devices": [{"name": device.name, "memory": device.memory,
                     **({"static": device.static} if device.static else {}),
                     **({"lane_of": device.lane_of} if device.lane_of is not None else {})} for device in devices],
    }
    if problem.links:
        result["links"] = [{"name": link.name, "source": devices[link.source].name,
                            "target": devices[link.target].name} for link in problem.links]
    if problem.choices:
        result["choices"] = {choice: list(options) for choice, options in problem.choices.items()}
    result["blocks"] = list(map(_block_to_json, problem.blocks))
    if problem.model is not None:
        result["model"] = facts_to_json(problem.model)
    return result


def problem_from_json(value: Any, where: str = "problem", *, jobs: bool = False) -> Problem:
    """The problem of a ``weft.problem/1`` object; ``where`` (a file name) leads every error message. A single job is
    left out of what is plain, unless ``jobs`` is set."""
    entry = Entry(value, where)
    require_format(entry, PROBLEM_FORMAT)
    entry.allow("format", "name", "time_unit", "memory_unit", "devices", "links", "choices", "blocks", "model")
    devices = tuple(map(_device, entry.list("devices")))
    names = {device.name: i for i, device in enumerate(devices)}
    links = tuple(_link(item, names) for item in entry.list("links", required=False))
    blocks = tuple(map(_block, entry.list("blocks")))
    facts = facts_from_json(entry.child("model"), (block.name for block in blocks)) if entry.has("model") else None
    name, units = entry.text("name"), (entry.text("time_unit"), entry.text("memory_unit"))
    with naming(where):
        found = Problem(name, devices, blocks, links, *units, facts, _choices(entry))
        return found.plain() if found.jobs and found.is_plain and not jobs else found


def _choices(entry: Entry) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for choice, options in entry.child("choices").value.items() if entry.has("choices") else ():
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            raise FormatError(f"{entry.where}: choices: {choice} is {show(options)}, it must be a list of options")
        found[choice] = tuple(options)
    return found


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


def _block(entry: Entry) -> Block:
    entry.allow("name", "kind", "devices", "duration", "memory", "workspace", "after", "when", "job")
    kind = entry.text("kind")
    if kind not in set(BlockKind):
        allowed = ", ".join(BlockKind)
        raise FormatError(f"{entry.where}: kind is {named(kind)}, it must be one of {allowed}{near(kind, BlockKind)}")
    devices = entry.get("devices")
    if not isinstance(devices, list) or not all(isinstance(d, int) and not isinstance(d, bool) for d in devices):
        raise FormatError(f"{entry.where}: devices is {show(devices)}, it must be a list of indices into devices")

    def amounts(value: Any, where: str) -> tuple[Number, ...]:
        """A number for each device; a single one is that of all."""
        values = value if isinstance(value, list) else [value] * len(devices)
        if len(values) != len(devices):
            raise FormatError(f"{where} has {len(values)} entries for {len(devices)} devices")
        return tuple(number(item, where) for item in values)

    with naming(entry.where):
        return Block(
            entry.text("name"), BlockKind(kind), tuple(devices), **per_class(
                duration=_each(entry, "duration", number), memory=_each(entry, "memory", amounts),
                workspace=_each(entry, "workspace", amounts, ())),
            after=tuple(map(_wait, entry.list("after", text_as="block"))), when=_when(entry),
            job=entry.text("job") if entry.has("job") else None)


def _wait(entry: Entry) -> Dependency:
    entry.allow("block", "lag", "link", "distance", "when")
    link = entry.text("link") if entry.get("link", None) is not None else None
    distance = entry.get("distance", 0)
    if not isinstance(distance, int) or isinstance(distance, bool):
        raise FormatError(f"{entry.where}: distance is {show(distance)}, it must be a whole number")
    return Dependency(entry.text("block"), link=link, distance=distance, when=_when(entry),
                      **per_class(lag=_each(entry, "lag", number, 0)))


def _when(entry: Entry) -> Mapping[str, str]:
    if not entry.has("when"):
        return {}
    found = entry.child("when")
    for choice, option in found.value.items():
        if not isinstance(option, str):
            raise FormatError(f"{found.where}: {choice} is {show(option)}, it must be one of its options")
    return found.value


def _each(entry: Entry, field: str, read: Callable[[Any, str], Value], *default: Value) -> Value | Mapping[str, Value]:
    """One value, or one for each class."""
    if default and not entry.has(field):
        return default[0]
    value, where = entry.get(field), f"{entry.where}: {field}"
    if not isinstance(value, dict):
        return read(value, where)
    if not value:
        raise FormatError(f"{where} is empty, it must have a number for each class")
    return {name: read(item, f"{where}: {name}") for name, item in value.items()}


def _block_to_json(block: Block) -> dict[str, Any]:
    result: dict[str, Any] = {"name": block.name, "kind": str(block.kind), "devices": list(block.devices),
                              "duration": block.by_class.get("duration", block.duration),
                              "memory": _amounts_to_json(block, "memory")}
    if any(block.workspace) or "workspace" in block.by_class:
        result["workspace"] = _amounts_to_json(block, "workspace")
    if block.when:
        result["when"] = dict(block.when)
    if block.job is not None:
        result["job"] = block.job
    result["after"] = list(map(_wait_to_json, block.after))
    return result


def _wait_to_json(wait: Dependency) -> str | dict[str, Any]:
    result: dict[str, Any] = {"block": wait.block}
    if wait.lag or wait.by_class:
        result["lag"] = wait.by_class.get("lag", wait.lag)
    if wait.link is not None:
        result["link"] = wait.link
    if wait.distance:
        result["distance"] = wait.distance
    if wait.when:
        result["when"] = dict(wait.when)
    return wait.block if len(result) == 1 else result


def _amounts_to_json(block: Block, label: str) -> Any:
    """A single number if it is the same on all devices; for each class if they differ."""
    def shown(amounts: Amounts) -> Number | list[Number]:
        return list(amounts) if len(set(amounts)) > 1 else amounts[0] if amounts else 0

    if label in block.by_class:
        return {name: shown(amounts) for name, amounts in block.by_class[label].items()}
    return shown(getattr(block, label))


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Turns a :class:`ProblemError` raised inside into a :class:`FormatError` that starts with the place."""
    try:
        yield
    except ProblemError as error:
        raise FormatError(f"{where}: {error}") from None


_AMOUNTS = ("parameters", "parameter_bytes", "output_bytes", "deferred", "micro_batch")


def facts_to_json(facts: ModelFacts) -> dict[str, Any]:
    """The ``model`` entry of a problem file."""
    return {
        "stages": [{"forward": stage.forward, **({"layers": list(stage.layers)} if stage.layers else {}),
                    **{name: value for name in _AMOUNTS if (value := getattr(stage, name)) is not None}}
                   for stage in facts.stages],
        **({"ties": [{"parameter": tie.parameter, "stages": list(tie.stages)} for tie in facts.ties]}
           if facts.ties else {}),
        **({"tolerance": facts.tolerance} if facts.tolerance else {}),
    }


def facts_from_json(entry: Entry, blocks: Iterable[str]) -> ModelFacts:
    """The facts of a ``model`` entry about stages among ``blocks``.

    Raises :class:`~weft.solver.io.entries.FormatError`.
    """
    entry.allow("stages", "ties", "tolerance")
    known, stages, ties = set(blocks), [], []
    for item in entry.list("stages"):
        item.allow("forward", "layers", *_AMOUNTS)
        stages.append(StageFacts(_known(item.text("forward"), item, "forward", known), _texts(item, "layers"),
                                 **{name: item.count(name) for name in _AMOUNTS if item.has(name)}))
    for item in entry.list("ties", required=False):
        item.allow("parameter", "stages")
        ties.append(TieFacts(item.text("parameter"),
                             tuple(_known(name, item, "stages", known) for name in _texts(item, "stages"))))
    tolerance = entry.number("tolerance") if entry.has("tolerance") else 0.0
    if not 0 <= tolerance < 1:
        raise FormatError(f"{entry.where}: tolerance is {tolerance}, it must be at least 0 and less than 1")
    if len({stage.forward for stage in stages}) < len(stages):
        raise FormatError(f"{entry.where}: stages names a forward block twice")
    return ModelFacts(tuple(stages), tuple(ties), float(tolerance))


def _texts(item: Entry, field: str) -> tuple[str, ...]:
    value = item.get(field, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FormatError(f"{item.where}: {field} is {show(value)}, it must be a list of texts")
    return tuple(value)


def _known(name: str, item: Entry, field: str, blocks: set[str]) -> str:
    if name not in blocks:
        raise FormatError(f"{item.where}: {field}: there is no block named {show(name)}")
    return name

"""The kinds of values in a spec: names, and quantities with units."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, StringConstraints, ValidationInfo, WithJsonSchema

from weft.models.files.limits import (
    MAX_GPUS,
    MAX_GRAPH_NAME,
    MAX_LAYERS,
    MAX_MICRO_BATCHES,
    MAX_NAME,
    MAX_SEQUENCE,
    PRINTABLE,
)
from weft.models.hardware.device_files import TABLE_FILES
from weft.models.hardware.devices import DEVICES, DeviceError
from weft.models.spec.base import refuse
from weft.models.spec.quantities import (
    BANDWIDTH,
    BYTES,
    MEMORY,
    RESERVE,
    SECONDS,
    SOME_SECONDS,
    parse_bandwidth,
    parse_bytes,
    parse_memory,
    parse_reserve,
    parse_seconds,
)
from weft.solver.io.megatron_layout import LayoutTextError, layers_of_layout

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
Bytes: TypeAlias = Annotated[int, BeforeValidator(parse_bytes), WithJsonSchema(BYTES.schema)]
Reserve: TypeAlias = Annotated[int, BeforeValidator(parse_reserve), WithJsonSchema(RESERVE.schema)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(parse_seconds), WithJsonSchema(SECONDS.schema)]
SomeSeconds: TypeAlias = Annotated[float, BeforeValidator(SOME_SECONDS.parse), WithJsonSchema(SOME_SECONDS.schema)]
Bandwidth: TypeAlias = Annotated[float, BeforeValidator(parse_bandwidth), WithJsonSchema(BANDWIDTH.schema)]


def _bytes_each(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return (parse_memory(value),)
    if not 1 <= len(value) <= MAX_GPUS:
        refuse(f"lists {len(value)} amounts, it must be one amount, or a list of 1 to {MAX_GPUS}")
    amounts = []
    for i, item in enumerate(value):
        try:
            amounts.append(parse_memory(item))
        except ValueError as error:
            refuse(f"entry {i} is {item!r:.60}, {error}")
    return tuple(amounts)


BytesEach: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_bytes_each), WithJsonSchema(
    {"anyOf": [*MEMORY.schema["anyOf"],
               {"type": "array", "minItems": 1, "maxItems": MAX_GPUS, "items": MEMORY.schema}]})]


_DEVICES = ", ".join(DEVICES)


def device_each(value: object, info: ValidationInfo) -> str | tuple[str, ...]:
    """A device, or one for each GPU: names, or paths of tables, relative to the folder of the context."""
    folder = (info.context or {}).get("folder") or Path()
    if not isinstance(value, list):
        if isinstance(value, str) and value in DEVICES:
            return value
        if isinstance(value, str) and value.endswith(TABLE_FILES):
            return _table(value, folder)
        raise ValueError(f"it must be one of {_DEVICES}, a table of weft calibrate (.json, .yaml), or a list with one "
                         f"of them for each GPU{_near_device(value)}")
    if not 1 <= len(value) <= MAX_GPUS:
        refuse(f"lists {len(value)} GPUs, it must be one device, or a list of 1 to {MAX_GPUS}")
    found = []
    for i, item in enumerate(value):
        if isinstance(item, str) and item.endswith(TABLE_FILES):
            found.append(_table(item, folder))
        elif not isinstance(item, str) or item not in DEVICES:
            refuse(f"entry {i} is {item!r:.60}, it must be one of {_DEVICES}{_near_device(item)}")
        else:
            found.append(item)
    return tuple(found)


def _table(name: str, folder: Path) -> str:
    """The path of a device table that can be read."""
    path = str((folder / name).absolute())
    try:
        DEVICES[path]
    except DeviceError as error:
        refuse(str(error))
    return path


def _near_device(value: object) -> str:
    if not isinstance(value, str):
        return ""
    longer = [name for name in DEVICES if value and name.startswith(value)]
    near = longer or difflib.get_close_matches(value, DEVICES, n=1)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


_DEVICE_NAME: dict[str, object] = {"anyOf": [{"type": "string", "enum": list(DEVICES)}, {
    "type": "string", "pattern": r"\.(json|ya?ml)$"}]}
#: A device, or one for each GPU.
DeviceEach: TypeAlias = Annotated[str | tuple[str, ...], BeforeValidator(device_each), WithJsonSchema({"anyOf": [
    _DEVICE_NAME, {"type": "array", "minItems": 1, "maxItems": MAX_GPUS, "items": _DEVICE_NAME}]})]

#: Relative speeds: a GPU below a thousandth, or above a thousand, is not realistic.
_SLOWEST, _FASTEST = 1e-3, 1e3


def _speed_each(value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError("it must be a list with a number for each GPU, such as [1, 1, 2, 2]")
    if not 1 <= len(value) <= MAX_GPUS:
        refuse(f"lists {len(value)} GPUs, it must be a list of 1 to {MAX_GPUS} numbers")
    for i, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int | float) or not _SLOWEST <= item <= _FASTEST:
            refuse(f"entry {i} is {item!r:.60}, it must be a number from {_SLOWEST:g} to {_FASTEST:g}")
    return tuple(map(float, value))


SpeedEach: TypeAlias = Annotated[tuple[float, ...], BeforeValidator(_speed_each), WithJsonSchema(
    {"type": "array", "minItems": 1, "maxItems": MAX_GPUS,
     "items": {"type": "number", "minimum": _SLOWEST, "maximum": _FASTEST}})]

_CUT = ("a list: how many layers each stage has, such as [6, 7, 7, 6], or the first layer of each by name")


def _cut(value: object) -> tuple[int, ...] | tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"it must be {_CUT}")
    if not 1 <= len(value) <= MAX_LAYERS:
        refuse(f"lists {len(value)} stages, it must be {_CUT}, of 1 to {MAX_LAYERS} stages")
    counts, names = [], []
    for i, item in enumerate(value):
        if isinstance(item, str):
            names.append(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            counts.append(item)
        else:
            refuse(f"entry {i} is {item!r:.60}, it must be a number of layers or the name of one")
    if counts and names:
        refuse(f"mixes numbers ({counts[0]!r:.60}) and names ({names[0]!r:.60}); it must be {_CUT}")
    for i, count in enumerate(counts):
        if not 1 <= count <= MAX_LAYERS:
            refuse(f"entry {i} is {count!r:.60}, every stage has 1 to {MAX_LAYERS} layers")
    for i, name in enumerate(names):
        if not 1 <= len(name) <= MAX_GRAPH_NAME:
            refuse(f"entry {i} has {len(name)} letters, a layer's name has 1 to {MAX_GRAPH_NAME}")
    return tuple(names) if names else tuple(counts)


def _list_of(item: dict[str, object]) -> dict[str, object]:
    return {"type": "array", "minItems": 1, "maxItems": MAX_LAYERS, "items": item}


Cut: TypeAlias = Annotated[tuple[int, ...] | tuple[str, ...], BeforeValidator(_cut), WithJsonSchema({"anyOf": [
    _list_of({"type": "integer", "minimum": 1, "maximum": MAX_LAYERS}),
    _list_of({"type": "string", "minLength": 1, "maxLength": MAX_GRAPH_NAME})]})]



def _layout(value: object) -> tuple[int, ...]:
    if not isinstance(value, str) or not 1 <= len(value) <= 10_000:
        raise ValueError("it must be a text as of Megatron-LM, such as 'Et*2|(t*2|)*3,tL'")
    try:
        counts = layers_of_layout(value)
    except LayoutTextError as error:
        refuse(f"is {value!r:.60}: {error}")
    return _cut(list(counts))  # type: ignore[return-value]


#: Megatron-LM's text for the layers of each stage; read, their numbers.
Layout: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_layout), WithJsonSchema(
    {"type": "string", "minLength": 1, "maxLength": 10_000})]

_LENGTHS = "a list with the tokens of each micro-batch's sequence, such as [512, 2048, 1024], or a file of them"


def _lengths(value: object) -> tuple[int, ...] | str:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list):
        raise ValueError(f"it must be {_LENGTHS}")
    if not 1 <= len(value) <= MAX_MICRO_BATCHES:
        refuse(f"lists {len(value) or 'no'} micro-batches, it must be {_LENGTHS}, of 1 to {MAX_MICRO_BATCHES}")
    return tuple(_length(f"entry {i}", item) for i, item in enumerate(value))


def _length(where: str, item: object) -> int:
    if isinstance(item, float) and item.is_integer():
        item = int(item)
    if isinstance(item, bool) or not isinstance(item, int) or not 1 <= item <= MAX_SEQUENCE:
        refuse(f"{where} is {item!r:.60}, it must be a number of tokens from 1 to {MAX_SEQUENCE}")
    return item


def lengths_text(text: str) -> tuple[int, ...]:
    """The lengths in a file: numbers separated by spaces, commas or newlines, with or without brackets. Raises
    ``ValueError`` with the error, a phrase without the file's name."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words:
        raise ValueError("holds no lengths")
    if len(words) > MAX_MICRO_BATCHES:
        raise ValueError(f"holds {len(words)} lengths, at most {MAX_MICRO_BATCHES} micro-batches run")
    for i, word in enumerate(words):
        if not (word.isascii() and word.isdigit() and len(word) < 12 and 1 <= int(word) <= MAX_SEQUENCE):
            raise ValueError(f"entry {i} is {word!r:.60}, it must be a number of tokens from 1 to {MAX_SEQUENCE}")
    return tuple(map(int, words))


#: The tokens of each micro-batch's sequence, or the file that holds them.
Lengths: TypeAlias = Annotated[tuple[int, ...] | str, BeforeValidator(_lengths), WithJsonSchema({"anyOf": [
    {"type": "array", "minItems": 1, "maxItems": MAX_MICRO_BATCHES,
     "items": {"type": "integer", "minimum": 1, "maximum": MAX_SEQUENCE}},
    {"type": "string", "minLength": 1, "maxLength": MAX_NAME}]})]

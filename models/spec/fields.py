"""The kinds of values that entries of a spec have: names, and quantities with units."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

from weft.models.files.limits import MAX_GPUS, MAX_NAME, PRINTABLE
from weft.models.spec.base import refuse
from weft.models.spec.quantities import (
    BANDWIDTH,
    BYTES,
    SECONDS,
    SOME_BYTES,
    SOME_SECONDS,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)

__all__ = ["Bandwidth", "Bytes", "BytesEach", "Name", "Seconds", "SomeSeconds"]

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
Bytes: TypeAlias = Annotated[int, BeforeValidator(parse_bytes), WithJsonSchema(BYTES.schema)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(parse_seconds), WithJsonSchema(SECONDS.schema)]
SomeSeconds: TypeAlias = Annotated[float, BeforeValidator(SOME_SECONDS.parse), WithJsonSchema(SOME_SECONDS.schema)]
Bandwidth: TypeAlias = Annotated[float, BeforeValidator(parse_bandwidth), WithJsonSchema(BANDWIDTH.schema)]


def _bytes_each(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return (round(SOME_BYTES.parse(value)),)
    if not 1 <= len(value) <= MAX_GPUS:
        refuse(f"lists {len(value)} amounts, it must be one amount, or a list of 1 to {MAX_GPUS}")
    amounts = []
    for i, item in enumerate(value):
        try:
            amounts.append(round(SOME_BYTES.parse(item)))
        except ValueError as error:
            refuse(f"entry {i} is {item!r:.60}, {error}")
    return tuple(amounts)


BytesEach: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_bytes_each), WithJsonSchema(
    {"anyOf": [*SOME_BYTES.schema["anyOf"],
               {"type": "array", "minItems": 1, "maxItems": MAX_GPUS, "items": SOME_BYTES.schema}]})]

"""Input files, from people and programs: read, refused in one sentence, written whole.

An :class:`Entry` is one JSON object with its place in its file. Its readers refuse an unknown field, a missing one and
a value of the wrong type, and say where (:class:`FormatError`).
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from weft.solver.io.reading import read_text
from weft.solver.problem import Number
from weft.solver.spelling import near
from weft.solver.values import LARGEST, is_finite_number, unprintable

#: Larger files are a mistake: two million operations, the most a search takes, are a third of that.
MOST_BYTES = 2**29
#: The begin of escaped characters, and unescaped characters in a file that cannot be displayed.
_SUSPICIOUS = re.compile("\\\\u|[\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\U0001fffe-\U0010ffff]")
_SPACES = str.maketrans("", "", "\t\n\r")


class FormatError(ValueError):
    """An invalid file: the message names the file, the entry and the field."""


# -- files ---------------------------------------------------------------------------------------------------------


def read_input(path: str | os.PathLike[str]) -> str:
    """The text in ``path``. Raises :class:`FormatError` for what is no file, cannot be read, holds more than
    :data:`MOST_BYTES` or is no UTF-8."""
    return read_text(path, MOST_BYTES, "an input", FormatError)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in ``path``. Raises :class:`FormatError` for a missing, empty or broken file, and for one with
    characters that cannot be shown."""
    name, text = os.fspath(path), read_input(path)
    if not text.strip():
        raise FormatError(f"{name}: is empty")
    try:
        value = json.loads(text, object_pairs_hook=_refuse_duplicate_keys)
    except json.JSONDecodeError as error:
        raise FormatError(f"{name}: line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except ValueError as error:  # a whole number with thousands of digits
        raise FormatError(f"{name}: not JSON ({str(error).partition(':')[0]})") from None
    except _DuplicateKeyError as error:
        raise FormatError(f"{name}: the key {error} appears twice in one object") from None
    except RecursionError:
        raise FormatError(f"{name}: is nested too deeply") from None
    except MemoryError:
        raise FormatError(f"{name}: does not fit this machine's memory") from None
    if _SUSPICIOUS.search(text):
        _refuse_unprintable(value, name)
    return value


class _DuplicateKeyError(Exception):
    pass


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(named(next(key for key, count in Counter(keys).items() if count > 1)))
    return result


def _refuse_unprintable(value: Any, name: str) -> None:
    """Raise :class:`FormatError` for a text or key in ``value`` that cannot be displayed; line breaks and tabs can."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            character = unprintable(item.translate(_SPACES))
            if character is not None:
                raise FormatError(f"{name}: the text {show(item)} holds the character {character}, which cannot be "
                                  "shown")
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item


# -- one object of a file, with its place in it ---------------------------------------------------------------------


class Entry:
    """A JSON object and its place; its readers raise :class:`FormatError` with that place."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{where}: is {show(value)}, it must be an object")
        self.value: dict[str, Any] = value
        self.where = where

    def allow(self, *fields: str) -> None:
        for field in self.value:
            if field not in fields:
                raise FormatError(f"{self.where}: unknown field {named(field)}{near(field, fields)}")

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
            raise FormatError(f"{self.where}: {field} is {show(value)}, it must be text")
        return value

    def number(self, field: str) -> Number:
        return number(self.get(field), f"{self.where}: {field}")

    def count(self, field: str, minimum: int = 0) -> int:
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise FormatError(f"{self.where}: {field} is {show(value)}, "
                              f"it must be a whole number of at least {minimum}")
        return value

    def child(self, field: str) -> Entry:
        return Entry(self.get(field), f"{self.where}: {field}")

    def list(self, field: str, *, required: bool = True, text_as: str | None = None) -> Iterable[Entry]:
        value = self.get(field) if required else self.get(field, [])
        if not isinstance(value, list):
            raise FormatError(f"{self.where}: {field} is {show(value)}, it must be a list")
        for i, item in enumerate(value):
            if text_as is not None and isinstance(item, str):
                item = {text_as: item}
            yield Entry(item, f"{self.where}: {field}[{i}]")


def require_format(entry: Entry, expected: str) -> None:
    """Raise :class:`FormatError` unless the ``format`` field of ``entry`` is ``expected``."""
    found = entry.text("format")
    if found == expected:
        return
    family, _, version = found.partition("/")
    if family == expected.partition("/")[0]:
        raise FormatError(f"{entry.where}: format is {named(found)}; this weft reads {expected!r} only"
                          + ("; the file comes from a newer weft" if version > expected.partition("/")[2] else ""))
    raise FormatError(f"{entry.where}: format is {named(found)}, it must be {expected!r}")


def number(value: Any, where: str) -> Number:
    """``value``, which must be a finite number of at most :data:`~weft.solver.values.LARGEST`."""
    if not is_finite_number(value):
        raise FormatError(f"{where} is {show(value)}, it must be a finite number of at most {LARGEST:g}")
    number: Number = value
    return number


def named(name: str) -> str:
    """``name`` in quotes, cut short."""
    return ascii(name if len(name) <= 60 else name[:57] + "...") if unprintable(name) or len(name) > 60 else repr(name)


def show(value: Any) -> str:
    """``value`` as JSON, cut short."""
    try:
        text = json.dumps(value, default=repr)
    except (RecursionError, ValueError):  # nested too deep to write, or a number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."

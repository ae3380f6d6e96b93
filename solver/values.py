"""What numbers and names there may be in a problem, and what is said of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import TypeAlias

Number: TypeAlias = int | float

#: No duration, transfer or amount is larger, and none that is not 0 is smaller: sums over millions of operations, and
#: products and quotients of such sums, stay finite and above 0 in floats.
LARGEST_AMOUNT, SMALLEST_AMOUNT = 1e60, 1e-60
#: No other number in a file is larger, such as the times that follow from these.
LARGEST = 1e100
_NUMBERS = frozenset((int, float))
#: Names are no longer: they stand in messages, tables and pictures.
MOST_NAME = 1000
#: Control characters, halves of surrogate pairs, and code points that are no characters: terminals obey the first,
#: files in UTF-8 cannot hold the second, renderers of pictures end the process at the third.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
                          + "".join(chr(plane << 16 | end) for plane in range(17) for end in (0xFFFE, 0xFFFF)) + "]")


class ProblemError(ValueError):
    """A problem that means nothing: a cycle, a duplicate name, a device out of range, a negative duration ..."""


def is_finite_number(value: object) -> bool:
    """Whether ``value`` is an ``int`` or ``float`` (no ``bool``), finite, and at most :data:`LARGEST` either way."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= LARGEST  # NaN compares false


def unprintable(text: str) -> str | None:
    """The first character in ``text`` that no terminal, file or picture can hold, as it is escaped; None without."""
    found = _UNPRINTABLE.search(text)
    return None if found is None else ascii(found.group())


def require_name(name: str, what: str) -> None:
    """Raises :class:`ProblemError` unless ``name`` is a text that can be shown and is not too long; ``what`` says whose
    name it is."""
    if not isinstance(name, str):
        raise ProblemError(f"{what}: the name is {name!r:.60}, it must be text")
    character = unprintable(name)
    if character is None and len(name) <= MOST_NAME:
        return
    begin = ascii(name if len(name) <= 60 else name[:57] + "...")
    if len(name) > MOST_NAME:
        raise ProblemError(f"{what} {begin}: the name has {len(name)} characters, at most {MOST_NAME} are allowed")
    raise ProblemError(f"{what} {begin}: the name holds the character {character}, which cannot be shown")


def is_summable(value: Number) -> bool:
    """Whether sums can be made of ``value``: what :func:`require_finite` lets pass, told at once."""
    return type(value) in _NUMBERS and (value == 0 or SMALLEST_AMOUNT <= abs(value) <= LARGEST_AMOUNT)


def require_finite(value: Number, where: str) -> None:
    """Raises :class:`ProblemError` unless sums can be made of ``value``, which is found at ``where``."""
    if not is_finite_number(value) or abs(value) > LARGEST_AMOUNT:
        raise ProblemError(f"{where} is {value!r:.60}, it must be a finite number of at most {LARGEST_AMOUNT:g}")
    if 0 < abs(value) < SMALLEST_AMOUNT:
        raise ProblemError(f"{where} is {value!r:.60}, it must be 0 or at least {SMALLEST_AMOUNT:g}")


def require_amount(value: Number, where: str) -> None:
    """The same for one that is not negative."""
    require_finite(value, where)
    if value < 0:
        raise ProblemError(f"{where} is {value}, it must be 0 or more")


def require_distinct(what: str, names: Iterable[str]) -> None:
    """Raises :class:`ProblemError` for a name that two have."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ProblemError(f"{what}: the name {name!r} is used twice")
        seen.add(name)


def exact(value: Number) -> Fraction:
    """The decimal number that was written: 0.1 is one tenth, not the binary float next to it."""
    return Fraction(str(value))


def plain(value: Fraction) -> Number:
    """A number as files have it."""
    return int(value) if value.denominator == 1 else float(value)

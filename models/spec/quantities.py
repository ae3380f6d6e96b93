"""Parsing of numbers with units: ``32 GiB``, ``1.5 ms``, ``36 GB/s``; and formatting for messages.

Decimal prefixes are powers of 1000 (GB), binary ones of 1024 (GiB). A plain number is in the base unit: bytes,
seconds, bytes per second; an implausible one (24 bytes of GPU memory, a layer of 6 seconds) is refused with a question.
Each :class:`Quantity` is the single definition of valid text, for the reader and the JSON Schema: sizes are limited by
the digits allowed for each unit, which a pattern can express.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

#: Maximum bytes, and bytes a second (larger ones are not exact as floats). Texts are limited by their digits: 15 of
#: bytes, 12 of KB ...
LARGEST = 2**53
#: Seconds, 32 years: in nanoseconds still a 64-bit integer. Texts have 9 digits of seconds at most, 12 of ms ...
LONGEST = 1e9
#: Maximum letters of a quantity.
_LETTERS = 64

_SPACE = r"[ \t\r\n\u00a0]*"
#: Digits before the point of a number with an exponent.
_MANTISSA = 3


class _Unit(NamedTuple):
    """A unit's notation (a pattern), its size, and the allowed digits of a number."""

    pattern: str
    scale: float
    digits: int

    def number(self, finest: int, *, some: bool, whole: bool = False) -> str:
        """The pattern of a number of this unit.

        ``finest``: digits of the smallest unit; ``some``: at least one of it; ``whole``: without a fraction.
        """
        plain = rf"{_digits(self.digits)}(?:\.0*)?" if whole else rf"{_digits(self.digits)}(?:\.[0-9]*)?|\.[0-9]+"
        raised = rf"(?:[0-9]{{1,{_MANTISSA}}}(?:\.[0-9]*)?|\.[0-9]+)[eE]"
        up = rf"{raised}\+?0*{_up_to(self.digits - _MANTISSA)}"
        if whole:
            down = ""
        elif some:
            down = rf"|(?=[0_]*[1-9]){raised}-0*{_up_to(finest - self.digits)}"
        else:
            down = rf"|{raised}-0*[0-9]{{1,2}}"
        return rf"\+?(?:{self._some(finest) if some else ''}(?:{up}|{plain}){down})"

    def _some(self, finest: int) -> str:
        """A lookahead for a nonzero digit worth at least one of the smallest unit."""
        behind = finest - self.digits
        return r"(?=[0_]*[1-9]" + (rf"|[0_]*\.0{{0,{behind - 1}}}[1-9]" if behind else "") + ")"


def _digits(most: int) -> str:
    return f"[0-9](?:_?[0-9]){{0,{most - 1}}}"


def _up_to(most: int) -> str:
    """One of the numbers 0 to ``most``, which is below 20."""
    return f"[0-{most}]" if most < 10 else f"(?:[0-9]|1[0-{most - 10}])"


@dataclass(frozen=True)
class _Plain:
    """The allowed plain numbers besides 0: at least ``least``, and less than ``below``. ``pattern``: those given as
    text. Others are implausible in the unit ``base``; the refusal proposes ``unit``."""

    least: float
    below: float
    pattern: str
    base: str
    unit: str

    def question(self, value: float) -> str:
        """The message for a disallowed number."""
        return f"without a unit that is {value:.12g} {self.base}: did you mean '{value:.12g} {self.unit}'?"


@dataclass(frozen=True)
class Quantity:
    """The valid notations of an amount.

    ``allowed``: in words, for messages. ``units``: the first is that of a plain number, whose limits are ``least`` and
    ``most``. ``some``: 0 is not allowed. ``whole``: a plain number has no fraction, and amounts are rounded to whole
    ones. ``hint``: the message for an ambiguous unit. Text without a unit has that of plain numbers. ``plain``: the
    allowed plain numbers, if not all are.
    """

    allowed: str
    units: Sequence[_Unit]
    least: float
    most: float
    some: bool = False
    whole: bool = False
    hint: Mapping[str, str] = field(default_factory=dict)
    plain: _Plain | None = None

    def __post_init__(self) -> None:
        finest = max(unit.digits for unit in self.units)
        numbers: dict[str, list[str]] = {}
        texts = []
        for unit in self.units:
            number = unit.number(finest, some=self.some)
            numbers.setdefault(number, []).append(unit.pattern)
            texts.append((f"{_SPACE}(?:{number}){_SPACE}{unit.pattern}{_SPACE}", unit.scale))
        bare = self.units[0].number(finest, some=self.some, whole=self.whole)
        object.__setattr__(self, "_any_plain", bare)
        if self.plain is not None:
            bare = rf"(?=\+?(?:{self.plain.pattern}{'' if self.some else f'|{_ZERO}'}){_SPACE}$)(?:{bare})"
        texts.append((f"{_SPACE}(?:{bare}){_SPACE}", 1.0))
        written = [f"{number}{_SPACE}(?:{'|'.join(patterns)})" for number, patterns in numbers.items()]
        object.__setattr__(self, "_texts", texts)
        pattern = f"^{_SPACE}(?:{'|'.join([*written, bare])}){_SPACE}$"
        object.__setattr__(self, "schema", {"anyOf": [
            *self._numbers(), {"type": "string", "maxLength": _LETTERS, "pattern": pattern}]})

    #: The JSON Schema of the input of :meth:`parse`.
    schema: dict[str, Any] = field(init=False, repr=False)
    _texts: Sequence[tuple[str, float]] = field(init=False, repr=False)
    _any_plain: str = field(init=False, repr=False)

    def _numbers(self) -> list[dict[str, Any]]:
        """The JSON Schema of plain numbers."""
        kind = {"type": "integer" if self.whole else "number"}
        if self.plain is None:
            return [{**kind, "minimum": self.least, "maximum": self.most}]
        zero = [] if self.some else [{**kind, "minimum": 0, "maximum": 0}]
        most = {"maximum": self.most} if self.plain.below > self.most else {"exclusiveMaximum": self.plain.below}
        return [{**kind, "minimum": max(self.least, self.plain.least), **most}, *zero]

    def parse(self, value: object) -> float:
        """The amount in base units. Raises ``ValueError`` with the allowed values."""
        if isinstance(value, str):
            return self._of_text(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"it must be {self.allowed}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"it must be finite: {self.allowed}")
        if value < self.least:
            raise ValueError(self._too_small(value))
        if value > self.most:
            raise ValueError(f"it is too large: it must be {self.allowed}")
        if self.whole and value != int(value):
            raise ValueError(f"it must be {self.allowed}")
        self._require_unit(value)
        return value

    def _require_unit(self, value: float) -> None:
        if self.plain is not None and value and not self.plain.least <= value < self.plain.below:
            raise ValueError(f"{self.plain.question(value)} (it must be {self.allowed})")

    def _of_text(self, text: str) -> float:
        if len(text) > _LETTERS:
            raise ValueError(f"it is longer than {_LETTERS} letters: it must be {self.allowed}")
        for pattern, scale in self._texts:
            if re.fullmatch(pattern, text):
                return float(_parts(text)[0].replace("_", "")) * scale
        raise ValueError(self._why_not(*_parts(text)))

    def _why_not(self, number: str, unit: str) -> str:
        """The message for a disallowed text."""
        known = next((some for some in self.units if re.fullmatch(some.pattern, unit)), None if unit else self.units[0])
        if not unit and re.fullmatch(self._any_plain, number):
            self._require_unit(float(number.replace("_", "")))
        if known is None or not re.fullmatch(r"[+-]?[0-9_.]+(?:[eE][+-]?[0-9]+)?", number):
            return (f"{self.hint[unit]}, " if unit in self.hint else "") + f"it must be {self.allowed}"
        if number.startswith("-") or not re.search("[1-9]", re.split("[eE]", number)[0]):
            return self._too_small(-1 if number.startswith("-") else 0)
        if len(re.split("[.eE]", number)[0].replace("_", "")) > known.digits:
            return f"it is too large: it must be {self.allowed}"
        return f"it must be {self.allowed}" + (
            ", and before an exponent 1 to 3 digits without leading 0" if "e" in number.lower() else "")

    def _too_small(self, value: float) -> str:
        if value < 0:
            return f"it must not be negative: {self.allowed}"
        return f"it must be greater than 0: {self.allowed}"


def _parts(text: str) -> tuple[str, str]:
    """The number at the start of ``text`` and the unit after it."""
    found = re.fullmatch(r"(.*?)([^0-9.\s]*)", text.strip(), re.DOTALL)
    assert found is not None  # each part may be empty
    return found[1].strip(), found[2]


def _sizes(behind: str, digits: int) -> list[_Unit]:
    """Units of size, from bytes up: three more zeros are three digits less. ``behind``: the text after the prefix."""
    units = [_Unit(behind, 1, digits)]
    for power, prefix in enumerate("kmgt", start=1):
        letters = f"[{prefix}{prefix.upper()}]"
        units += [_Unit(f"{letters}{behind}", 1000**power, digits - 3 * power),
                  _Unit(f"{letters}[iI]{behind}", 1024**power, digits - 3 * power)]
    return units


_AMBIGUOUS = {prefix: f"write {prefix.upper()}B (powers of 1000) or {prefix.upper()}iB (of 1024)"
              for prefix in "KMGTkmgt"}
_BITS = {f"{prefix}b{per}": f"write {prefix.upper()}B/s (bytes) or {prefix.upper()}bit/s (bits)"
         for prefix in ("", *"KMGTkmgt") for per in ("/s", "ps")}

#: Plain numbers that are 0.
_ZERO = r"0(?:_?0){0,14}(?:\.0*)?|\.0+"
#: No GPU has less than a thousand bytes.
_BIG = _Plain(1000, math.inf, r"[1-9](?:_?[0-9]){3,14}(?:\.0*)?|[1-9][0-9]{0,2}(?:\.[0-9]*)?[eE]\+?0*(?:[3-9]|1[0-2])",
              "bytes", "GiB")
#: No link carries less than a thousand bytes a second.
_FAST = replace(_BIG, base="bytes a second", unit="GB/s")
#: No operator takes a second; below it, 1 to 3 digits before an exponent of as much.
_SHORT = _Plain(0, 1, r"0*\.[0-9]+|(?:[0-9](?:\.[0-9]*)?|\.[0-9]+)[eE]-0*[1-9][0-9]?|"
                r"[0-9]{2}(?:\.[0-9]*)?[eE]-0*(?:[2-9]|[1-9][0-9])|"
                r"[0-9]{3}(?:\.[0-9]*)?[eE]-0*(?:[3-9]|[1-9][0-9])", "seconds", "ms")

#: Sizes, 0 or more.
BYTES = Quantity("a whole number of bytes, or text like '32 GiB', '512 MiB', '16 GB'", _sizes("[bB]", 15), 0, LARGEST,
                 whole=True, hint=_AMBIGUOUS)
_MEMORY = "text like '32 GiB', '512 MiB', '16 GB', or a whole number of bytes, at least 1000"
#: A GPU's memory: at least a byte.
MEMORY = Quantity(_MEMORY, BYTES.units, 1, LARGEST, some=True, whole=True, hint=_AMBIGUOUS, plain=_BIG)
#: Its reserve: 0 or more.
RESERVE = Quantity(f"0, {_MEMORY}", BYTES.units, 0, LARGEST, whole=True, hint=_AMBIGUOUS, plain=_BIG)
_SECOND_UNITS = (_Unit("s", 1.0, 9), _Unit("ms", 1e-3, 12), _Unit(r"[u\u00b5\u03bc]s", 1e-6, 15), _Unit("ns", 1e-9, 18))
#: Times, 0 or more.
SECONDS = Quantity("text like '5 ms', '120 us', '2 s', or a number of seconds below 1", _SECOND_UNITS, 0, LONGEST,
                   plain=_SHORT)
#: Times of at least a nanosecond, the clock's tick.
SOME_SECONDS = Quantity(f"{SECONDS.allowed}, at least 1 ns", _SECOND_UNITS, 1e-9, LONGEST, some=True, plain=_SHORT)
#: Bytes per second, at least one bit.
BANDWIDTH = Quantity("text like '36 GB/s', '25 GiB/s', '100 Gbit/s', or a number of bytes per second, at least 1000", [
    *_sizes("B/s", 15), *(unit._replace(scale=unit.scale / 8) for unit in _sizes("[bB][iI][tT]/s", 15))],
    0.125, LARGEST, some=True, hint=_BITS, plain=_FAST)


def parse_bytes(value: object) -> int:
    """Bytes in ``value``, 0 or more, rounded to a whole byte. Raises ``ValueError`` that says what is allowed."""
    return round(BYTES.parse(value))


def parse_memory(value: object) -> int:
    """Bytes of a GPU's memory in ``value``, more than 0. Raises ``ValueError`` that says what is allowed."""
    return round(MEMORY.parse(value))


def parse_reserve(value: object) -> int:
    """Bytes of a GPU's memory that are kept free in ``value``. Raises ``ValueError`` that says what is allowed."""
    return round(RESERVE.parse(value))


def parse_seconds(value: object) -> float:
    """Seconds in ``value``, 0 or more. Raises ``ValueError`` that says what is allowed."""
    return SECONDS.parse(value)


def parse_bandwidth(value: object) -> float:
    """Bytes per second in ``value``, greater than 0. Raises ``ValueError`` that says what is allowed."""
    return BANDWIDTH.parse(value)


def format_bytes(amount: int | float) -> str:
    """``amount`` bytes as text, in the largest fitting binary unit, rounded up in the second decimal.

    Rounded up, so that an amount reported as sufficient is sufficient.
    """
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(amount) >= scale:
            return f"{math.ceil(amount / scale * 100 - 1e-9) / 100:g} {unit}"
    return f"{amount:g} B"

"""Readable numbers: seconds as ms, bytes as GiB, other units unchanged; and names of any length."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.solver.problem import Number, Problem

#: Maximum displayed characters of a name (a device, a block) and of a longer text (a title, a cell).
NAME, TEXT = 60, 300

#: Characters not allowed in terminals and XML (SVG): control characters, halves of surrogate pairs, and two
#: noncharacters.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def name_text(name: str, most: int = NAME) -> str:
    """``name`` in at most ``most`` characters, with the middle omitted, and a sign for each unprintable one."""
    if len(name) > most:
        name = f"{name[:most // 2]}…{name[len(name) - (most - 1 - most // 2):]}"
    return _UNPRINTABLE.sub("\ufffd", name)


def time_text(value: float, unit: str) -> tuple[str, str]:
    """A time and its unit: seconds become milliseconds."""
    if unit == "s":
        return f"{value * 1e3:.1f}", "ms"
    return f"{value:g}", unit


def memory_text(value: Number, unit: str) -> tuple[str, str]:
    """A memory amount and its unit: bytes become GiB."""
    if unit == "B":
        return f"{value / 2**30:.1f}", "GiB"
    return f"{value:g}", unit


def shown_time(value: float, unit: str = "s") -> str:
    """A time with its unit."""
    return " ".join(time_text(value, unit))


def shown_memory(value: Number, unit: str = "B") -> str:
    """A memory amount with its unit."""
    return " ".join(memory_text(value, unit))


#: So many devices have a number each where people read them; of more the least, the median and the most are shown.
_MOST_NUMBERS = 8


def each_text(amounts: Sequence[Number], unit: str, names: Sequence[str] | None = None) -> str:
    """Each device's amount, in the display unit of ``unit``, which is omitted: ``4.1 6.1``; for many ``4.1 to 6.1,
    median 5.0``. ``names``: of the devices; then each number has its unit, and items are separated by commas."""
    one = None if names is None or unit != "B" else _memory_unit(unit, max(amounts))

    def text_of(amount: Number) -> tuple[str, str]:
        return memory_text(amount, unit) if one is None else (f"{amount / one.size:.1f}", one.name)

    shown = [text_of(amount) for amount in amounts]
    if len(shown) <= _MOST_NUMBERS:
        return (" ".join(number for number, _ in shown) if names is None else
                ", ".join(f"{name_text(name)} {' '.join(text)}" for name, text in zip(names, shown, strict=True)))
    ordered = sorted(amounts)
    least, middle, most = (text_of(ordered[at])[0] for at in (0, len(ordered) // 2, -1))
    if least == most:
        text = least
    elif names is None:
        return f"{least} to {most}"
    else:
        text = f"{least} to {most}, median {middle}"
    return text if names is None else f"{text} {shown[0][1]} on {len(names)} devices"


def bytes_text(amount: float) -> str:
    """Bytes in the unit that makes the number readable: ``1.5 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B"


# -- one unit for many numbers, such as those of an axis -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """A display unit: ``value / size`` followed by ``name``."""

    name: str
    size: float

    def show(self, value: float, digits: int = 4) -> str:
        """``value`` in this unit, with its name."""
        return f"{figure(value / self.size, digits)} {name_text(self.name)}".strip()


def time_unit(problem: Problem, longest: float) -> Unit:
    """Small seconds become ms or µs; other units are unchanged."""
    if problem.time_unit != "s":
        return Unit(problem.time_unit, 1)
    return Unit("s", 1) if longest >= 10 else Unit("ms", 1e-3) if longest >= 1e-3 else Unit("µs", 1e-6)


def memory_unit(problem: Problem, highest: float) -> Unit:
    """Bytes become GiB, MiB or KiB; other units are unchanged."""
    return _memory_unit(problem.memory_unit, highest)


def _memory_unit(unit: str, highest: float) -> Unit:
    if unit != "B":
        return Unit(unit, 1)
    power = next((power for power in (3, 2, 1) if highest >= 0.1 * 2 ** (10 * power)), 0)
    return Unit(("B", "KiB", "MiB", "GiB")[power], 2.0 ** (10 * power))


def figure(value: float, digits: int = 4) -> str:
    """``value`` with about ``digits`` significant digits, never with an exponent."""
    if not value:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

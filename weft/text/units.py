"""Numbers as people read them: seconds as ms, bytes as GiB, other units as they are; and names, however long."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.solver.problem import Number

__all__ = ["NAME", "TEXT", "bytes_text", "memory_text", "name_text", "time_text"]

#: Characters that a name (a device, a block) and a longer text (a title, a cell) are cut to where people read them.
NAME, TEXT = 60, 300

#: What no terminal and no XML (SVG) may get: control characters, halves of surrogate pairs, and two that are none.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def name_text(name: str, most: int = NAME) -> str:
    """``name`` in ``most`` characters at most, the middle left out, and with a sign for each that cannot be shown."""
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


def bytes_text(amount: float) -> str:
    """Bytes in the unit that makes the number readable: ``1.5 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B"

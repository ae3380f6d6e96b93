"""Numbers with units, as people write them: ``32 GiB``, ``1.5 ms``, ``36 GB/s``; and back, for messages.

Decimal prefixes are powers of 1000 (GB), binary ones of 1024 (GiB). A plain number is in the base unit: bytes,
seconds, bytes per second.
"""

from __future__ import annotations

import math
import re

__all__ = ["format_bytes", "parse_bandwidth", "parse_bytes", "parse_seconds"]

_BYTES = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
          "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "TIB": 1024**4}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")

#: Above this no number here means anything (and integers would no longer be exact as floats).
LARGEST = 2**53

BYTES_ALLOWED = "a whole number of bytes, or text like '32 GiB', '512 MiB', '16 GB'"
SECONDS_ALLOWED = "a number of seconds, or text like '5 ms', '120 us'"
BANDWIDTH_ALLOWED = "a number of bytes per second, or text like '36 GB/s', '25 GiB/s', '100 Gbit/s'"


def parse_bytes(value: object) -> int:
    """Bytes in ``value``, 0 or more, rounded to a whole byte. Raises ``ValueError`` that says what is allowed."""
    number, unit = _split(value, BYTES_ALLOWED)
    if unit.upper() not in _BYTES and unit:
        raise ValueError(f"it must be {BYTES_ALLOWED}")
    if not unit and number != int(number):
        raise ValueError(f"it must be {BYTES_ALLOWED}")
    amount = round(_positive(number, BYTES_ALLOWED) * _BYTES[unit.upper() or "B"])
    if amount > LARGEST:
        raise ValueError(f"it is too large: it must be {BYTES_ALLOWED}")
    return amount


def parse_seconds(value: object) -> float:
    """Seconds in ``value``, 0 or more. Raises ``ValueError`` that says what is allowed."""
    number, unit = _split(value, SECONDS_ALLOWED)
    if unit and unit not in _SECONDS:
        raise ValueError(f"it must be {SECONDS_ALLOWED}")
    return _positive(number, SECONDS_ALLOWED) * _SECONDS[unit or "s"]


def parse_bandwidth(value: object) -> float:
    """Bytes per second in ``value``, greater than 0. Raises ``ValueError`` that says what is allowed."""
    number, unit = _split(value, BANDWIDTH_ALLOWED)
    scale = 1.0
    if unit:
        size, slash, per = unit.partition("/")
        is_bits = size.lower().endswith("bit")
        prefix = (size[:-3] + "B" if is_bits else size).upper()
        if slash != "/" or per != "s" or prefix not in _BYTES:
            raise ValueError(f"it must be {BANDWIDTH_ALLOWED}")
        scale = _BYTES[prefix] / (8 if is_bits else 1)
    if _positive(number, BANDWIDTH_ALLOWED) == 0:
        raise ValueError(f"it must be greater than 0: {BANDWIDTH_ALLOWED}")
    return number * scale


def format_bytes(amount: int | float) -> str:
    """``amount`` bytes for people, in the largest fitting binary unit, rounded up in the second decimal.

    Rounded up, so that an amount named as enough is enough.
    """
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(amount) >= scale:
            return f"{math.ceil(amount / scale * 100 - 1e-9) / 100:g} {unit}"
    return f"{amount:g} B"


def _split(value: object, allowed: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"it must be {allowed}")
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if not match:
            raise ValueError(f"it must be {allowed}")
        number, unit = float(match[1].replace("_", "")), match[2]
    else:
        number, unit = value, ""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"it must be finite: {allowed}")
    if abs(number) > LARGEST:
        raise ValueError(f"it is too large: it must be {allowed}")
    return number, unit


def _positive(number: float, allowed: str) -> float:
    if number < 0:
        raise ValueError(f"it must not be negative: {allowed}")
    return number

"""Numbers as people read them: seconds as ms, bytes as GiB, other units as they are."""

from __future__ import annotations

from solver.problem import Number

__all__ = ["bytes_text", "memory_text", "time_text"]


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

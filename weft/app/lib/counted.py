"""Micro-batches as text: a number, the classes of all, or one of these for each job; and degrees."""

from __future__ import annotations

from typing import Any

from weft.app.lib.sources import MicroBatches


def counted(text: str) -> MicroBatches:
    """``"8"``, ``"short,long,long"``, ``"a=8,b=4"`` or ``"a=short/long,b=4"``; ``"4*short,2*long"`` repeats.

    Raises ``ValueError`` for other texts.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"is {text!r}, it must be a number, classes between commas, or job=number between commas")
    if not any("=" in part for part in parts):
        return _counted(parts)
    found: dict[str, int | list[str]] = {}
    for part in parts:
        job, equals, value = (piece.strip() for piece in part.partition("="))
        if not (job and equals and value) or job in found:
            raise ValueError(f"is {text!r}: {part!r} must be job=number, each job once")
        found[job] = _counted([piece.strip() for piece in value.split("/")])
    return found


def degrees_of(text: str) -> dict[str, Any]:
    """``tensor=8,data=auto`` as a mapping, with numbers and booleans converted; ``auto`` alone: none. Raises
    ``ValueError``."""
    found: dict[str, Any] = {}
    for part in [] if text.strip() == "auto" else text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value or name in found:
            raise ValueError(f"{text!r:.80} is no list such as tensor=8,pipeline=4,data=auto")
        found[name] = int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
    return found


def ratio_of(text: str) -> dict[str, int]:
    """``"a=2,b=1"``. Raises ``ValueError`` for other texts."""
    found = counted(text)
    if not isinstance(found, dict) or not all(isinstance(share, int) for share in found.values()):
        raise ValueError(f"is {text!r}, it must be job=number between commas, as a=2,b=1")
    return {job: share for job, share in found.items() if isinstance(share, int)}


def _counted(parts: list[str]) -> int | list[str]:
    if len(parts) == 1 and parts[0].lstrip("+-").isdecimal():
        count = int(parts[0])
        if not 1 <= count <= 2_000_000:
            raise ValueError(f"is {count}, it must be a whole number of at least 1"
                             + ("" if count < 1 else " and at most 2000000"))
        return count
    found: list[str] = []
    for part in parts:
        times, star, name = (piece.strip() for piece in part.partition("*"))
        if star and times.isdecimal() and name:
            if len(found) + int(times) > 2_000_000:
                raise ValueError("lists more than 2000000 micro-batches")
            found += [name] * int(times)
        else:
            found.append(part)
    if not found:
        raise ValueError("lists no micro-batch")
    return found

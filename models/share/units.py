"""The same amounts in other units, exactly: problems that are to share GPUs may state theirs in different ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from weft.models.share.job import SharingError
from weft.solver.problem import Device, Number
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem

__all__ = ["amount_text", "in_units"]

Value = TypeVar("Value")
_TIMES = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6),
          "ns": Fraction(1, 10**9)}
_AMOUNTS = {"B": Fraction(1), **{f"{letter}iB": Fraction(1024**power) for power, letter in enumerate("KMGT", 1)},
            **{f"{letter}B": Fraction(1000**power) for power, letter in enumerate("KMGT", 1)}, "kB": Fraction(1000)}


def in_units(problem: WideProblem, time_unit: str, memory_unit: str) -> WideProblem:
    """``problem`` with its times in ``time_unit`` and its amounts in ``memory_unit``.

    Raises :class:`~weft.models.share.job.SharingError` where nobody knows how many of the one are one of the other.
    """
    time = _factor(problem, "time_unit", problem.time_unit, time_unit, _TIMES)
    amount = _factor(problem, "memory_unit", problem.memory_unit, memory_unit, _AMOUNTS)
    if time == amount == 1:
        return replace(problem, time_unit=time_unit, memory_unit=memory_unit)
    return replace(problem, time_unit=time_unit, memory_unit=memory_unit,
                   devices=tuple(_device(device, amount) for device in problem.devices),
                   blocks=tuple(_block(block, time, amount) for block in problem.blocks))


def amount_text(amount: Number, unit: str) -> str:
    """An amount of memory as people read it: bytes in the unit that makes the number short, others as they are."""
    if unit == "B":
        for larger, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if amount >= size:
                return f"{amount / size:.1f} {larger}"
        return f"{amount:.0f} B"
    return f"{amount:g} {unit}"


def _factor(problem: WideProblem, what: str, own: str, wanted: str, known: Mapping[str, Fraction]) -> Fraction:
    if own == wanted:
        return Fraction(1)
    if own not in known or wanted not in known:
        raise SharingError(f"{problem.name}: {what} is {own!r}, and that of another job is {wanted!r}: write both in "
                           f"one unit, or in {', '.join(known)}")
    return known[own] / known[wanted]


def _device(device: Device, amount: Fraction) -> Device:
    return replace(device, memory=None if device.memory is None else _times(device.memory, amount),
                   static=_times(device.static, amount))


def _block(block: WideBlock, time: Fraction, amount: Fraction) -> WideBlock:
    return replace(
        block, duration=_each(block.duration, lambda value: _times(value, time)),
        memory=_each(block.memory, lambda values: tuple(_times(value, amount) for value in values)),
        workspace=_each(block.workspace, lambda values: tuple(_times(value, amount) for value in values)),
        after=tuple(replace(wait, lag=_each(wait.lag, lambda value: _times(value, time))) for wait in block.after))


def _each(value: Value | Mapping[str, Value], change: Callable[[Value], Value]) -> Value | Mapping[str, Value]:
    """``value`` changed, for each class where there is one for each."""
    return {name: change(own) for name, own in value.items()} if isinstance(value, Mapping) else change(value)


def _times(value: Number, factor: Fraction) -> Number:
    """The decimal number that was written, times ``factor``."""
    found = Fraction(str(value)) * factor
    return int(found) if found.denominator == 1 else float(found)

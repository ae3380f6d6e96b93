"""Memory of a problem's blocks as whole numbers, so that sums are exact and fast."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property

from weft.solver.orders.lists import GraphTables
from weft.solver.pools import MixedPool, amounts_by_device, mixed_pools, peak_of
from weft.solver.problem import Number, Problem


@dataclass(frozen=True)
class Amounts:
    """Per device and block: the amount that the block takes at its start and its change of the level by its end.

    All in units of 1/``scale`` of the problem's memory unit, so that decimal fractions add up exactly. ``room`` is the
    device's capacity, ``None`` for unlimited. A device runs one block at a time, so the order of its blocks determines
    its memory: a block fits if ``level + take <= room`` before it, and ``level + change`` is left after. The memory
    that a device shares with its lanes is listed here if one of them runs all blocks that take or give, under that one;
    the others are ``mixed_pools``.
    """

    problem: Problem
    room: tuple[int | None, ...]
    take: tuple[dict[int, int], ...]
    change: tuple[dict[int, int], ...]
    scale: int
    mixed_pools: tuple[MixedPool, ...] = ()

    @classmethod
    def of(cls, problem: Problem) -> Amounts:
        """The amounts of ``problem``."""
        every = {amount for block in problem.blocks for amount in (*block.memory, *block.workspace)}
        every |= {device.memory for device in problem.devices if device.memory is not None}
        scale = math.lcm(*(_decimal(amount).denominator for amount in every))

        @cache
        def whole(amount: Number) -> int:
            return int(_decimal(amount) * scale)

        take, change, room = amounts_by_device(problem, whole, whole)
        return cls(problem, room, take, change, scale,
                   mixed_pools(problem, whole, whole) if problem.has_lanes else ())

    @cached_property
    def tables(self) -> GraphTables:
        """Arrays for compiled passes over the problem."""
        return GraphTables(self.problem, self.take, self.change, self.room, self.mixed_pools)

    def peak(self, device: int, row: Iterable[tuple[int, int]]) -> int:
        """The highest level of ``device`` if it runs ``row``, from an empty one."""
        return peak_of(row, self.take[device], self.change[device])

    def fits(self, device: int, row: Iterable[tuple[int, int]]) -> bool:
        """Whether ``device`` has room for ``row``."""
        room = self.room[device]
        return room is None or self.peak(device, row) <= room

    def amount(self, scaled: int, unit: str) -> str:
        """``scaled`` in the problem's memory unit, as text."""
        return f"{float(Fraction(scaled, self.scale)):.12g} {unit}"


def _decimal(value: Number) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(float(value))))

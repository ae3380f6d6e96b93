"""The layout of a tensor on a group of devices: <replicas, value splits, splits per dimension>.

In <R, V, D1 .. Dn> the tensor is cut into D1 x .. x Dn equal boxes; each box has V terms yet to be summed, and R
devices hold each term: R V D1 .. Dn devices in total (Lin et al., "SuperScaler" / "nnScaler", OSDI 2024). A
:class:`Placed` assigns pieces to devices.

Boxes of a tensor's elements: intersections, volumes, and the position of one within another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

#: The term on a device, and for each dimension the index of its part.
Piece: TypeAlias = tuple[int, ...]


class LayoutError(ValueError):
    """An invalid layout, or one impossible for a tensor or a group of devices."""


@dataclass(frozen=True, slots=True)
class Layout:
    """<``replicas``, ``values``, ``splits``>: copies of each piece, terms of each box, parts per dimension."""

    replicas: int
    values: int
    splits: tuple[int, ...]

    def __post_init__(self) -> None:
        if min((self.replicas, self.values, *self.splits)) < 1:
            raise LayoutError(f"the layout {self} has a count below 1")

    def __str__(self) -> str:
        return f"<{', '.join(map(str, (self.replicas, self.values, *self.splits)))}>"

    @property
    def devices(self) -> int:
        """The number of devices required."""
        return self.replicas * self.values * math.prod(self.splits)

    def require(self, shape: Sequence[int]) -> None:
        """Raise :class:`LayoutError` unless a tensor of ``shape`` can have this layout."""
        if len(shape) != len(self.splits):
            raise LayoutError(f"the layout {self} is of {len(self.splits)} dimensions, the tensor has {len(shape)}")
        for axis, (size, parts) in enumerate(zip(shape, self.splits, strict=True)):
            if size % parts:
                raise LayoutError(f"dimension {axis} has {size} elements, which {parts} parts do not divide")

    def elements(self, shape: Sequence[int]) -> int:
        """Elements of one piece of a tensor of ``shape``."""
        return math.prod(shape) // math.prod(self.splits)


@dataclass(frozen=True)
class Placed:
    """A layout on ``devices`` (rising): ``pieces`` lists the piece of each.

    Terms differ only in their numbers: they are numbered by the first device that holds each.
    """

    layout: Layout
    devices: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, layout: Layout, devices: Sequence[int]) -> Placed:
        """``layout`` on ``devices`` in their order: the last dimension changes fastest, the replica slowest.

        Raises :class:`LayoutError` for another number of devices, or a duplicate.
        """
        if len(devices) != layout.devices or len(set(devices)) != len(devices):
            raise LayoutError(f"the layout {layout} takes {layout.devices} different devices, not {list(devices)}")
        pieces = itertools.product(range(layout.replicas), range(layout.values), *map(range, layout.splits))
        return cls.holding(layout, {device: piece[1:] for device, piece in zip(devices, pieces, strict=True)})

    @classmethod
    def holding(cls, layout: Layout, held: dict[int, Piece]) -> Placed:
        """The same from each device's piece. Raises :class:`LayoutError` if they form no layout."""
        devices = tuple(sorted(held))
        number: dict[int, int] = {}
        for device in devices:
            number.setdefault(held[device][0], len(number))
        pieces = tuple((number[held[device][0]], *held[device][1:]) for device in devices)
        counts: dict[Piece, int] = {}
        for piece in pieces:
            counts[piece] = counts.get(piece, 0) + 1
        wanted = set(itertools.product(range(layout.values), *map(range, layout.splits)))
        if set(counts) != wanted or set(counts.values()) != {layout.replicas}:
            raise LayoutError(f"what the devices {list(devices)} hold is not the layout {layout}")
        return cls(layout, devices, pieces)

    @cached_property
    def held(self) -> dict[int, Piece]:
        """By device."""
        return dict(zip(self.devices, self.pieces, strict=True))

    @cached_property
    def holders(self) -> dict[Piece, tuple[int, ...]]:
        """The devices that hold each piece, rising."""
        found: dict[Piece, list[int]] = {}
        for device, piece in zip(self.devices, self.pieces, strict=True):
            found.setdefault(piece, []).append(device)
        return {piece: tuple(devices) for piece, devices in found.items()}


#: First element and the one after the last, by dimension.
Box: TypeAlias = tuple[tuple[int, int], ...]


def intersection(one: Box, other: Box) -> Box | None:
    """The common elements; ``None`` for none."""
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return box if all(low < high for low, high in box) else None


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box around all of ``boxes``."""
    return tuple((min(low for low, _ in spans), max(high for _, high in spans)) for spans in zip(*boxes, strict=True))


def shape_of(box: Box) -> tuple[int, ...]:
    """Elements by dimension."""
    return tuple(high - low for low, high in box)


def volume(box: Box) -> int:
    """The number of elements."""
    return math.prod(shape_of(box))


def within(box: Box, frame: Box) -> Box:
    """The position of ``box`` in an array of the elements of ``frame``."""
    return tuple((low - start, high - start) for (low, high), (start, _) in zip(box, frame, strict=True))


def slices(box: Box) -> tuple[slice, ...]:
    """An index of the elements in an array of the whole."""
    return tuple(slice(low, high) for low, high in box)

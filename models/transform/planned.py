"""A program with what a plan decided of it: how operators are cut, which device has which part, and which part waits.

:mod:`weft.models.transform.transformations` has what decides it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

from weft.models.layouts.layout import Box
from weft.models.transform.program import Dimensions, PlanError, PlanOperation, PlanProgram


class Cut(NamedTuple):
    """``parts`` equal parts along the name ``along`` (``None``: copies). ``in_turn``: on the same device, one after
    another."""

    along: str | None
    parts: int
    in_turn: bool = False


class Part(NamedTuple):
    """One part of an operator, by its number."""

    operation: str
    number: int

    def __str__(self) -> str:
        return f"{self.operation}#{self.number}"


class View(NamedTuple):
    """What a part has of a tensor: its elements, and of how many terms which. ``turn``: its place among parts that run
    in turn."""

    part: Part
    device: int
    box: Box
    value: tuple[int, int]
    turn: tuple[int, ...]


def cells(box: Box, views: Sequence[View]) -> Iterator[Box]:
    """``box`` cut at all edges of ``views``: each of them has a cell whole, or nothing of it."""
    cuts = [sorted({low, high, *(edge for view in views for edge in view.box[axis] if low < edge < high)})
            for axis, (low, high) in enumerate(box)]
    return itertools.product(*map(itertools.pairwise, cuts))


#: A part, or an operator for all its parts.
Which: TypeAlias = str | Part | tuple[str, int]


@dataclass(frozen=True)
class Planned:
    """``cuts``: of operators, in the order in which they were made; the last changes fastest in the number of a part.
    ``devices``: of an operator's parts, but for those in turn. ``orders``: rules on parts that end before others begin;
    they mean the parts that there are when all cuts are made."""

    program: PlanProgram
    cuts: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    orders: tuple[Order, ...] = ()

    @cached_property
    def _cuts(self) -> dict[str, tuple[Cut, ...]]:
        return {operation.name: self._cuts_of(operation) for operation in self.program.operations}

    def _cuts_of(self, operation: PlanOperation) -> tuple[Cut, ...]:
        """Its own cuts, or those of the operator that it follows: a name that it does not have is not cut in turn, and
        means copies else."""
        if operation.name in self.cuts or operation.follows is None:
            return self.cuts.get(operation.name, ())
        found = []
        for cut in self.cuts.get(operation.follows, ()):
            has = cut.along is None or cut.along in operation.annotation.names
            if has and cut.along is not None and operation.annotation.role(cut.along) == "frozen":
                has = False
            if has or not cut.in_turn:
                found.append(cut if has else Cut(None, cut.parts))
        return tuple(found)

    def cuts_of(self, name: str) -> tuple[Cut, ...]:
        """How an operator is cut, followed cuts included."""
        return self._cuts[name]

    def devices_of(self, name: str) -> tuple[int, ...]:
        """The devices of an operator's parts, but for those in turn. Raises :class:`PlanError` where there are none."""
        operation = self.program.by_name[name]
        found = self.devices.get(name) or self.devices.get(operation.follows or "")
        count = math.prod(cut.parts for cut in self.cuts_of(name) if not cut.in_turn)
        if found is None:
            raise PlanError(f"operator {name!r} has no device: assign it")
        if len(found) != count:
            raise PlanError(f"operator {name!r} has {count} parts beside each other, but {len(found)} devices")
        return found

    def parts(self, name: str) -> tuple[Part, ...]:
        """All parts of an operator."""
        return tuple(Part(name, i) for i in range(math.prod(cut.parts for cut in self.cuts_of(name))))

    def places(self, part: Part) -> tuple[int, ...]:
        """Which part it is of each cut."""
        found, index = [], part.number
        for cut in reversed(self.cuts_of(part.operation)):
            found.append(index % cut.parts)
            index //= cut.parts
        return tuple(reversed(found))

    def device(self, part: Part) -> int:
        """Where a part runs."""
        found = self._device.get(part)
        if found is None:
            found = self._device[part] = self._device_of(part)
        return found

    @cached_property
    def _device(self) -> dict[Part, int]:
        return {}

    def _device_of(self, part: Part) -> int:
        at = 0
        for cut, i in zip(self.cuts_of(part.operation), self.places(part), strict=True):
            at = at if cut.in_turn else at * cut.parts + i
        return self.devices_of(part.operation)[at]

    def turn(self, part: Part) -> tuple[int, ...]:
        """Its place among parts in turn."""
        pairs = zip(self.cuts_of(part.operation), self.places(part), strict=True)
        return tuple(i for cut, i in pairs if cut.in_turn)

    def spans(self, part: Part) -> dict[str, tuple[int, int]]:
        """Which indices of each name a part has."""
        operation = self.program.by_name[part.operation]
        found = {name: (0, operation.sizes[name]) for name in operation.annotation.names}
        for cut, i in zip(self.cuts_of(part.operation), self.places(part), strict=True):
            if cut.along is not None:
                low, high = found[cut.along]
                size = (high - low) // cut.parts
                found[cut.along] = low + size * i, low + size * (i + 1)
        return found

    def sizes(self, part: Part) -> dict[str, int]:
        """How many indices of each name a part has."""
        return {name: high - low for name, (low, high) in self.spans(part).items()}

    def value(self, part: Part) -> tuple[int, int]:
        """Which of how many terms a part gives."""
        operation, index, count = self.program.by_name[part.operation], 0, 1
        for cut, i in zip(self.cuts_of(part.operation), self.places(part), strict=True):
            if cut.along is not None and operation.annotation.role(cut.along) == "reduction":
                index, count = index * cut.parts + i, count * cut.parts
        return index, count

    def box(self, part: Part, dimensions: Dimensions) -> Box:
        """A part's elements of a tensor whose dimensions have these names."""
        spans, sizes = self.spans(part), self.program.by_name[part.operation].sizes
        found = []
        for axis in dimensions:
            low, high, inner = 0, 1, math.prod(sizes[name] for name in axis)
            for name in axis:
                inner //= sizes[name] or 1
                if spans[name] != (0, sizes[name]):
                    low, high = spans[name][0] * inner, spans[name][1] * inner
                    break
            else:
                low, high = 0, math.prod(sizes[name] for name in axis)
            found.append((low, high))
        return tuple(found)

    def inputs(self, part: Part) -> Iterator[tuple[str, Box]]:
        """The tensors that a part reads, and which elements of each."""
        return ((name, self.box(part, dimensions)) for name, dimensions in self.program.by_name[part.operation].reads)

    def outputs(self, part: Part) -> Iterator[tuple[str, Box]]:
        """The tensors that a part gives, and which elements of each."""
        return ((name, self.box(part, dimensions)) for name, dimensions in self.program.by_name[part.operation].gives)

    def reads(self, name: str, tensor: str) -> tuple[View, ...]:
        """What the parts of an operator read of a tensor; of one that is read twice, once for each."""
        return tuple(View(part, self.device(part), box, (0, 1), self.turn(part))
                     for part in self.parts(name) for given, box in self.inputs(part) if given == tensor)

    def gives(self, name: str, tensor: str) -> tuple[View, ...]:
        """What the parts of an operator give of a tensor."""
        return tuple(View(part, self.device(part), box, self.value(part), self.turn(part))
                     for part in self.parts(name) for made, box in self.outputs(part) if made == tensor)


class Order(Protocol):
    """A rule: pairs of parts of which one ends before the other begins."""

    def pairs(self, planned: Planned) -> Iterable[tuple[Part, Part]]:
        """Of the parts of ``planned``. Raises :class:`PlanError` for parts that are not there."""

"""What is to be communicated so that every part reads what it needs: producers' views matched with consumers'.

For each operator that reads a tensor, and each turn of its parts, the *frame* is what neighbours need together. What
the producers' parts have of the frame is put together on each device: terms are added up, neighbouring pieces joined.
Where what devices have, and what they need, are layouts, the cheapest conversion joins them
(:mod:`weft.models.layouts.conversion`); where one of them is none, pairs of devices send each other what overlaps. A
reader that needs what another needs already is served by the same communication; terms of a sum that lie alike are
added up before they travel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.models.layouts.conversion import Conversion, LayoutPrices, busiest, convert, step_bytes, uniform
from weft.models.layouts.layout import Box, Layout, LayoutError, Piece, Placed, hull, intersection, shape_of, volume
from weft.models.transform.planned import Part, Planned, View, cells
from weft.models.transform.program import PlanError


class Sent(NamedTuple):
    """Elements in ``box`` of one term of ``tensor`` go from a part's device to another."""

    tensor: str
    source: Part
    device: int
    target: int
    box: Box


@dataclass(frozen=True)
class Communication:
    """What brings ``tensor`` to operators that read it.

    ``terms``: the tensors that it, or this part of a sum, is made of. ``frame``: the elements in question.
    ``producers`` and ``readers``: the parts. ``wanted``: what each device gets. ``conversion``: its steps, on the
    frame; where there is no layout, ``messages`` instead. ``seconds``: its cost; ``bytes``: what the busiest device
    sends.
    ``next_step``: it brings a parameter to the next step.
    """

    tensor: str
    terms: tuple[str, ...]
    frame: Box
    producers: tuple[View, ...]
    readers: tuple[View, ...]
    wanted: Mapping[int, Box]
    conversion: Conversion | None
    messages: tuple[Sent, ...]
    seconds: float
    bytes: int
    next_step: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is done, in order; nothing where every device has what it needs."""
        if self.conversion is not None:
            return self.conversion.kinds
        return ("send",) if any(sent.device != sent.target for sent in self.messages) else ()

    @property
    def silent(self) -> bool:
        """Whether nothing is sent."""
        return all(kind in ("slice", "term") for kind in self.kinds)

    @property
    def devices(self) -> tuple[int, ...]:
        """All that take part."""
        return tuple(sorted({view.device for view in self.producers} | set(self.wanted)))

    def held(self, device: int) -> tuple[list[View], Box]:
        """What parts of a device made, and the elements of the frame that they have together."""
        own = [view for view in self.producers if view.device == device]
        return own, tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(
            hull(view.box for view in own), self.frame, strict=True))

    def __str__(self) -> str:
        what = " + ".join(self.kinds) or "in place"
        way = f" {self.conversion}" if self.conversion is not None and self.kinds else ""
        to = ", ".join(dict.fromkeys(view.part.operation for view in self.readers))
        return f"{self.tensor} -> {to}: {what} on devices {', '.join(map(str, self.devices))}{way}"


def communications(planned: Planned, prices: LayoutPrices | None = None) -> tuple[Communication, ...]:
    """All communications of a plan, in the order of their readers; what is in place already is among them, silent.

    ``prices``: what steps cost, by default devices joined alike. Raises :class:`PlanError` for operators without a
    device, and views that do not cover what is read.
    """
    return tuple(_Preserving(planned, prices or uniform()).all())


def serving(joined: Sequence[Communication]) -> dict[tuple[str, bool, Part], list[int]]:
    """By a tensor, whether it is that of the next step, and a part that reads it, the communications that bring it."""
    found: dict[tuple[str, bool, Part], list[int]] = {}
    for i, entry in enumerate(joined):
        for part in dict.fromkeys(view.part for view in entry.readers):
            found.setdefault((entry.tensor, entry.next_step, part), []).append(i)
    return found


class _Frame(NamedTuple):
    """What the parts of one turn need."""

    box: Box
    wanted: tuple[tuple[int, Box], ...]


class _Preserving:
    def __init__(self, planned: Planned, prices: LayoutPrices) -> None:
        self.planned, self.program, self.prices = planned, planned.program, prices
        self.conversions: dict[tuple[Placed, Placed, tuple[int, ...], int], Conversion] = {}

    def all(self) -> Iterator[Communication]:
        served: dict[tuple[str, _Frame], list[View]] = {}
        for operation in self.program.operations:
            for tensor in dict.fromkeys(operation.inputs):
                if any(term in self.program.producer for term in self.program.terms(tensor)):
                    for frame, views in self._frames(operation.name, tensor):
                        served.setdefault((tensor, frame), []).extend(views)
        for (tensor, frame), readers in served.items():
            yield from self._served(tensor, frame, readers, next_step=False)
        for made, held in self.program.carried.items():
            again: dict[_Frame, list[View]] = {}
            for name in self.program.readers.get(held, ()):
                for frame, views in self._frames(name, held):
                    again.setdefault(frame, []).extend(views)
            for frame, readers in again.items():
                yield from self._served(made, frame, readers, next_step=True)

    def _frames(self, name: str, tensor: str) -> Iterator[tuple[_Frame, list[View]]]:
        turns: dict[tuple[int, ...], list[View]] = {}
        for view in self.planned.reads(name, tensor):
            turns.setdefault(view.turn, []).append(view)
        for views in turns.values():
            wanted: dict[int, Box] = {}
            for view in views:
                wanted[view.device] = hull((wanted.get(view.device, view.box), view.box))
            for some in _neighbours(wanted):
                yield _Frame(hull(some.values()), tuple(sorted(some.items()))), [
                    view for view in views if view.device in some]

    def _served(self, tensor: str, frame: _Frame, readers: Sequence[View], *,
                next_step: bool) -> Iterator[Communication]:
        """One communication for terms that lie alike, so that they are added up first."""
        alike: dict[object, tuple[list[str], list[View], Placed | None]] = {}
        for term in self.program.terms(tensor):
            if term not in self.program.producer:
                continue  # from outside: it is given where it is needed
            views = [view for view in self.planned.gives(self.program.producer[term], term)
                     if intersection(view.box, frame.box) is not None]
            self._require_whole(tensor, term, views, frame)
            held = _held(views, frame.box)
            placed = None if held is None else _placed(held, frame.box)
            key: object = term if placed is None else placed
            entry = alike.setdefault(key, ([], [], placed))
            entry[0].append(term)
            entry[1].extend(views)
        for terms, views, placed in alike.values():
            yield self._joined(tensor, tuple(terms), frame, views, readers, placed, next_step)

    def _joined(self, tensor: str, terms: tuple[str, ...], frame: _Frame, views: Sequence[View],
                readers: Sequence[View], placed: Placed | None, next_step: bool) -> Communication:
        wanted, itemsize = dict(frame.wanted), self.program.tensors[terms[0]].itemsize
        shape = shape_of(frame.box)
        target = _placed({device: (box, frozenset({(0, 1)})) for device, box in wanted.items()}, frame.box)
        if placed is not None and target is not None:
            try:
                found = self._converted(placed, target, shape, itemsize)
            except LayoutError:
                found = None
            if found is not None:
                return Communication(tensor, terms, frame.box, tuple(views), tuple(readers), wanted, found, (),
                                     found.seconds, sum(step_bytes(s, shape, itemsize) for s in found.steps), next_step)
        messages = tuple(itertools.chain.from_iterable(
            _messages(term, [view for view in views if view.part.operation == self.program.producer[term]], wanted)
            for term in terms))
        sent = [(m.device, m.target, volume(m.box) * itemsize) for m in messages]
        return Communication(tensor, terms, frame.box, tuple(views), tuple(readers), wanted, None, messages,
                             self.prices.messages(sent), busiest(sent), next_step)

    def _converted(self, source: Placed, target: Placed, shape: tuple[int, ...], itemsize: int) -> Conversion:
        key = (source, target, shape, itemsize)
        if key not in self.conversions:
            self.conversions[key] = convert(source, target, shape, itemsize, self.prices)
        return self.conversions[key]

    def _require_whole(self, tensor: str, term: str, views: Sequence[View], frame: _Frame) -> None:
        """Every term of every element is made, in the boxes of a grid."""
        count = {view.value[1] for view in views}
        for value in range(max(count, default=0)):
            boxes = {view.box for view in views if view.value[0] == value}
            covered = sum(volume(common) for box in boxes if (common := intersection(box, frame.box)) is not None)
            if covered != volume(frame.box):
                raise PlanError(f"{tensor}: the parts of {self.program.producer[term]!r} give {covered} of "
                                f"{volume(frame.box)} elements that are read")
        if not views:
            raise PlanError(f"{tensor}: nothing gives what is read")


# -- boxes -----------------------------------------------------------------------------------------------------------


def _neighbours(wanted: Mapping[int, Box]) -> list[dict[int, Box]]:
    """Devices by what they need: together those whose boxes overlap or touch, and the neighbours of these."""
    groups: list[dict[int, Box]] = []
    for device, box in wanted.items():
        wider = tuple((low - 1, high + 1) for low, high in box)
        near = [group for group in groups if any(_touch(box, wider, other) for other in group.values())]
        groups = [group for group in groups if group not in near]
        groups.append({**{d: b for group in near for d, b in group.items()}, device: box})
    return groups


def _touch(box: Box, wider: Box, other: Box) -> bool:
    """Whether boxes overlap, or lie side by side along one dimension."""
    apart = sum(max(a, c) >= min(b, d) for (a, b), (c, d) in zip(box, other, strict=True))
    return apart == 0 or (apart == 1 and intersection(wider, other) is not None)


def _held(views: Sequence[View], frame: Box) -> dict[int, tuple[Box, frozenset[tuple[int, int]]]] | None:
    """What each device has of the frame: one box, and the terms of it; ``None`` where that is not one box."""
    found: dict[int, dict[Box, set[tuple[int, int]]]] = {}
    for view in views:
        box = intersection(view.box, frame)
        if box is not None:
            found.setdefault(view.device, {}).setdefault(box, set()).add(view.value)
    held = {}
    for device, boxes in found.items():
        terms = {frozenset(values) for values in boxes.values()}
        around = hull(boxes)
        if len(terms) > 1 or sum(map(volume, boxes)) != volume(around):
            return None
        held[device] = around, next(iter(terms))
    return held


def _placed(held: Mapping[int, tuple[Box, frozenset[tuple[int, int]]]], frame: Box) -> Placed | None:
    """The layout of the frame that devices hold; ``None`` where it is none."""
    terms = list(dict.fromkeys(values for _, values in held.values()))
    if sum(map(len, terms)) != len(frozenset().union(*terms)):
        return None
    splits, pieces = [], {}
    for axis, (low, high) in enumerate(frame):
        lengths = {box[axis][1] - box[axis][0] for box, _ in held.values()}
        length = next(iter(lengths))
        if len(lengths) > 1 or length == 0 or (high - low) % length:
            return None
        if any((box[axis][0] - low) % length for box, _ in held.values()):
            return None
        splits.append((high - low) // length)
    for device, (box, values) in held.items():
        piece: Piece = (terms.index(values), *((box[axis][0] - frame[axis][0]) // (box[axis][1] - box[axis][0])
                                              for axis in range(len(frame))))
        pieces[device] = piece
    one = len(terms) * math.prod(splits)
    try:
        return Placed.holding(Layout(max(1, len(held) // one), len(terms), tuple(splits)), pieces)
    except LayoutError:
        return None


def _messages(term: str, views: Sequence[View], wanted: Mapping[int, Box]) -> Iterator[Sent]:
    """Who sends what where there are no layouts: of what several have, the device itself or the least busy one."""
    busy: dict[int, int] = {}
    for target, box in wanted.items():
        for cell in cells(box, views):
            holders: dict[tuple[int, int], list[View]] = {}
            for view in views:
                if intersection(view.box, cell) is not None:
                    holders.setdefault(view.value, []).append(view)
            for some in holders.values():
                best = min(some, key=lambda view: (view.device != target, busy.get(view.device, 0), view.device))
                busy[best.device] = busy.get(best.device, 0) + (volume(cell) if best.device != target else 0)
                yield Sent(term, best.part, best.device, target, cell)

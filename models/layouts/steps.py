"""The primitives that change a layout, and the layouts reachable from one.

==================  ===================================================================  ===========================
step                what happens in each group of k devices                              the vector
==================  ===================================================================  ===========================
``all_gather``      each collects the k neighbouring parts of a dimension                D / k, R * k
``all_to_all``      parts of one dimension are swapped for parts of another              D / k, E * k
``all_reduce``      k terms are added up for all                                         V / k, R * k
``reduce_scatter``  k terms are added up, each device gets a part of the sum             V / k, D * k
``slice``           each of k replicas keeps its part; nothing is sent                   R / k, D * k
``term``            one of k replicas keeps its numbers, the others zeros                R / k, V * k
``send``            messages between pairs: to other devices, or to other places         any R, D or V by k
==================  ===================================================================  ===========================

Gathered parts are the ones cut last: parts that are not adjacent cannot be gathered into one piece. Replicas are paired
by rising device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft.models.layouts.layout import Box, Layout, LayoutError, Piece, Placed, intersection

Kind: TypeAlias = Literal["all_gather", "all_to_all", "all_reduce", "reduce_scatter", "slice", "term", "send"]
#: Roles of an axis of devices: dimensions count from 0.
_REPLICAS, _VALUES = -2, -1


@dataclass(frozen=True, slots=True)
class Message:
    """Elements in ``box`` of the whole tensor go from ``source`` to ``target``, which sums received terms."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True, slots=True)
class LayoutStep:
    """One primitive: the layout ``before`` and ``after`` it.

    ``groups``: devices that act together, in the order of their new parts; ``gathered``: each in the order of their
    previous parts, if different. ``source`` and ``target``: the dimension gathered, and the one cut (``None``:
    neither). ``parts``: k. ``messages``: those of a ``send``.
    """

    kind: Kind
    before: Placed
    after: Placed
    parts: int
    groups: tuple[tuple[int, ...], ...] = ()
    source: int | None = None
    target: int | None = None
    messages: tuple[Message, ...] = ()
    gathered: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.before.layout} -> {self.after.layout}"


def moves(before: Placed, shape: Sequence[int], target: Placed | None = None) -> Iterator[LayoutStep]:
    """All steps within the group of ``before`` for a tensor of ``shape``.

    Steps that cut assign the parts in the order of the devices, and alternatively as in ``target``.
    """
    for step in _ordered(before, shape):
        yield step
        wished = None if target is None else _towards(step, target)
        if wished is not None:
            yield wished


def _ordered(before: Placed, shape: Sequence[int]) -> Iterator[LayoutStep]:
    layout = before.layout
    dimensions = range(len(layout.splits))
    for axis in dimensions:
        for k in _factors(layout.splits[axis]):
            groups = _grouped(before, axis, 1, k)
            yield _moved("all_gather", before, groups, axis, _REPLICAS, k)
            for other in dimensions:
                if other != axis and _divides(shape, layout, other, k):
                    yield _moved("all_to_all", before, groups, axis, other, k)
    for role, count in ((_REPLICAS, layout.replicas), (_VALUES, layout.values)):
        for k in _factors(count):
            for inner in (1, *_factors(count // k)):
                groups = _grouped(before, role, inner, k)
                if role == _VALUES:
                    yield _moved("all_reduce", before, groups, role, _REPLICAS, k)
                else:
                    yield _moved("term", before, groups, role, _VALUES, k)
                for axis in dimensions:
                    if _divides(shape, layout, axis, k):
                        yield _moved("slice" if role == _REPLICAS else "reduce_scatter", before, groups, role, axis, k)


def relocation(before: Placed, after: Placed, shape: Sequence[int]) -> LayoutStep:
    """Every device of ``after`` receives its piece from a holder: the same vector, except for the replicas."""
    return LayoutStep("send", before, after, 1, messages=_messages(before, after, shape))


def crossings(before: Placed, devices: Sequence[int], shape: Sequence[int],
              target: Placed | None = None) -> Iterator[LayoutStep]:
    """All steps from the group of ``before`` to ``devices``, with pieces in order, or as in ``target``.

    Terms, or parts of one dimension, are combined on fewer devices, or cut into parts for more; the number of replicas
    follows from the number of devices.
    """
    layout, dimensions = before.layout, range(len(before.layout.splits))
    for values in (layout.values // k for k in (1, *_factors(layout.values))):
        for axis in dimensions if dimensions else (None,):
            size = 1 if axis is None else shape[axis]
            for parts in range(1, min(size, len(devices)) + 1):
                cut = 1 if axis is None else layout.splits[axis]
                if (parts % cut and cut % parts) or size % parts:
                    continue
                if axis and parts == cut:
                    continue  # the same for every axis
                splits = tuple(parts if i == axis else count for i, count in enumerate(layout.splits))
                one = Layout(1, values, splits)
                if len(devices) % one.devices:
                    continue
                wanted = Layout(len(devices) // one.devices, values, splits)
                places = [Placed.of(wanted, devices)]
                if target is not None and target.layout == wanted:
                    places.append(target)
                for after in places:
                    yield LayoutStep("send", before, after, 1, messages=_messages(before, after, shape))


# -- within -----------------------------------------------------------------------------------------------------------


def _factors(count: int) -> Iterator[int]:
    return (k for k in range(2, count + 1) if count % k == 0)


def _divides(shape: Sequence[int], layout: Layout, axis: int, k: int) -> bool:
    return shape[axis] % (layout.splits[axis] * k) == 0


def _grouped(before: Placed, role: int, inner: int, k: int) -> tuple[tuple[int, ...], ...]:
    """Devices that differ only in one digit of their position in ``role``: with ``inner`` below it, of ``k`` values."""
    groups: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    rank = {device: i for holders in before.holders.values() for i, device in enumerate(holders)}
    for device, piece in before.held.items():
        at = [rank[device], *piece]
        index = at[role + 2]
        at[role + 2] = index // (inner * k) * inner + index % inner
        groups.setdefault(tuple(at), []).append((index, device))
    return tuple(tuple(device for _, device in sorted(group)) for group in groups.values())


def _moved(kind: Kind, before: Placed, groups: tuple[tuple[int, ...], ...], source: int, target: int, k: int,
           gathered: tuple[tuple[int, ...], ...] | None = None) -> LayoutStep:
    """The step that moves the factor ``k`` from the role ``source`` to the role ``target`` in each of the groups.

    ``gathered``: the groups in the order of their gathered parts, if they are cut in another order.
    """
    counts = [before.layout.replicas, before.layout.values, *before.layout.splits]
    counts[source + 2] //= k
    counts[target + 2] *= k
    held: dict[int, Piece] = {}
    for group in groups:
        together = min(before.held[device][0] for device in group)  # the name of summed terms
        for index, device in enumerate(group):
            piece = list(before.held[device])
            if source >= 0:
                piece[source + 1] //= k
            elif source == _VALUES:
                piece[0] = together
            if target >= 0:
                piece[target + 1] = piece[target + 1] * k + index
            elif target == _VALUES:
                piece[0] = piece[0] * k + index
            held[device] = tuple(piece)
    after = Placed.holding(Layout(counts[0], counts[1], tuple(counts[2:])), held)
    return LayoutStep(kind, before, after, k, groups, source if source >= 0 else None, target if target >= 0 else None,
                      gathered=gathered if gathered is not None and source >= 0 else groups)


def _towards(step: LayoutStep, target: Placed) -> LayoutStep | None:
    """``step`` with its parts, or terms, assigned as in ``target``; ``None`` if impossible."""
    role = {"term": _VALUES, "all_gather": None, "all_reduce": None}.get(step.kind, step.target)
    if role is None or target.devices != step.before.devices:
        return None
    new = (step.after.layout.values, *step.after.layout.splits)[role + 1]
    final = (target.layout.values, *target.layout.splits)[role + 1]
    if final % new:
        return None
    wish = {device: piece[role + 1] // (final // new) % step.parts for device, piece in target.held.items()}
    # Replicas may be regrouped; the groups that gather or sum stay the same.
    sets: dict[object, list[int]] = {}
    for i, group in enumerate(step.groups):
        key = step.before.held[group[0]] if step.kind in ("slice", "term") else i
        sets.setdefault(key, []).extend(group)
    groups: list[tuple[int, ...]] = []
    for members in sets.values():
        by_wish = [[device for device in sorted(members) if wish[device] == i] for i in range(step.parts)]
        if len({len(alike) for alike in by_wish}) > 1:
            return None
        groups += zip(*by_wish, strict=True)
    if set(groups) == set(step.groups):
        return None
    source = {"term": _REPLICAS, "slice": _REPLICAS, "reduce_scatter": _VALUES}.get(step.kind, step.source)
    assert source is not None
    try:
        return _moved(step.kind, step.before, tuple(groups), source, role, step.parts, tuple(step.groups))
    except LayoutError:
        return None


def box_of(placed: Placed, piece: Piece, shape: Sequence[int]) -> Box:
    """The elements of a piece of a tensor of ``shape``."""
    parts = (size // count for size, count in zip(shape, placed.layout.splits, strict=True))
    return tuple((part * i, part * (i + 1)) for part, i in zip(parts, piece[1:], strict=True))


def _messages(before: Placed, after: Placed, shape: Sequence[int]) -> tuple[Message, ...]:
    """The messages: everything that a target needs, from itself or from the least busy holder."""
    busy: dict[int, int] = dict.fromkeys(before.devices, 0)
    found = []
    together = before.layout.values // after.layout.values
    for target, piece in after.held.items():
        wanted = box_of(after, piece, shape)
        for held, holders in before.holders.items():
            if held[0] // together != piece[0]:
                continue
            box = intersection(box_of(before, held, shape), wanted)
            if box is None:
                continue
            source = target if target in holders else min(holders, key=lambda device: (busy[device], device))
            busy[source] += source != target
            found.append(Message(source, target, box))
    return tuple(found)

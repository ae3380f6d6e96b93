"""Times of operators measured on a device, as a source of times and as a file, ``weft.operator-times/1``.

Every figure has an origin: *measured* (a median of ``repeats`` runs, with the range of the middle half of
them over the median as its ``spread``), *interpolated* (the operator was not run; scaled from the measured one of its
kind and pass that is nearest in size) or *modelled* (nothing of its kind was measured; operations and bytes at the best
measured rates). The file is one JSON object: ``format``, ``model``, ``device``, ``torch``, and ``operators``, each
``{kind, shapes, names, forward, input_grad, weight_grad, saved, peak, note}``: times in seconds and amounts in bytes as
``{value, origin, spread, repeats}``. ``names`` are all operators of the graph that the entry represents; ``saved`` is
the memory that a forward keeps for its backward beside its inputs, ``peak`` the peak allocation of a pass.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from weft.models.graph.operators import Operator, OperatorError, OperatorGraph, Work
from weft.models.times.operator_times import OperatorTime, Origin
from weft.solver.io.entries import Entry, FormatError, read_json, require_format
from weft.solver.io.writing import write_atomically

TIMES_FORMAT = "weft.operator-times/1"
PASSES = ("forward", "input_grad", "weight_grad")
#: A measurement: the kind of an operator, one of its passes, the work of that pass, and its measured seconds.
_Known: TypeAlias = "tuple[str, str, Work, float]"


@dataclass(frozen=True, slots=True)
class Figure:
    """A time in seconds or an amount in bytes, and its origin."""

    value: float
    origin: Origin
    spread: float = 0.0
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredOperator:
    """Operators of equal cost: their kind, shapes as text, names, and figures.

    A pass without a figure does not exist, or, if ``note`` explains why the operator was not run, is not filled in yet.
    """

    kind: str
    shapes: str
    names: tuple[str, ...]
    forward: Figure | None = None
    input_grad: Figure | None = None
    weight_grad: Figure | None = None
    saved: Figure | None = None
    peak: Figure | None = None
    note: str = ""


@dataclass(frozen=True)
class MeasuredTimes:
    """The times of one model's operators on one device: a source of times for its graph."""

    model: str
    device: str
    torch: str
    operators: tuple[MeasuredOperator, ...]

    @cached_property
    def by_name(self) -> Mapping[str, MeasuredOperator]:
        """The entry of each operator of the graph."""
        return {name: entry for entry in self.operators for name in entry.names}

    def filled_in(self, graph: OperatorGraph) -> MeasuredTimes:
        """These times with derived figures for unmeasured operators; and for all operators of ``graph``.

        An operator's size is its operations, or its bytes if it has none. If nothing was measured, the figures stay
        missing.
        """
        known = list(self._known(graph))
        entries = [_filled(entry, graph.by_name[entry.names[0]], known) for entry in self.operators
                   if entry.names[0] in graph.by_name]
        lacking = [_filled(MeasuredOperator(operator.kind, "", (operator.name,), note="not in the profile"), operator,
                           known) for operator in graph.operators if operator.name not in self.by_name]
        return replace(self, operators=(*entries, *lacking))

    def times(self, graph: OperatorGraph) -> dict[str, OperatorTime]:
        """The time of every operator of ``graph``, by name.

        Raises :class:`~weft.models.graph.operators.OperatorError` for an operator without a time if there is no
        measurement to derive it from.
        """
        found = self.filled_in(graph).by_name
        return {operator.name: _time(operator, found[operator.name], self.device) for operator in graph.operators}

    def notes(self, graph: OperatorGraph) -> list[str]:
        """The operators not measured, the reasons, and the way they were filled in."""
        names = {operator.name for operator in graph.operators}
        return [f"{entry.kind} {entry.shapes}".strip() + f" ({len(entry.names)} operator{'s' * (len(entry.names) > 1)}"
                f", first {entry.names[0]!r}): {entry.note}; its time is {_origin(entry).value}"
                for entry in self.filled_in(graph).operators if entry.note and names.issuperset(entry.names[:1])]

    def summary(self) -> Iterable[str]:
        """Lines of text: the number of operators, of distinct ones, and the origins of the figures."""
        figures = [figure for entry in self.operators for figure in _figures(entry)]
        counts = {origin: sum(figure.origin == origin for figure in figures) for origin in Origin}
        spreads = sorted(figure.spread for figure in figures if figure.origin == Origin.MEASURED)
        names = sum(len(entry.names) for entry in self.operators)
        yield f"{self.model} on {self.device}: {names} operators, {len(self.operators)} distinct"
        yield "times      " + ", ".join(f"{count} {origin}" for origin, count in counts.items() if count) + (
            f"; spread of the measured: median {spreads[len(spreads) // 2]:.0%}, largest {spreads[-1]:.0%}"
            if spreads else "")
        for entry in self.operators:
            if entry.note:
                yield f"not run    {entry.kind} {entry.shapes}: {entry.note}"

    def _known(self, graph: OperatorGraph) -> Iterator[_Known]:
        for entry in self.operators:
            operator = graph.by_name.get(entry.names[0])
            for part in PASSES:
                figure, work = getattr(entry, part), getattr(operator, part, None)
                if figure is not None and work is not None and figure.origin == Origin.MEASURED and figure.value > 0:
                    yield entry.kind, part, work, figure.value


def _filled(entry: MeasuredOperator, operator: Operator, known: list[_Known]) -> MeasuredOperator:
    for part in PASSES:
        work = getattr(operator, part)
        if work is not None and getattr(entry, part) is None:
            estimate: Any = {part: _estimate(entry.kind, part, work, known)}
            entry = replace(entry, **estimate)
    own = {tensor.name: tensor.bytes for tensor in (*operator.outputs, *operator.internal) if tensor.base is None}
    if entry.saved is None:
        entry = replace(entry, saved=Figure(sum(own.get(name, 0) for name in operator.keeps), Origin.MODELLED))
    if entry.peak is None:
        entry = replace(entry, peak=Figure(sum(own.values()) + operator.workspace, Origin.MODELLED))
    return entry


def _estimate(kind: str, part: str, work: Work, known: list[_Known]) -> Figure | None:
    size = _size(work)
    if not size:
        return Figure(0.0, Origin.MODELLED)
    alike = [(_size(other), seconds) for other_kind, other_part, other, seconds in known
             if (other_kind, other_part) == (kind, part) and bool(other.flops) == bool(work.flops) and _size(other)]
    if alike:
        nearest, seconds = min(alike, key=lambda pair: abs(math.log(size / pair[0])))
        return Figure(seconds * size / nearest, Origin.INTERPOLATED)
    flop_rate = max((other.flops / seconds for _, _, other, seconds in known), default=0.0)
    byte_rate = max((_bytes(other) / seconds for _, _, other, seconds in known), default=0.0)
    if not byte_rate or (work.flops and not flop_rate):
        return None
    return Figure(max(work.flops / flop_rate if work.flops else 0.0, _bytes(work) / byte_rate), Origin.MODELLED)


def _time(operator: Operator, entry: MeasuredOperator, device: str) -> OperatorTime:
    seconds: list[float] = []
    for part in PASSES:
        figure = getattr(entry, part) if getattr(operator, part) is not None else Figure(0.0, Origin.MEASURED)
        if figure is None:
            raise OperatorError(f"operator {operator.name!r} has no time, and the profile of {device} has none that it "
                                "could be filled in from")
        seconds.append(figure.value)
    forward, input_grad, weight_grad = seconds
    return OperatorTime(forward, input_grad, weight_grad, _origin(entry))


def _origin(entry: MeasuredOperator) -> Origin:
    """That of the least trusted time."""
    order = list(Origin)
    return max((figure.origin for figure in _figures(entry)), key=order.index, default=Origin.MODELLED)


def _figures(entry: MeasuredOperator) -> list[Figure]:
    return [figure for part in PASSES if (figure := getattr(entry, part)) is not None]


def _size(work: Work) -> float:
    return work.flops or _bytes(work)


def _bytes(work: Work) -> int:
    return work.bytes_read + work.bytes_written


# -- files -------------------------------------------------------------------------------------------------------------


def load_times(path: str | os.PathLike[str]) -> MeasuredTimes:
    """Read a ``weft.operator-times/1`` file. Raises :class:`~weft.solver.io.entries.FormatError`."""
    return times_from_json(read_json(path), os.fspath(path))


def save_times(times: MeasuredTimes, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.operator-times/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(times_to_json(times), indent=1, allow_nan=False) + "\n")


def times_to_json(times: MeasuredTimes) -> dict[str, Any]:
    """The ``weft.operator-times/1`` object of ``times``."""
    return {"format": TIMES_FORMAT, "model": times.model, "device": times.device, "torch": times.torch,
            "operators": [_entry_to_json(entry) for entry in times.operators]}


def _entry_to_json(entry: MeasuredOperator) -> dict[str, Any]:
    figures = {field: {"value": figure.value, "origin": figure.origin.value,
                       **({"spread": figure.spread, "repeats": figure.repeats} if figure.repeats else {})}
               for field in (*PASSES, "saved", "peak") if (figure := getattr(entry, field)) is not None}
    return {"kind": entry.kind, "shapes": entry.shapes, "names": list(entry.names), **figures,
            **({"note": entry.note} if entry.note else {})}


def times_from_json(value: Any, where: str = "times") -> MeasuredTimes:
    """The times of a ``weft.operator-times/1`` object; ``where`` (a file name) is the prefix of every error message."""
    entry = Entry(value, where)
    require_format(entry, TIMES_FORMAT)
    entry.allow("format", "model", "device", "torch", "operators")
    return MeasuredTimes(entry.text("model"), entry.text("device"), entry.text("torch"),
                         tuple(_entry(item) for item in entry.list("operators")))


def _entry(item: Entry) -> MeasuredOperator:
    item.allow("kind", "shapes", "names", *PASSES, "saved", "peak", "note")
    names = item.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{item.where}: names must be a list of at least one operator's name")
    return MeasuredOperator(item.text("kind"), item.text("shapes"), tuple(names),
                        **{field: _figure(item.child(field)) for field in (*PASSES, "saved", "peak")
                           if item.has(field)},
                        note=item.text("note") if item.has("note") else "")


def _figure(entry: Entry) -> Figure:
    entry.allow("value", "origin", "spread", "repeats")
    origin, value = entry.text("origin"), entry.number("value")
    if origin not in set(Origin):
        raise FormatError(f"{entry.where}: origin is {origin!r}, it must be one of {', '.join(Origin)}")
    if value < 0:
        raise FormatError(f"{entry.where}: value is {value}, it must be 0 or more")
    return Figure(value, Origin(origin), entry.number("spread") if entry.has("spread") else 0.0,
                  entry.count("repeats") if entry.has("repeats") else 0)

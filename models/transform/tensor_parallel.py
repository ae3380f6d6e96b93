"""Which operators a group of devices cuts along which names, so that the conversions between them cost least.

Every operator that reads a weight of two or more dimensions is cut along one of the weight's names, where one divides:
by columns, by rows, by heads, by experts or by channels. The others are cut along any name, or computed by all. What is
least is the time of the conversions between operators, forward and backward, of the sums of weights' gradients, and of
moving what operators read and make. One conversion that several readers share is counted in shares, as if all shared
it. The choice is exact (:mod:`weft.models.tensor_parallel.elimination`), unless a table grows beyond ``_LARGEST``
entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from weft.models.layouts.conversion import LayoutPrices, convert, uniform
from weft.models.layouts.layout import Layout, LayoutError, Placed
from weft.models.tensor_parallel.elimination import Factor, cheapest
from weft.models.transform.planned import Cut, Planned
from weft.models.transform.program import Annotation, Dimensions, PlanError

_LARGEST = 1 << 20
#: A name, or none: all devices compute all of it.
_Label: TypeAlias = str | None


def tensor_parallel(planned: Planned, devices: Sequence[int], operators: str = "*", *,
                    prices: LayoutPrices | None = None, bandwidth: float = 1e12) -> Planned:
    """Cut operators over ``devices`` and put them there; their gradients and updates follow.

    ``prices``: what conversions cost, by default of devices joined alike; ``bandwidth``: bytes a second at which a
    device reads and writes its memory. Cuts in turn, such as micro-batches, stay as they are; copies are decided anew.
    Raises :class:`PlanError` for operators that are cut over devices already.
    """
    if len(set(devices)) != len(devices) or not devices:
        raise PlanError(f"tensor_parallel: the devices {list(devices)} must be different, and at least one")
    names = [name for name in planned.program.named(operators)
             if planned.program.by_name[name].phase == "forward" and planned.program.by_name[name].follows is None]
    cuts = dict(planned.cuts)
    for name in names:
        if any(cut.along is not None and not cut.in_turn for cut in planned.cuts.get(name, ())):
            raise PlanError(f"tensor_parallel: operator {name!r} is cut over devices already")
        cuts[name] = tuple(cut for cut in planned.cuts.get(name, ()) if cut.in_turn)
    planned = replace(planned, cuts=cuts)
    chosen = _Choice(planned, names, tuple(devices), prices or uniform(), bandwidth).best()
    if len(devices) > 1:
        cuts |= {name: (*cuts[name], Cut(chosen[name], len(devices))) for name in names}
    return replace(planned, cuts=cuts, devices={**planned.devices, **dict.fromkeys(names, tuple(devices))})


def along(planned: Planned, tensor: str, axis: int = 0) -> dict[str, str]:
    """By operator, the name that a dimension of ``tensor`` has in it, wherever its elements stay in one order: what
    :func:`~weft.models.transform.transformations.pipeline` cuts micro-batches along, and
    :func:`~weft.models.transform.transformations.co_shard` parts. What makes the tensor is among the operators.

    Raises :class:`PlanError` for a tensor or a dimension that is not there.
    """
    program = planned.program
    if tensor not in program.tensors or not -len(program.tensors[tensor].shape) <= axis < len(
            program.tensors[tensor].shape):
        raise PlanError(f"there is no dimension {axis} of a tensor {tensor!r}")
    marked = {tensor: axis % len(program.tensors[tensor].shape)}
    found: dict[str, str] = {}
    for operation in program.operations:
        if operation.phase != "forward":
            continue
        for name, dimensions in operation.reads:
            if name in marked and dimensions[marked[name]] and operation.name not in found:
                own = dimensions[marked[name]][0]
                if operation.annotation.role(own) != "frozen":
                    found[operation.name] = own
        if tensor in operation.outputs:
            made = operation.annotation.outputs[operation.outputs.index(tensor)][marked[tensor]]
            if made and operation.annotation.role(made[0]) != "frozen":
                found[operation.name] = made[0]
        for name, dimensions in operation.gives:
            at = [i for i, one in enumerate(dimensions) if one and one[0] == found.get(operation.name)]
            if at:
                marked[name] = at[0]
    return found


class _Choice:
    def __init__(self, planned: Planned, names: Sequence[str], devices: tuple[int, ...], prices: LayoutPrices,
                 bandwidth: float) -> None:
        self.program, self.names, self.devices = planned.program, names, devices
        self.prices, self.bandwidth = prices, bandwidth
        self.operations = {name: self.program.by_name[name] for name in names}
        self.sizes = {name: planned.sizes(planned.parts(name)[0]) for name in names}
        self.labels = {name: self._labels(name) for name in names}
        self.seconds: dict[tuple[Layout, Layout, tuple[int, ...], int], float] = {}

    def best(self) -> dict[str, _Label]:
        """The cut of each operator."""
        factors = [Factor((name,), np.array([self._own(name, label) for label in self.labels[name]]))
                   for name in self.names]
        for name in self.names:
            for at, tensor in enumerate(self.operations[name].inputs):
                source = self.program.producer.get(tensor)
                if source in self.operations and source != name:
                    factors.append(self._edge(source, name, tensor, at))
        best = cheapest({name: len(self.labels[name]) for name in self.names}, factors, _LARGEST)
        return {name: self.labels[name][i] for name, i in best.items()}

    def _labels(self, name: str) -> tuple[_Label, ...]:
        """What an operator may be cut along: one that reads a weight, along the weight's names where one divides."""
        operation = self.operations[name]
        found = [one for one in operation.annotation.names if self._divides(name, one)]
        weights = [{one for axis in dimensions for one in axis}
                   for tensor, dimensions in operation.reads
                   if self.program.tensors[tensor].source == "parameter" and self.program.tensors[tensor].gradient
                   and len(self.program.tensors[tensor].shape) > 1]
        of_weights = [one for one in found if any(one in some for some in weights)]
        if of_weights:
            return tuple(of_weights)
        if not any(self.program.tensors[tensor].gradient for tensor in operation.outputs):
            return (None,)  # masks, places and the like: small, and read by many
        return (None, *found)

    def _divides(self, name: str, one: str) -> bool:
        """Whether a name may be cut into a part for each device."""
        operation = self.operations[name]
        return (operation.annotation.role(one) != "frozen" and self.sizes[name][one] % len(self.devices) == 0
                and not operation.ahead_of(one))

    # -- costs -----------------------------------------------------------------------------------------------------

    def _own(self, name: str, label: _Label) -> float:
        """Moving what it reads and makes, forward and backward, and adding up terms of weights' gradients."""
        operation, sizes, seconds = self.operations[name], self.sizes[name], 0.0
        for tensor, dimensions in (*operation.reads, *operation.gives):
            layout, shape = self._layout(label, dimensions, gives=False), Annotation.shape(dimensions, sizes)
            seconds += 3 * layout.elements(shape) * self.program.tensors[tensor].itemsize / self.bandwidth
        for tensor, dimensions in operation.reads:
            held = self.program.tensors[tensor]
            if held.source == "parameter" and held.gradient:
                back = self._layout(label, dimensions, gives=True)
                whole = Layout(len(self.devices), 1, (1,) * len(dimensions))
                if back.values > 1:
                    seconds += self._conversion(back, whole, Annotation.shape(dimensions, sizes), held.itemsize)
        return seconds

    def _edge(self, source: str, target: str, tensor: str, at: int) -> Factor:
        """Conversions of a tensor, and of its gradient, in the share of this reader."""
        giving, reading = self.operations[source], self.operations[target]
        given = giving.annotation.outputs[giving.outputs.index(tensor)]
        read, shape = reading.annotation.inputs[at], Annotation.shape(given, self.sizes[source])
        held = self.program.tensors[tensor]
        share = 1 / sum(1 for name in self.program.readers[tensor] if name in self.operations)
        table = np.zeros((len(self.labels[source]), len(self.labels[target])))
        for i, label in enumerate(self.labels[source]):
            for j, other in enumerate(self.labels[target]):
                there = self._layout(other, read, gives=False)
                cost = self._conversion(self._layout(label, given, gives=True), there, shape, held.itemsize)
                if held.gradient:
                    back = self._layout(other, read, gives=True)
                    cost += self._conversion(back, self._layout(label, given, gives=False), shape,
                                             held.itemsize)
                table[i, j] = cost * share
        return Factor((source, target), table)

    def _layout(self, label: _Label, dimensions: Dimensions, *, gives: bool) -> Layout:
        """How a tensor lies for an operator that is cut so. ``gives``: as an output, or as an input's gradient, of
        which parts without the name are terms; otherwise all devices read it whole."""
        n = len(self.devices)
        splits = [1] * len(dimensions)
        for i, axis in enumerate(dimensions):
            if label is not None and label in axis:
                splits[i] = n
        if label is None or n == 1 or n in splits:
            return Layout(1 if n in splits else n, 1, tuple(splits))
        return Layout(1, n, tuple(splits)) if gives else Layout(n, 1, tuple(splits))

    def _conversion(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
        key = (source, target, shape, itemsize)
        if key not in self.seconds:
            try:
                found = convert(Placed.of(source, self.devices), Placed.of(target, self.devices), shape, itemsize,
                                self.prices)
                self.seconds[key] = found.seconds
            except LayoutError:
                self.seconds[key] = self.prices.messages(
                    (one, other, math.prod(shape) * itemsize) for one in self.devices for other in self.devices)
        return self.seconds[key]

"""The steps of a stage's forward and backward on one of several GPUs that compute it together, collectives apart.

They are the operators of the graph that one GPU computes (:class:`~weft.models.tensor_parallel.shard.Sharded`), in its
order and with its times; an exchange that sends something is a collective. Where an operator's annotation splits it
along the samples or the positions, it may be cut into chunks along them; any chunk of a tensor that a collective moves
can be moved alone. The backward runs the graph backwards; weight gradients follow the next collective, beside which
they run, since nothing waits for them. With recomputation a layer's forward comes again before its backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from weft.models.graph.operators import Operator, OperatorGraph, Split
from weft.models.hardware.devices import DeviceType, Pass, kernel_class
from weft.models.layers.layering import operators_by_layer
from weft.models.overlap.flow import Step
from weft.models.tensor_parallel.layouts import Timer
from weft.models.tensor_parallel.shard import Exchanged, Sharded

__all__ = ["CHUNKS", "DIMENSIONS", "LayerSteps"]

#: In how many chunks collectives may be.
CHUNKS = (2, 4, 8)
#: Along which axes: samples, and positions of a sequence.
DIMENSIONS = ("batch", "sequence")
#: What the zoo calls the two axes.
_AXES = {"batch": 0, "sequence": 1, "rows": 1}
_HEAVY = ("gemm", "bmm", "attention", "convolution")
#: Layers that recomputation leaves alone.
_NOT_RECOMPUTED = ("embedding", "embedding_bag", "cross_entropy")


class LayerSteps:
    """The steps of any row of layers. ``graph``: the operators before they were divided; ``timer``: seconds of a
    collective; ``recompute``: whether layers run again in the backward."""

    def __init__(self, sharded: Sharded, graph: OperatorGraph, device: DeviceType, timer: Timer, *,
                 recompute: bool) -> None:
        self.sharded, self.whole, self.device, self.timer, self.recompute = sharded, graph, device, timer, recompute
        self.original = graph.by_name
        converters = [operator.name for operator in sharded.graph.operators if operator.name not in self.original]
        self.exchanged = dict(zip(converters, sharded.exchanges, strict=True))
        self.layers = list(operators_by_layer(sharded.graph).values())

    @cached_property
    def sends(self) -> tuple[bool, ...]:
        """By layer, whether it has a collective."""
        return tuple(any(self._kind(operator, which) for operator in layer for which in ("forward", "backward"))
                     for layer in self.layers)

    def forward(self, layers: Sequence[int]) -> list[Step]:
        """The forward of ``layers`` (by index)."""
        row = _StepsInARow()
        for layer in layers:
            self._forward(row, self.layers[layer])
        return row.steps

    def backward(self, layers: Sequence[int], *, weights: bool) -> list[Step]:
        """The backward of ``layers``, with or without their weight gradients."""
        row, again = _StepsInARow(), _StepsInARow()
        later: list[Step] = []
        for number in reversed(layers):
            layer = self.layers[number]
            if self._runs_again(layer):
                again.steps, again.made = row.steps, {}
                self._forward(again, layer)
            for operator in reversed(layer):
                self._backward(row, operator, later, weights=weights)
        row.steps += later
        return row.steps

    def _runs_again(self, layer: Sequence[Operator]) -> bool:
        return self.recompute and not any(operator.kind in _NOT_RECOMPUTED for operator in layer)

    # -- one operator

    def _forward(self, row: _StepsInARow, layer: Sequence[Operator]) -> None:
        for operator in layer:
            waits = [row.made[name] for name in operator.inputs if name in row.made]
            number = row.add(self._step(operator, "forward", self.sharded.times[operator.name].forward, waits))
            row.made |= {tensor.name: number for tensor in operator.outputs}

    def _backward(self, row: _StepsInARow, operator: Operator, later: list[Step], *, weights: bool) -> None:
        time = self.sharded.times[operator.name]
        readers = [row.gradient[reader] for tensor in operator.outputs
                   for reader in self.sharded.graph.readers[tensor.name] if reader in row.gradient]
        own = row.add(self._step(operator, "backward", time.input_grad, readers))
        row.gradient[operator.name] = own
        if weights and time.weight_grad:
            launch = self.device.launch["backward"]
            later.append(Step(f"{operator.name}, weights", (own,), time.weight_grad, launch, is_heavy=True))
        if row.steps[own].is_sent:
            row.steps += later
            later.clear()

    def _step(self, operator: Operator, which: Pass, seconds: float, waits: Sequence[int]) -> Step:
        kind = self._kind(operator, which)
        known = tuple(dict.fromkeys(waits))
        if kind is not None:
            exchanged = self.exchanged[operator.name]
            return Step(operator.name, known, seconds, pieces={count: self._piece(exchanged, which, count)
                                                              for count in (1, *CHUNKS)},
                        divides=self._axes_of(exchanged))
        heavy = kernel_class(operator.kind) in _HEAVY and operator.name not in self.exchanged
        divides = (self._axes_of(self.exchanged[operator.name]) if operator.name in self.exchanged else
                   _divides(self.original[operator.name].splits, self.sharded.choices[operator.name],
                            self.sharded.degree))
        return Step(operator.name, known, seconds, self.device.launch[which], divides=divides, is_heavy=heavy)

    def _kind(self, operator: Operator, which: Pass) -> str | None:
        """The collective that ``operator`` is in this pass, if it is one."""
        exchanged = self.exchanged.get(operator.name)
        if exchanged is None:
            return None
        kind = exchanged.exchange.forward if which == "forward" else exchanged.exchange.backward
        return None if kind in ("none", "slice") else kind

    def _piece(self, exchanged: Exchanged, which: Pass, count: int) -> float:
        found = exchanged.exchange
        kind, size = ((found.forward, found.forward_bytes) if which == "forward" else
                      (found.backward, found.backward_bytes))
        assert kind != "none" and kind != "slice"
        return self.timer(kind, -(-size // count))

    def _axes_of(self, exchanged: Exchanged) -> dict[str, int]:
        """Along which axes what is sent can be cut: any that it has beside the last one, in what each GPU has of it."""
        shape = self.whole.tensors[exchanged.tensor].shape
        among = {exchanged.produced, exchanged.need.layout}
        return {dimension: shape[axis] // (self.sharded.degree if axis in among else 1)
                for axis, dimension in enumerate(DIMENSIONS) if axis < len(shape) - 1}


class _StepsInARow:
    """Steps in a row; ``made``: which one made a tensor, ``gradient``: which one gave back an operator's gradient."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.made: dict[str, int] = {}
        self.gradient: dict[str, int] = {}

    def add(self, step: Step) -> int:
        """Append ``step``; its number."""
        self.steps.append(step)
        return len(self.steps) - 1


def _divides(splits: Sequence[Split], taken: Split | None, degree: int) -> dict[str, int]:
    """Units along the dimensions that an operator can be cut along, beside how it is divided among the GPUs."""
    found: dict[str, int] = {}
    for split in splits:
        axis = _AXES.get(split.dimension)
        if axis is not None and set(split.outputs.values()) == {axis}:
            is_cut = taken is not None and taken.dimension == split.dimension
            found[DIMENSIONS[axis]] = split.size // degree if is_cut else split.size
    return found

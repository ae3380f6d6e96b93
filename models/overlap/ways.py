"""The ways in which a stage on several GPUs may run its collectives, and their costs.

``none``: in sequence with the computation, as in the costs of stages. ``beside``: collectives overlap weight gradients
and other independent work. ``2 chunks`` ...: they also overlap the computation of other chunks, at most this many,
along the samples or the positions, whichever is fastest (:mod:`weft.models.overlap.flow`). ``rs-c-ag`` before one of
these: between a reduce-scatter and an all-gather each GPU has only its slice of the positions, which takes 1/N of the
time and memory of norms and pointwise operators.

All layers of a stage use one way. A way's savings are subtracted from the stage's cost without it, so ways without
savings are omitted; so are those matched by another way of the same layout with fewer chunks.

``apart``, with 1 chunk or several, is for stages of few layers: collectives are separate blocks on the network lanes
(:mod:`weft.models.overlap.flow`), which may overlap the computation of other micro-batches.

In *pairs* of micro-batches the two chunks are the two micro-batches, whole: times and amounts are those of both, and
the workspace is twice as large if they run concurrently.

The steps of a stage's forward and backward on one of several GPUs that compute it together, with separate collectives.

They are the operators of one GPU's graph (:class:`~weft.models.tensor_parallel.shard.Sharded`), in its order and with
its times; an exchange with communication is a collective. If an operator's annotation splits it along the samples or
the positions, it may be cut into chunks along them; any chunk of a collective's tensor can be moved separately. The
backward runs the graph in reverse; weight gradients follow the next collective, which they overlap, since they have no
successors. With recomputation a layer's forward is repeated before its backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from weft.models.candidates.stages import Backward, StageCost
from weft.models.graph.operators import Operator, OperatorGraph, Split
from weft.models.hardware.devices import DeviceType, Pass, kernel_class
from weft.models.layers.collectives import Collective
from weft.models.layers.layering import operators_by_layer
from weft.models.overlap.flow import FlowPiece, FlowStep, duration, ended, pieces, serial
from weft.models.tensor_parallel.part_times import Timer
from weft.models.tensor_parallel.parts import LayersPart, stage_cost
from weft.models.tensor_parallel.shard import Exchanged, Sharded
from weft.models.tensor_parallel.space import Space

#: The layouts of tensors between layers.
Between: TypeAlias = Literal["whole", "sliced"]
NONE, SLICED, APART = "none", "rs-c-ag", "apart"
#: Numbers of chunks of collectives in separate blocks, and the maximum blocks of a stage.
_APART = (1, 2, 4)
MOST_PIECES = 40


@dataclass(frozen=True, slots=True)
class Way:
    """``name`` of the option, the layout of tensors ``between`` layers, and the stage's costs.

    ``apart``: the pieces of its forward and its backward (of its input gradient, where that is split) if collectives
    are separate blocks; none if a pass is one block.
    """

    name: str
    between: Between
    cost: StageCost
    apart: tuple[tuple[FlowPiece, ...], tuple[FlowPiece, ...]] | None = None


class Ways:
    """The ways of the stages of ``space``, for one mode of the ``backward``; of micro-batches in ``pairs``, or one by
    one. ``like``: another instance of the same space, whose steps and times are reused."""

    def __init__(self, space: Space, backward: Backward, *, pairs: bool = False, like: Ways | None = None) -> None:
        self.space, self.backward, self.pairs = space, backward, pairs
        self._steps: dict[tuple[int, Between], LayerSteps] = {} if like is None else like._steps
        self._spared: dict[object, int] = {} if like is None else like._spared
        self._known: dict[tuple[int, tuple[int, ...]], tuple[Way, ...]] = {}

    def of(self, part: LayersPart) -> tuple[Way, ...]:
        """Those of ``part``, ``none`` first."""
        if part.degree == 1 or part.co_shard:
            return (Way(NONE, "whole", self._cost(part.cost)),)
        key = part.degree, part.layers
        if key not in self._known:
            self._known[key] = tuple(self._found(part))
        return self._known[key]

    def steps(self, degree: int, between: Between) -> LayerSteps:
        """The steps of all layers on ``degree`` GPUs."""
        if (degree, between) not in self._steps:
            space = self.space
            sharded = space.sharded[degree] if between == "whole" else space.sliced(degree)[0]
            self._steps[degree, between] = LayerSteps(sharded, space.graph, space.device, space.timer(degree),
                                                      recompute=space.recompute)
        return self._steps[degree, between]

    def _found(self, part: LayersPart) -> Iterator[Way]:
        yield Way(NONE, "whole", self._cost(part.cost))
        steps = self.steps(part.degree, "whole")
        if not any(steps.sends[layer] for layer in part.layers):
            return
        yield from self._faster(part, "whole", part.cost)
        cut = stage_cost(self.space.sliced(part.degree)[1], part.layers)
        if cut.parameters == part.cost.parameters and (
                cut.activation < part.cost.activation or cut.load < part.cost.load):
            yield Way(SLICED, "sliced", self._cost(cut))
            yield from self._faster(part, "sliced", cut)

    def _faster(self, part: LayersPart, between: Between, cost: StageCost) -> Iterator[Way]:
        """The ways with overlap that are faster than those with fewer chunks."""
        steps = self.steps(part.degree, between)
        forward = steps.forward(part.layers)
        backward = [] if self.backward == "none" else steps.backward(part.layers, weights=self.backward == "full")
        if self.pairs:
            forward, backward = map(_of_both, (forward, backward))
        cost = self._cost(cost)
        best = cost.forward, cost.backward
        spared, alike = [0, 0], [_alike(row) for row in (forward, backward)]
        for count in (1, 2) if self.pairs else (1, *CHUNKS):
            saved = [self._saved(row, key, count) for row, key in zip((forward, backward), alike, strict=True)]
            spared = [max(pair) for pair in zip(spared, saved, strict=True)]
            found = replace(cost, forward=max(1, cost.forward - spared[0]), backward=cost.backward - spared[1],
                            input_grad=cost.input_grad - (spared[1] if self.backward == "split" else 0))
            if found.forward < best[0] or found.backward < best[1]:
                best = found.forward, found.backward
                name = "beside" if count == 1 else f"{count} chunks"
                if self.pairs and count == 2:
                    name, found = "side by side", _doubled(
                        found, "workspace_forward", "workspace_backward", "workspace_weight_grad", "working_set")
                yield Way(f"{SLICED}, {name}" if between == "sliced" else name, between, found)
        if not self.pairs:
            yield from self._apart(between, cost, forward, backward)

    def _apart(self, between: Between, cost: StageCost, forward: Sequence[FlowStep], backward: Sequence[FlowStep]
               ) -> Iterator[Way]:
        """The ways with collectives in separate blocks, if these are few."""
        if 2 * sum(step.is_sent for step in (*forward, *backward)) > MOST_PIECES:
            return
        for count in _APART:
            rows = tuple(_best_pieces(row, count) for row in (forward, backward))
            if sum(map(len, rows)) <= MOST_PIECES and any(piece.is_sent for row in rows for piece in row):
                name = APART if count == 1 else f"{APART}, {count} chunks"
                yield Way(f"{SLICED}, {name}" if between == "sliced" else name, between, cost, (rows[0], rows[1]))

    def _cost(self, cost: StageCost) -> StageCost:
        """The cost of one micro-batch, or of two in sequence."""
        if not self.pairs:
            return cost
        return _doubled(cost, "forward", "backward", "input_grad", "weight_grad", "activation", "held", "output")

    def _saved(self, steps: Sequence[FlowStep], alike: object, count: int) -> int:
        """:func:`_saved` of ``steps``, cached for equal ``alike``."""
        if (alike, count) not in self._spared:
            self._spared[alike, count] = _saved(steps, count)
        return self._spared[alike, count]


def fastest(ways: Sequence[Way]) -> tuple[Way, ...]:
    """``none``, and for each layout the fastest way in one block and the one in separate blocks that is fastest
    alone."""
    found: dict[tuple[Between, bool], Way] = {}
    for way in ways:
        key = way.between, way.apart is not None
        if key not in found or _alone(way) < _alone(found[key]):
            found[key] = way
    kept = list(found.values())
    return tuple(way for way in ways if way.name == NONE or way in kept)


def _alone(way: Way) -> float:
    """Nanoseconds of both passes if nothing else runs."""
    return way.cost.load if way.apart is None else sum(map(ended, way.apart)) * 1e9


def _alike(steps: Sequence[FlowStep]) -> object:
    """A key equal for steps that differ only in names."""
    return tuple((step.waits, step.seconds, step.launch, tuple(step.pieces.items()), tuple(step.divides.items()),
                  step.is_heavy) for step in steps)


def _of_both(steps: Sequence[FlowStep]) -> list[FlowStep]:
    """``steps`` of two micro-batches, each a chunk."""
    return [replace(step, seconds=2 * step.seconds, launch=0.0, divides={DIMENSIONS[0]: 2},
                    pieces={1: 2 * step.seconds, 2: step.seconds} if step.is_sent else {}) for step in steps]


def _doubled(cost: StageCost, *names: str) -> StageCost:
    twice: dict[str, Any] = {name: 2 * getattr(cost, name) for name in names}
    return replace(cost, **twice)


def _saved(steps: Sequence[FlowStep], count: int) -> int:
    """Whole nanoseconds that ``count`` chunks save over ``steps`` in sequence, along the better axis."""
    if not steps:
        return 0
    least = min(duration(steps, count, dimension, wide=wide) for dimension, wide in _cuts(count))
    return max(0, math.floor((serial(steps) - least) * 1e9 - 0.5))


def _best_pieces(steps: Sequence[FlowStep], count: int) -> tuple[FlowPiece, ...]:
    """``steps`` in ``count`` chunks, along the axis that is fastest if nothing else runs."""
    if not steps:
        return ()
    dimension, wide = min(_cuts(count), key=lambda cut: duration(steps, count, cut[0], wide=cut[1]))
    return tuple(pieces(steps, count, dimension, wide=wide))


def _cuts(count: int) -> list[tuple[str, bool]]:
    """The ways to cut into ``count`` chunks."""
    return [(dimension, wide) for dimension in (DIMENSIONS if count > 1 else ("",)) for wide in (True, False)]


#: Possible numbers of chunks of collectives.
CHUNKS = (2, 4, 8)
#: The axes of chunks: samples, and positions of a sequence.
DIMENSIONS = ("batch", "sequence")
#: The zoo's names of the two axes.
_AXES = {"batch": 0, "sequence": 1, "rows": 1}
_HEAVY = ("gemm", "bmm", "attention", "convolution")
#: Layers excluded from recomputation.
_NOT_RECOMPUTED = ("embedding", "embedding_bag", "cross_entropy")


class LayerSteps:
    """The steps of any consecutive layers. ``graph``: the operators before the division; ``timer``: seconds of a
    collective; ``recompute``: whether layers are recomputed in the backward."""

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
        return tuple(any(self._collective(operator, which) for operator in layer for which in ("forward", "backward"))
                     for layer in self.layers)

    def forward(self, layers: Sequence[int]) -> list[FlowStep]:
        """The forward of ``layers`` (by index)."""
        row = _StepsInARow()
        for layer in layers:
            self._forward(row, self.layers[layer])
        return row.steps

    def backward(self, layers: Sequence[int], *, weights: bool) -> list[FlowStep]:
        """The backward of ``layers``, with or without their weight gradients."""
        row, again = _StepsInARow(), _StepsInARow()
        later: list[FlowStep] = []
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

    def _backward(self, row: _StepsInARow, operator: Operator, later: list[FlowStep], *, weights: bool) -> None:
        time = self.sharded.times[operator.name]
        readers = [row.gradient[reader] for tensor in operator.outputs
                   for reader in self.sharded.graph.readers[tensor.name] if reader in row.gradient]
        own = row.add(self._step(operator, "backward", time.input_grad, readers))
        row.gradient[operator.name] = own
        if weights and time.weight_grad:
            launch = self.device.launch["backward"]
            later.append(FlowStep(f"{operator.name}, weights", (own,), time.weight_grad, launch, is_heavy=True))
        if row.steps[own].is_sent:
            row.steps += later
            later.clear()

    def _step(self, operator: Operator, which: Pass, seconds: float, waits: Sequence[int]) -> FlowStep:
        collective = self._collective(operator, which)
        known = tuple(dict.fromkeys(waits))
        if collective is not None:
            kind, size = collective
            return FlowStep(operator.name, known, seconds, pieces={
                count: self.timer(kind, -(-size // count)) for count in (1, *CHUNKS)},
                            divides=self._axes_of(self.exchanged[operator.name]))
        heavy = kernel_class(operator.kind) in _HEAVY and operator.name not in self.exchanged
        divides = (self._axes_of(self.exchanged[operator.name]) if operator.name in self.exchanged else
                   _divides(self.original[operator.name].splits, self.sharded.choices[operator.name],
                            self.sharded.degree))
        return FlowStep(operator.name, known, seconds, self.device.launch[which], divides=divides, is_heavy=heavy)

    def _collective(self, operator: Operator, which: Pass) -> tuple[Collective, int] | None:
        """The collective that ``operator`` is in this pass, if it is one, and its bytes."""
        exchanged = self.exchanged.get(operator.name)
        return None if exchanged is None else exchanged.exchange.collectives[which != "forward"]

    def _axes_of(self, exchanged: Exchanged) -> dict[str, int]:
        """The axes along which a communicated tensor can be cut: any but the last one, of each GPU's part."""
        shape = self.whole.tensors[exchanged.tensor].shape
        among = {exchanged.produced, exchanged.need.layout}
        return {dimension: shape[axis] // (self.sharded.degree if axis in among else 1)
                for axis, dimension in enumerate(DIMENSIONS) if axis < len(shape) - 1}


class _StepsInARow:
    """Steps in sequence; ``made``: the producer of each tensor, ``gradient``: the step that returned an operator's
    gradient."""

    def __init__(self) -> None:
        self.steps: list[FlowStep] = []
        self.made: dict[str, int] = {}
        self.gradient: dict[str, int] = {}

    def add(self, step: FlowStep) -> int:
        """Append ``step``; returns its number."""
        self.steps.append(step)
        return len(self.steps) - 1


def _divides(splits: Sequence[Split], taken: Split | None, degree: int) -> dict[str, int]:
    """Units along an operator's divisible dimensions, apart from its division among the GPUs."""
    found: dict[str, int] = {}
    for split in splits:
        axis = _AXES.get(split.dimension)
        if axis is not None and set(split.outputs.values()) == {axis}:
            is_cut = taken is not None and taken.dimension == split.dimension
            found[DIMENSIONS[axis]] = split.size // degree if is_cut else split.size
    return found

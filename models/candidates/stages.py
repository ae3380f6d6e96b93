"""A stage: consecutive layers as one piece of work; and the memory of stages on one GPU.

Every interval of layers can be a stage. Its times are whole nanoseconds and its sizes whole bytes, so that sums are
exact in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft.models.layers.costs import LayerCost

#: Shapes in which every stage runs on one GPU.
Shape: TypeAlias = Literal["chain", "v", "loop", "wave"]
#: Those of at most two stages a GPU, supported by :mod:`weft.models.candidates.split_search`.
SHAPES: tuple[Shape, ...] = ("chain", "v", "loop")
_CHUNKS: Mapping[Shape, int] = {"chain": 1, "v": 2, "loop": 2, "wave": 3}
#: ``full``: one backward block. ``split``: separate input and weight gradients. ``none``: inference.
Backward: TypeAlias = Literal["full", "split", "none"]


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """The memory needs of stages beside those of their layers.

    ``bytes_per_parameter``: parameter, gradient and optimizer state. ``reserve``: bytes left free on every GPU.
    """

    backward: Backward = "full"
    bytes_per_parameter: int = 16
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class StageCost:
    """Layers ``first`` to ``last - 1`` of a model, for one micro-batch: times in nanoseconds, sizes in bytes.

    See :class:`~weft.models.layers.costs.LayerCost` for the fields; ``activation`` and ``held`` are kept until the end
    of the backward (the input gradient) and of the weight gradient.
    """

    first: int
    last: int
    forward: int
    backward: int
    input_grad: int
    weight_grad: int
    parameters: int
    activation: int
    held: int
    output: int
    workspace_forward: int
    workspace_backward: int
    workspace_weight_grad: int
    working_set: int
    #: Names of tensors kept or held by several layers of the model and already counted here.
    counted: frozenset[str] = frozenset()
    #: Gradients kept through the step while others are not, in bytes.
    held_gradients: int = 0

    @property
    def load(self) -> int:
        """Nanoseconds of work for one micro-batch."""
        return self.forward + self.backward

    @property
    def workspace_after_forward(self) -> int:
        """The peak need of both gradients, one after the other, beyond ``activation``."""
        more = self.held - self.activation
        return max(0, max(0, more) + self.workspace_backward, more + self.workspace_weight_grad)


def stage_device(shape: Shape, gpus: int, chunks: int | None = None) -> tuple[int, ...]:
    """The GPU of each stage. chain: s. loop: s modulo p. v and wave: s, 2p - 1 - s on the way back, and down again.

    ``chunks``: stages on each GPU; by default the shape's minimum, 1 for a chain, 3 for a wave, else 2.
    """
    down = tuple(range(gpus))
    runs = range(_CHUNKS[shape] if chunks is None else chunks)
    return tuple(gpu for run in runs for gpu in (down[::-1] if shape in ("v", "wave") and run % 2 else down))


class Stages:
    """All stages that ``layers`` can be cut into, each made on first use."""

    def __init__(self, layers: Sequence[LayerCost]) -> None:
        self.layers = tuple(layers)
        self._rows: list[list[StageCost]] = [[] for _ in layers]

    def stage(self, first: int, last: int) -> StageCost:
        """The stage of layers ``first`` to ``last - 1``."""
        row = self._rows[first]
        while len(row) < last - first:
            end = first + len(row)
            row.append(_extended(row[-1] if row else None, self.layers[end], end))
        return row[last - first - 1]


def _extended(stage: StageCost | None, layer: LayerCost, at: int) -> StageCost:
    before = stage or StageCost(at, at, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return StageCost(
        before.first, at + 1,
        before.forward + nanoseconds(layer.forward),
        before.backward + nanoseconds(layer.backward),
        before.input_grad + nanoseconds(layer.input_grad or 0.0),
        before.weight_grad + nanoseconds(layer.weight_grad or 0.0),
        before.parameters + layer.parameters - _again(before, layer.shared_parameters),
        before.activation + layer.activation_bytes - _again(before, layer.shared_activations),
        before.held + layer.weight_grad_bytes,
        layer.output_bytes,
        max(before.workspace_forward, layer.workspace_forward),
        max(before.workspace_backward, layer.workspace_backward),
        max(before.workspace_weight_grad, layer.workspace_weight_grad),
        max(before.working_set, layer.working_set),
        before.counted.union(name for name, _ in (*layer.shared_parameters, *layer.shared_activations,
                                                  *layer.held_gradients)),
        before.held_gradients + sum(size for _, size in layer.held_gradients) - _again(before, layer.held_gradients),
    )


def _again(stage: StageCost, shared: tuple[tuple[str, int], ...]) -> int:
    """The part of ``shared`` already counted in the stage."""
    return sum(amount for name, amount in shared if name in stage.counted)


def nanoseconds(seconds: float) -> int:
    """Whole ones."""
    return round(seconds * 1e9)


def static_bytes(stages: Sequence[StageCost], bytes_per_parameter: int) -> int:
    """The static memory of one GPU's stages: parameters, gradients, optimizer state."""
    return sum(stage.parameters * bytes_per_parameter + stage.held_gradients for stage in stages)


def peak_bytes(stages: Sequence[StageCost], in_flight: Sequence[int], backward: Backward) -> int:
    """The peak run-time memory of one GPU's stages (first to last) with ``in_flight`` micro-batches of each.

    One micro-batch runs from the first stage's forward to its last gradient while the other ones in flight wait with
    their activations; a weight gradient runs immediately after its input gradient. With one in flight, no schedule
    needs less.
    """
    if backward == "none":
        return max(stage.working_set for stage in stages)
    level = sum((count - 1) * stage.activation for stage, count in zip(stages, in_flight, strict=True))
    peak = 0
    for stage in stages:
        level += stage.activation
        peak = max(peak, level + stage.workspace_forward)
    for stage in reversed(stages):
        is_split = backward == "split" and stage.weight_grad
        peak = max(peak, level + (stage.workspace_after_forward if is_split else stage.workspace_backward))
        level -= stage.activation
    return peak

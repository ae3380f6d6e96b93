"""Lower bounds on the costs of each layer at each number of GPUs, in whole nanoseconds and bytes.

Bounds over all placements (:mod:`weft.models.tensor_parallel.bound.any_placement`) must hold for every cut, so each
number here is a *lower bound* on a layer's cost to its stage: shared tensors (a tied table, an activation kept by
several layers) are not counted, as another layer of the stage may already have them; of several ways to compute a layer
at one degree (co-sharded parts) the least of each number counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.models.candidates.stages import Backward, nanoseconds
from weft.models.layers.costs import LayerCost

_Table = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LayerTerms:
    """Tables with a row a layer and a column for each of ``degrees``, numbers of GPUs that compute it together.

    ``load``: nanoseconds of one micro-batch on each GPU, forward and backward. ``static``: bytes of parameters,
    gradients and optimizer state on each. ``kept``: bytes of a micro-batch's activations on each, from the forward to
    the end of the input gradient. ``forward``: nanoseconds of the forward. ``back``: of the part that the previous
    layer waits for (the input gradient, or the whole backward if it is never split). ``is_row``: whether every layer
    waits for the previous one in forwards, and conversely in backwards; if not, ``kept``, ``forward`` and ``back`` do
    not apply to several layers. ``is_split``: whether weight gradients may run last.
    """

    degrees: tuple[int, ...]
    load: _Table
    static: _Table
    kept: _Table
    forward: _Table
    back: _Table
    is_row: bool
    is_split: bool

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.load)

    @property
    def way(self) -> int:
        """The minimum nanoseconds of a micro-batch forwards and back; 0 if unknown."""
        return int((self.forward.min(axis=1) + self.back.min(axis=1)).sum()) if self.is_row else 0

    def replicated(self, copies: int) -> LayerTerms:
        """The layers of ``copies`` of the model, of which each runs its own micro-batches."""
        load, static, kept, forward, back = (
            np.tile(table, (copies, 1)) for table in (self.load, self.static, self.kept, self.forward, self.back))
        return LayerTerms(self.degrees, load, static, kept, forward, back, self.is_row and copies == 1, self.is_split)


def terms_of(costs: Mapping[int, Sequence[LayerCost]], others: Sequence[Sequence[LayerCost]],
             bytes_per_parameter: int, modes: Sequence[Backward], *, is_row: bool) -> LayerTerms:
    """The terms of layers that cost ``costs`` by degree, and may cost any of ``others`` on one GPU.

    ``modes``: the allowed kinds of backward. ``is_row``: whether layers are consecutive.
    """
    degrees = tuple(sorted(costs))
    is_split = "split" in modes
    ways = [[costs[degree], *(others if degree == 1 else ())] for degree in degrees]

    def table(number: int) -> _Table:
        found = [[min(_least(way[layer], bytes_per_parameter, is_split)[number] for way in at) for at in ways]
                 for layer in range(len(costs[degrees[0]]))]
        return np.array(found, dtype=np.int64)

    trains = [bool(cost.backward) for cost in costs[degrees[0]]]
    # A layer without gradients keeps nothing, and earlier layers need not wait for it in the backward.
    load, static, kept, forward, back = map(table, range(5))
    return LayerTerms(degrees, load, static, kept, forward, back, is_row and (all(trains) or not any(trains)), is_split)


def _least(cost: LayerCost, bytes_per_parameter: int, is_split: bool) -> tuple[int, int, int, int, int]:
    """Load, static bytes, kept bytes, forward, and back."""
    shared = sum(count for _, count in cost.shared_parameters)
    kept = cost.activation_bytes - sum(size for _, size in cost.shared_activations) if cost.backward else 0
    whole = back = nanoseconds(cost.backward)
    if is_split and cost.input_grad is not None and cost.weight_grad is not None:
        back = nanoseconds(cost.input_grad)
        whole = min(whole, back + nanoseconds(cost.weight_grad))  # both parts are rounded
    return (nanoseconds(cost.forward) + whole, bytes_per_parameter * (cost.parameters - shared), max(0, kept),
            nanoseconds(cost.forward), back)

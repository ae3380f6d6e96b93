"""What every run of layers costs as a stage, all at once: the numbers of :class:`~weft.models.candidates.stages.Stages`
in tables, for the programs that look at every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.models.candidates.stages import Backward
from weft.models.layers.costs import LayerCost

__all__ = ["StageTables"]

_Table = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StageTables:
    """By first layer and end (the layer behind the last; 0 where that is not behind the first).

    ``load``: nanoseconds. ``static``: bytes held in any case. ``workspace``: the most that is needed for a moment.
    ``each``: bytes kept of a micro-batch.
    """

    load: _Table
    static: _Table
    workspace: _Table
    each: _Table

    @classmethod
    def of(cls, layers: Sequence[LayerCost], bytes_per_parameter: int, backward: Backward) -> StageTables:
        """The tables of all runs of ``layers``."""
        load = _sums([_ns(layer.forward) + _ns(layer.backward) for layer in layers])
        static = (bytes_per_parameter * _shared_sums([layer.parameters for layer in layers],
                                                     [layer.shared_parameters for layer in layers])
                  + _shared_sums([sum(size for _, size in layer.held_gradients) for layer in layers],
                                 [layer.held_gradients for layer in layers]))
        if backward == "none":
            return cls(load, static, _most([layer.working_set for layer in layers]), np.zeros_like(load))
        each = _shared_sums([layer.activation_bytes for layer in layers],
                            [layer.shared_activations for layer in layers])
        behind = _most([layer.workspace_backward for layer in layers])
        workspace = np.maximum(_most([layer.workspace_forward for layer in layers]), behind)
        if backward == "split":
            more = _sums([layer.weight_grad_bytes for layer in layers]) - each
            workspace = np.maximum(workspace, np.maximum(more, 0) + behind)
            workspace = np.maximum(workspace, more + _most([layer.workspace_weight_grad for layer in layers]))
        return cls(load, static, workspace, each)


def _sums(amounts: Sequence[int]) -> _Table:
    """Of every run, the sum of its layers' ``amounts``: whole numbers below 2^53, so exact."""
    before = np.concatenate(([0.0], np.cumsum(np.array(amounts, dtype=np.float64))))
    return np.triu(before[None, :] - before[:, None])


def _shared_sums(amounts: Sequence[int], shared: Sequence[Iterable[tuple[str, int]]]) -> _Table:
    """The same where a run has what several of its layers share (names and amounts) once."""
    total = _sums(amounts)
    last: dict[str, int] = {}
    for layer, own in enumerate(shared):
        for name, amount in own:
            if name in last:
                total[:last[name] + 1, layer + 1:] -= amount
            last[name] = layer
    return total


def _most(amounts: Sequence[int]) -> _Table:
    """Of every run, the largest of its layers' ``amounts``."""
    count = len(amounts)
    found = np.zeros((count + 1, count + 1))
    running: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.maximum.accumulate
    for first in range(count):
        found[first, first + 1:] = running(np.array(amounts[first:], dtype=np.float64))
    return found


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

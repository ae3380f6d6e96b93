"""What every stage that layers can be cut into costs, in arrays: entry ``[first, last]`` is of layers ``first`` to
``last - 1``. Times in nanoseconds, sizes in bytes, for one micro-batch.

The rules are those by which :mod:`weft.models.candidates.build` makes blocks; a block that a stage does not have takes
no time and no memory here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.models.candidates.stages import MemoryRule, StageCost, Stages, static_bytes
from weft.models.layers.costs import LayerCost
from weft.solver.variants.variants import Numbers

__all__ = ["Tables"]


@dataclass(frozen=True)
class Tables:
    """Three blocks a stage: forward, gradient (a full backward, or of the input) and weight gradient; each has a
    duration, what it ``take``s when it starts and by how much it has changed the level when it has ended. ``static``:
    what a GPU holds of the stage all the time. ``whole``: whether the stage's gradient is one block, and its third
    block is none."""

    durations: tuple[Numbers, Numbers, Numbers]
    take: tuple[Numbers, Numbers, Numbers]
    change: tuple[Numbers, Numbers, Numbers]
    static: Numbers

    @classmethod
    def of(cls, layers: Sequence[LayerCost], rule: MemoryRule) -> Tables:
        """The tables of ``layers``."""
        count = len(layers) + 1
        stages = Stages(layers)
        rows = np.zeros((10, count, count), dtype=np.int64)
        for first in range(count - 1):
            for last in range(first + 1, count):
                rows[:, first, last] = _stage(stages.stage(first, last), rule)
        return cls((rows[0], rows[1], rows[2]), (rows[3], rows[4], rows[5]), (rows[6], rows[7], rows[8]), rows[9])

    @property
    def work(self) -> Numbers:
        """All that a stage runs."""
        return sum(self.durations[1:], self.durations[0])

    @property
    def kept(self) -> Numbers:
        """What a stage keeps of a micro-batch between its forward and its gradient."""
        return self.change[0]


def _stage(stage: StageCost, rule: MemoryRule) -> tuple[int, ...]:
    static = static_bytes([stage], rule.bytes_per_parameter)
    if rule.backward == "none":
        return stage.forward, 0, 0, stage.working_set, 0, 0, 0, 0, 0, static
    kept, forward = stage.activation, (stage.forward, stage.activation + stage.workspace_forward, stage.activation)
    if rule.backward == "full" or not stage.weight_grad:
        gradient = (stage.backward, stage.workspace_backward, -kept)
        weight = (0, 0, 0)
    elif not stage.input_grad:
        alone = (stage.weight_grad, stage.workspace_after_forward, -kept)
        gradient, weight = ((0, 0, 0), alone) if stage.first == 0 else (alone, (0, 0, 0))
    else:
        more = stage.held - kept
        gradient = (stage.input_grad, max(more, 0) + stage.workspace_backward, more)
        weight = (stage.weight_grad, stage.workspace_weight_grad, -stage.held)
    columns = zip(forward, gradient, weight, strict=True)
    return *(number for column in columns for number in column), static

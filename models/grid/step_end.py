"""The work after a step's pipeline: summing gradients, the optimizer, gathering parameters.

With the overlap of frameworks: gradients are summed in buckets beside the backward of the last micro-batch, layer by
layer from the last one on; the rest follows it, at least the sum of the final layer. The optimizer then reads and
writes its states. Parameters are gathered beside the forward of the next step's first micro-batch, at least the first
layer's before it. A GPU down the pipeline has time for that until the earlier ones have ended their last backwards, and
have begun the next step's forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.models.grid.degrees import Degrees
from weft.models.grid.links import GridLinks
from weft.models.grid.rank import RankLayer
from weft.models.grid.state import StateBytes, gathered, reduced

#: Bytes that Adam reads and writes of a parameter: its gradient, master copy and two moments in 32 bits, these three
#: again, and the parameter in 16 bits.
_MOVED = 4 * 4 + 3 * 4 + 2


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Seconds after the pipeline of a step, for the GPU with the most of them; and the exposed time of its gradients,
    optimizer and parameters. ``rank``: its position in the pipeline."""

    seconds: float
    gradients: float = 0.0
    optimizer: float = 0.0
    parameters: float = 0.0
    rank: int = 0


def step_end(stages: Sequence[Sequence[RankLayer]], degrees: Degrees, links: GridLinks, size: StateBytes) -> StepEnd:
    """The end of a step whose ``stages`` are on GPUs 0, 1 ... of a pipeline, round-robin."""
    pipeline = degrees.pipeline
    found, slack = StepEnd(0.0), 0.0
    for rank in range(pipeline):
        layers = [layer for stage in stages[rank::pipeline] for layer in stage]
        own = _own_end(layers, degrees, links, size)
        behind = max(0.0, own.seconds - slack)
        if behind > found.seconds:
            found = StepEnd(behind, own.gradients, own.optimizer, own.parameters, rank)
        slack += sum(layer.cost.forward + layer.cost.backward for layer in stages[rank])
    return found


def _own_end(layers: Sequence[RankLayer], degrees: Degrees, links: GridLinks, size: StateBytes) -> StepEnd:
    """Of one GPU that computes until its last backward."""
    behind = ahead = 0.0
    if degrees.zero < 2:
        free = 0.0  # end of the sums in seconds, counted from the start of the last backward
        at = 0.0
        for layer in reversed(layers):
            at += layer.cost.backward
            free = max(free, at) + reduced(layer, degrees, links)
        behind = max(0.0, free - at)
    if degrees.zero < 3:
        have = done = 0.0  # the times when a layer's parameters are available, and when its forward has run
        for layer in layers:
            have += gathered(layer, degrees, links, size)
            done = max(done, have) + layer.cost.forward
        ahead = max(0.0, done - sum(layer.cost.forward for layer in layers))
    alike = degrees.data * degrees.context if degrees.zero else 1
    shares = sum((layer.cost.parameters - layer.experts) / alike
                 + layer.experts / max(1, alike // degrees.expert) for layer in layers)
    device = links.device
    optimizer = shares * _MOVED / (device.bandwidth * device.reach["pointwise", "forward"].memory)
    return StepEnd(behind + optimizer + ahead, behind, optimizer, ahead)


def least_end(first: RankLayer, degrees: Degrees, links: GridLinks, size: StateBytes) -> float:
    """A lower bound in seconds on the work after the pipeline of a step whose first GPU has at least the layer
    ``first``: its gradient is summed last, its parameters are gathered first, and no earlier GPU leaves it time."""
    return _own_end([first], degrees, links, size).seconds

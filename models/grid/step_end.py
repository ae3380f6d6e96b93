"""The work after a step's pipeline: summing gradients, the optimizer, gathering parameters.

With the overlap of frameworks: gradients are summed in buckets beside the backward of the last micro-batch, layer by
layer from the last one on; the rest follows it, at least the sum of the final layer. The optimizer then reads and
writes its states. Parameters are gathered beside the forward of the next step's first micro-batch, at least the first
layer's before it. A GPU down the pipeline has time for that from its last operation to the pipeline's end, and until
its first operation of the next step.

The GPUs of ``data`` times ``context`` with the same layers divide optimizer states (ZeRO-1), also gradients (ZeRO-2),
also parameters (ZeRO-3, FSDP; Rajbhandari et al., 2020); for experts, the GPUs with the same ones, fewer by the factor
``expert``. Once a step gradients are summed, after the last micro-batch's backward of each layer, and parameters
gathered, before the first micro-batch's forward of the next step. Under ZeRO-2 gradients are summed after every
micro-batch, and under ZeRO-3 parameters gathered before every forward and backward: the excess over the layer's
computation, which frameworks overlap by prefetching, is exposed time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.models.grid.degrees import Degrees
from weft.models.grid.links import GridLinks
from weft.models.grid.rank import RankLayer
from weft.models.layers.costs import LayerCost
from weft.models.overlap.flow import each_beside


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of one parameter: itself, its gradient, and its optimizer states."""

    parameter: int
    gradient: int
    optimizer: int


def static_of(layer: RankLayer, degrees: Degrees, size: StateBytes) -> int:
    """Static bytes of ``layer`` on a GPU."""
    alike = degrees.data * degrees.context
    return (_held(layer.cost.parameters - layer.experts, alike, degrees.zero, size)
            + _held(layer.experts, alike // degrees.expert, degrees.zero, size))


def _held(parameters: int, alike: int, zero: int, size: StateBytes) -> int:
    return (-(-parameters * size.optimizer // (alike if zero >= 1 else 1))
            + -(-parameters * size.gradient // (alike if zero >= 2 else 1))
            + -(-parameters * size.parameter // (alike if zero >= 3 else 1)))


def with_state(layer: RankLayer, degrees: Degrees, links: GridLinks, size: StateBytes) -> LayerCost:
    """The layer with the communication of ZeRO-2 and 3 for every micro-batch, and its state: ``parameters`` are its
    static bytes."""
    cost = layer.cost
    forward, backward, more = 0.0, 0.0, 0
    if degrees.zero >= 2 and degrees.data * degrees.context > 1:
        summing = reduced(layer, degrees, links)
        gathering = gathered(layer, degrees, links, size) if degrees.zero == 3 else 0.0
        forward = max(0.0, gathering - cost.forward)
        backward = max(0.0, gathering + summing - cost.backward)
        # one layer's gradients, and the parameters of two layers, while one runs and the next is gathered
        more = cost.parameters * (size.gradient + (2 * size.parameter if degrees.zero == 3 else 0))
    return replace(
        cost, forward=round(cost.forward + forward, 9), backward=round(cost.backward + backward, 9),
        input_grad=None if cost.input_grad is None else round(cost.input_grad + backward, 9),
        parameters=static_of(layer, degrees, size), shared_parameters=(),
        workspace_forward=cost.workspace_forward + more, workspace_backward=cost.workspace_backward + more,
        workspace_weight_grad=cost.workspace_weight_grad + more, working_set=cost.working_set + more)


def reduced(layer: RankLayer, degrees: Degrees, links: GridLinks) -> float:
    """Seconds to sum the gradients of ``layer``: each GPU then has its share, or without ZeRO all of them."""
    kind = "reduce_scatter" if degrees.zero else "all_reduce"
    alike, size = degrees.data * degrees.context, degrees.collective_bytes
    dense = layer.cost.parameters - layer.experts
    return (links.collective(kind, dense * size, alike, degrees.tensor)  # type: ignore[arg-type]
            + links.collective(kind, layer.experts * size, alike // degrees.expert,  # type: ignore[arg-type]
                               degrees.tensor * degrees.expert))


def gathered(layer: RankLayer, degrees: Degrees, links: GridLinks, size: StateBytes) -> float:
    """Seconds to gather the parameters of ``layer`` from their shares; none without ZeRO."""
    if not degrees.zero:
        return 0.0
    alike = degrees.data * degrees.context
    few = alike // degrees.expert
    dense = layer.cost.parameters - layer.experts
    return (links.collective("all_gather", dense * size.parameter // alike, alike, degrees.tensor)
            + links.collective("all_gather", layer.experts * size.parameter // few, few,
                               degrees.tensor * degrees.expert))


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


def step_end(gpus: Sequence[Sequence[RankLayer]], slack: Sequence[float], degrees: Degrees, links: GridLinks,
             size: StateBytes) -> StepEnd:
    """The end of a step: of the layers of each of a pipeline's ``gpus``, which is idle for ``slack`` seconds between
    two steps that follow each other at once."""
    found = StepEnd(0.0)
    for rank, (layers, idle) in enumerate(zip(gpus, slack, strict=True)):
        own = _own_end(layers, degrees, links, size)
        if own.seconds - idle > found.seconds:
            found = StepEnd(own.seconds - idle, own.gradients, own.optimizer, own.parameters, rank)
    return found


def _own_end(layers: Sequence[RankLayer], degrees: Degrees, links: GridLinks, size: StateBytes) -> StepEnd:
    """Of one GPU that computes until its last backward."""
    behind = ahead = 0.0
    if degrees.zero < 2:
        backwards = [layer.cost.backward for layer in reversed(layers)]
        sums = [reduced(layer, degrees, links) for layer in reversed(layers)]
        behind = max(0.0, each_beside(backwards, sums) - sum(backwards))
    if degrees.zero < 3:
        forwards = [layer.cost.forward for layer in layers]
        gathers = [gathered(layer, degrees, links, size) for layer in layers]
        ahead = max(0.0, each_beside(forwards, gathers, ahead=True) - sum(forwards))
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

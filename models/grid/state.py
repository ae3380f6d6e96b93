"""Parameters, gradients and optimizer states of a uniform grid: what a GPU holds of them, and what dividing them sends.

The GPUs of ``data`` times ``context`` that hold the same layers divide optimizer states (ZeRO-1), gradients too
(ZeRO-2), parameters too (ZeRO-3, FSDP; Rajbhandari et al., 2020); of experts those do that hold the same ones, which
are fewer by ``expert``. Once a step gradients are summed, behind the last micro-batch's backward of each layer, and
parameters gathered, before the first micro-batch's forward of the next step. Under ZeRO-2 gradients are summed behind
every micro-batch, and under ZeRO-3 parameters gathered before every forward and backward: what that takes longer than
the layer computes, by which frameworks prefetch, is time of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.models.grid.degrees import Degrees
from weft.models.grid.links import GridLinks
from weft.models.grid.rank import RankLayer
from weft.models.layers.costs import LayerCost


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Of one parameter: itself, its gradient, and its optimizer states."""

    parameter: int
    gradient: int
    optimizer: int


def static_of(layer: RankLayer, degrees: Degrees, size: StateBytes) -> int:
    """Bytes that a GPU always holds of ``layer``."""
    alike = degrees.data * degrees.context
    return (_held(layer.cost.parameters - layer.experts, alike, degrees.zero, size)
            + _held(layer.experts, alike // degrees.expert, degrees.zero, size))


def _held(parameters: int, alike: int, zero: int, size: StateBytes) -> int:
    return (-(-parameters * size.optimizer // (alike if zero >= 1 else 1))
            + -(-parameters * size.gradient // (alike if zero >= 2 else 1))
            + -(-parameters * size.parameter // (alike if zero >= 3 else 1)))


def with_state(layer: RankLayer, degrees: Degrees, links: GridLinks, size: StateBytes) -> LayerCost:
    """The layer with what ZeRO-2 and 3 send for every micro-batch, and its state: ``parameters`` are the bytes that the
    GPU always holds of it."""
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
        parameters=static_of(layer, degrees, size), weights_bytes=0, shared_parameters=(),
        workspace_forward=cost.workspace_forward + more, workspace_backward=cost.workspace_backward + more,
        workspace_weight_grad=cost.workspace_weight_grad + more, working_set=cost.working_set + more)


def reduced(layer: RankLayer, degrees: Degrees, links: GridLinks) -> float:
    """Seconds until the gradients of ``layer`` are summed: each GPU has its share then, or without ZeRO all of them."""
    kind = "reduce_scatter" if degrees.zero else "all_reduce"
    alike, size = degrees.data * degrees.context, degrees.collective_bytes
    dense = layer.cost.parameters - layer.experts
    return (links.collective(kind, dense * size, alike, degrees.tensor)  # type: ignore[arg-type]
            + links.collective(kind, layer.experts * size, alike // degrees.expert,  # type: ignore[arg-type]
                               degrees.tensor * degrees.expert))


def gathered(layer: RankLayer, degrees: Degrees, links: GridLinks, size: StateBytes) -> float:
    """Seconds until every GPU has all parameters of ``layer`` that each has a share of; none without ZeRO."""
    if not degrees.zero:
        return 0.0
    alike = degrees.data * degrees.context
    few = alike // degrees.expert
    dense = layer.cost.parameters - layer.experts
    return (links.collective("all_gather", dense * size.parameter // alike, alike, degrees.tensor)
            + links.collective("all_gather", layer.experts * size.parameter // few, few,
                               degrees.tensor * degrees.expert))

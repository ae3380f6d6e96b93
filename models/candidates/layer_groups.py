"""The whole model on one GPU, in groups of layers whose gradients are summed apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from weft.models.candidates.stages import StageCost, Stages
from weft.models.layers.costs import LayerCost

__all__ = ["grouped_layers", "slowest_layers"]


def slowest_layers(layers: Sequence[list[LayerCost]]) -> list[LayerCost]:
    """Of the layers on each GPU, those of the GPU that is slowest at all of them: sums of gradients wait for it."""
    return max(layers, key=lambda own: sum(layer.forward + layer.backward for layer in own))


def grouped_layers(layers: Sequence[LayerCost], groups: int) -> list[StageCost]:
    """``layers`` in up to ``groups`` groups of about as many parameters each. A parameter that several groups share
    counts in the first: one GPU has all of them."""
    count = min(groups, len(layers))
    before = list(accumulate((layer.parameters + 1 for layer in layers), initial=0))
    borders = [0]
    for group in range(1, count):
        wanted = before[-1] * group / count
        nearest = min(range(len(before)), key=lambda at: abs(before[at] - wanted))
        borders.append(min(max(nearest, borders[-1] + 1), len(layers) - (count - group)))
    whole = Stages(layers)
    return [_alone(whole.stage(first, last), layers) for first, last in pairwise([*borders, len(layers)])]


def _alone(stage: StageCost, layers: Sequence[LayerCost]) -> StageCost:
    """``stage`` without the parameters that a layer before it holds already."""
    known = {name for layer in layers[:stage.first] for name, _ in layer.shared_parameters}
    own = {name: count for layer in layers[stage.first:stage.last] for name, count in layer.shared_parameters}
    return replace(stage, parameters=stage.parameters - sum(count for name, count in own.items() if name in known))

"""A network on a whole graph at once, by plain operations and autograd: what streaming is held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.graph_network.kernels import LayerInput
from weft.runtime.graph_network.layers import GraphNetwork, Layer, Parameters


def dense(network: GraphNetwork, parameters: Sequence[Parameters], x: Tensor, edges: Sequence[tuple[Tensor, Tensor]],
          seeds: Sequence[int] | None = None) -> Tensor:
    """The output of the last layer at every vertex. ``edges``: sources and targets for each layer, with the self-loops
    that it asks for; ``seeds``: of each layer's dropout, in training."""
    for number, (layer, p, (source, target)) in enumerate(zip(network.layers, parameters, edges, strict=True)):
        x = x if seeds is None else LayerInput(network.dropout, seeds[number]).of(x)
        x = _layer(layer, p, x, source, target)
        x = x if number + 1 == len(network.layers) else x.relu()
    return x


def _layer(layer: Layer, p: Parameters, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    degree = torch.bincount(target, minlength=len(x)).to(x.dtype)[:, None]
    at_source, at_target = layer.prepare(p, x, degree)
    values = at_source[source]
    message = values if layer.apply_edge is None else layer.apply_edge(
        p, values, None if at_target is None else at_target[target])
    if isinstance(message, tuple):
        score, value = message
        least = score.new_full((len(x), score.shape[1]), -torch.inf)
        largest = least.scatter_reduce(0, target[:, None].expand_as(score), score.detach(), "amax")
        exponent = (score - largest[target]).exp()
        total = score.new_zeros(len(x), score.shape[1]).index_add(0, target, exponent)
        share = exponent / total[target]
        message = (value.view(*share.shape, -1) * share[..., None]).view(value.shape)
    if layer.gather == "max":
        index = target[:, None].expand_as(message)
        total = message.new_zeros(len(x), message.shape[1])
        gathered = total.scatter_reduce(0, index, message, "amax", include_self=False)
    else:
        gathered = message.new_zeros(len(x), message.shape[1]).index_add(0, target, message)
        gathered = gathered / degree.clamp(min=1) if layer.gather == "mean" else gathered
    return layer.apply_vertex(p, x, gathered, degree)

"""The computation of one chunk, forward and backward, independent of memory and order.

An accumulator is a list of tensors with one row per target: the accumulated values; for the maximum also the number of
edges that attain it, which share its gradient; for the softmax also the largest score and the sum of exponentials by
head, which later chunks rescale. The backward recomputes messages from the values at both ends, so nothing is kept for
edges. It first computes the inputs of the edges' backward at the targets of a column (:func:`vertex_back`), then each
chunk's share of the gradients of both ends (:func:`edges_back`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.runtime.graph_network.layers import GraphNetwork, Layer, Message, Parameters

for _notice in ("Sparse CSR tensor support is in beta", "index_reduce\\(\\) is in beta"):
    warnings.filterwarnings("ignore", message=_notice)


class ShapeChanged(ValueError):
    """The messages of ``apply_edge`` differ in shape between chunks, or do not fit the accumulator."""


class Edges(NamedTuple):
    """A chunk's edges, by the rows of their ends. ``begins``: for the sparse product, the offsets of each target's
    edges (in the backward, of each source's)."""

    source: Tensor
    target: Tensor
    begins: Tensor | None = None


class LayerInput(NamedTuple):
    """Dropout of a layer's inputs with rate ``dropout``. The mask depends on ``seed``, the vertex and the column alone,
    so it does not depend on the chunks. ``first``: the vertex of the first row."""

    dropout: float = 0.0
    seed: int = 0
    first: int = 0

    def of(self, x: Tensor) -> Tensor:
        """The inputs ``x`` after dropout."""
        if not self.dropout:
            return x
        mixed = torch.arange(x.shape[0], device=x.device).add_(self.first).mul_(x.shape[1])[:, None] + torch.arange(
            x.shape[1], device=x.device)
        mixed.mul_(2).add_(self.seed * 0x632BE5AB + 1)
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):  # of splitmix64
            mixed.bitwise_xor_((mixed >> shift) & ((1 << 64 - shift) - 1)).mul_(factor)
        kept = (mixed >> 40 & 0xFFFFFF) >= self.dropout * (1 << 24)
        return x * kept / (1 - self.dropout)


#: Inputs without dropout.
AS_IS = LayerInput()


class Widths(NamedTuple):
    """The numbers of columns of a layer per vertex: inputs, outputs, values at sources and targets, accumulated values,
    heads of a softmax."""

    inputs: int
    outputs: int
    source: int
    target: int
    gathered: int
    heads: int

    def state(self, gather: str, training: bool) -> tuple[int, ...]:
        """Columns of an accumulator's tensors."""
        if gather == "softmax":
            return self.gathered, self.heads, self.heads
        return (self.gathered, self.gathered) if gather == "max" and training else (self.gathered,)

    def back(self, gather: str) -> tuple[int, ...]:
        """Columns of the backward of edges at targets."""
        if gather == "softmax":
            return self.gathered, self.heads, self.heads
        return (self.gathered, self.gathered) if gather == "max" else (self.gathered,)


def widths(layer: Layer, p: Parameters, inputs: int, dtype: torch.dtype) -> Widths:
    """The widths of ``layer``, determined by running it on one vertex with a self-loop."""
    with torch.no_grad():
        x = torch.zeros((1, inputs), dtype=dtype)
        source, target = layer.prepare(p, x, torch.ones((1, 1), dtype=dtype))
        message = source if layer.apply_edge is None else layer.apply_edge(p, source, target)
    if (layer.gather == "softmax") != isinstance(message, tuple):
        raise ShapeChanged(f"layer {layer.name}: apply_edge gives scores and values with softmax, else one message")
    values, heads = (message[1], message[0].shape[1]) if isinstance(message, tuple) else (message, 0)
    if values.ndim != 2 or len(values) != 1 or (heads and values.shape[1] % heads):
        raise ShapeChanged(f"layer {layer.name}: apply_edge gives the shape {tuple(values.shape)} for one edge, it "
                           "must be a row, with softmax of a multiple of heads")
    with torch.no_grad():
        outputs = layer.apply_vertex(p, x, x.new_zeros(1, values.shape[1]), x.new_ones(1, 1)).shape[1]
    return Widths(inputs, outputs, source.shape[1], 0 if target is None else target.shape[1], values.shape[1], heads)


def network_widths(network: GraphNetwork, parameters: Sequence[Parameters]) -> list[Widths]:
    """The widths of the layers of ``network``. Raises ``ValueError`` if the shapes of their functions do not match."""
    inputs, found = network.inputs, list[Widths]()
    for layer, own in zip(network.layers, parameters, strict=True):
        p = {name: value.detach().cpu() for name, value in own.items()}
        found.append(widths(layer, p, inputs, next(iter(p.values())).dtype))
        inputs = found[-1].outputs
    return found


# -- forward --------------------------------------------------------------------------------------------------------


def prepare(layer: Layer, p: Parameters, x: Tensor, degree: Tensor, entry: LayerInput = AS_IS) -> tuple[Tensor, ...]:
    """The values that edges read at their sources, and, if any, at their targets."""
    with torch.no_grad():
        source, target = layer.prepare(p, entry.of(x), degree)
        return (source,) if target is None else (source, target)


def opened(layer: Layer, state: Sequence[Tensor]) -> Sequence[Tensor]:
    """Initialize the accumulator ``state``."""
    for place, tensor in enumerate(state):
        at_least = {"max": 0, "softmax": 1}.get(layer.gather)
        tensor.fill_(-torch.inf if place == at_least else 0)
    return state


def gather(layer: Layer, p: Parameters, state: Sequence[Tensor], source: Tensor, target: Tensor | None, edges: Edges
           ) -> None:
    """Accumulate a chunk's messages in ``state``. Raises :class:`ShapeChanged`."""
    with torch.no_grad():
        if edges.begins is not None:
            state[0].add_(_matrix(edges.begins, edges.source, (len(state[0]), len(source)), source) @ source)
            return
        accumulate(layer, state, apply_edge(layer, p, *scatter(source, target, edges), state), edges.target)


def scatter(source: Tensor, target: Tensor | None, edges: Edges) -> tuple[Tensor, Tensor | None]:
    """The values at both ends of every edge."""
    return source.index_select(0, edges.source), None if target is None else target.index_select(0, edges.target)


def apply_edge(layer: Layer, p: Parameters, source: Tensor, target: Tensor | None, state: Sequence[Tensor]) -> Message:
    """The messages of edges whose ends have these values. Raises :class:`ShapeChanged`."""
    message = source if layer.apply_edge is None else layer.apply_edge(p, source, target)
    wanted = [(len(source), part.shape[1]) for part in (state[1::-1] if layer.gather == "softmax" else state[:1])]
    found = [tuple(part.shape) for part in (message if isinstance(message, tuple) else (message,))]
    if found != wanted:
        raise ShapeChanged(f"layer {layer.name}: apply_edge gives the shape {', '.join(map(str, found))} for a chunk "
                           f"of {len(source)} edges, it must be {', '.join(map(str, wanted))} as for other chunks")
    return message


def accumulate(layer: Layer, state: Sequence[Tensor], message: Message, target: Tensor) -> None:
    """Add messages to the accumulator."""
    if isinstance(message, tuple):
        _softmax(state, message, target)
    elif layer.gather == "max":
        _largest(state, message, target)
    else:
        state[0].index_add_(0, target, message)


def closed(layer: Layer, state: Sequence[Tensor], degree: Tensor) -> Tensor:
    """The final accumulated values after all chunks of a column; in place."""
    total = state[0]
    if layer.gather == "mean":
        total.div_(degree.clamp(min=1))
    elif layer.gather == "max":
        total.masked_fill_(total == -torch.inf, 0)
    elif layer.gather == "softmax":
        exponents = state[2]
        exponents.masked_fill_(exponents == 0, 1)
        _by_head(total, exponents).div_(exponents[..., None])
    return total


def vertex(layer: Layer, p: Parameters, x: Tensor, total: Tensor, degree: Tensor, last: bool,
           entry: LayerInput = AS_IS) -> Tensor:
    """The layer's output, through ReLU except for the last layer."""
    with torch.no_grad():
        y = layer.apply_vertex(p, entry.of(x), total, degree)
        return y if last else y.relu()


# -- backward -------------------------------------------------------------------------------------------------------


def loss_back(y: Tensor, labels: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The cross entropy of the rows whose label is not -1, summed and times ``weight``, and its gradient."""
    with torch.enable_grad():
        y = y.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(y, labels, ignore_index=-1, reduction="sum") * weight
    return loss.detach(), torch.autograd.grad(loss, y)[0]


def vertex_back(layer: Layer, p: Parameters, x: Tensor, state: Sequence[Tensor], degree: Tensor, gy: Tensor,
                last: bool, entry: LayerInput = AS_IS) -> tuple[list[Tensor], Tensor, Sequence[Tensor | None]]:
    """The inputs of the edges' backward at these targets, the partial gradient of ``x``, and the gradients of the
    parameters."""
    with torch.enable_grad():
        inside, total = x.detach().requires_grad_(), state[0].detach().requires_grad_()
        y = layer.apply_vertex(p, entry.of(inside), total, degree)
        y = y if last else y.relu()
        gx, g, *own = torch.autograd.grad(y, [inside, total, *p.values()], gy, allow_unused=True)
    del y
    g = torch.zeros_like(total) if g is None else g
    gx = torch.zeros_like(x) if gx is None else gx
    if layer.gather == "mean":
        return [g.div(degree.clamp(min=1))], gx, own
    if layer.gather == "max":
        return [g.div(state[1].clamp(min=1)), state[0].clone()], gx, own
    if layer.gather == "softmax":
        shared = _by_head(g * state[0], state[1]).sum(-1)
        return [g, state[1] + state[2].log(), shared], gx, own
    return [g], gx, own


def edges_back(layer: Layer, p: Parameters, source: Tensor, target: Tensor | None, back: Sequence[Tensor],
               edges: Edges, into: Tensor) -> tuple[Tensor | None, Sequence[Tensor | None]]:
    """Add a chunk's share to ``into``, the gradient of ``source``; returns its shares of the gradients of ``target``
    (if any) and of the parameters."""
    if edges.begins is not None:
        into.add_(_matrix(edges.begins, edges.target, (len(source), len(back[0])), source) @ back[0])
        return None, []
    with torch.enable_grad():
        at_source = source.detach().index_select(0, edges.source).requires_grad_()
        at_target = None if target is None else target.detach().index_select(0, edges.target).requires_grad_()
        message = at_source if layer.apply_edge is None else layer.apply_edge(p, at_source, at_target)
    outputs, gradients = _of_messages(layer, message, back, edges.target)
    inputs = [at_source, *([] if at_target is None else [at_target]), *p.values()]
    del message
    found = torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
    del outputs, gradients
    own = list(found[2 if at_target is not None else 1:])
    if found[0] is not None:
        into.index_add_(0, edges.source, found[0])
    if target is None:
        return None, own
    given = torch.zeros_like(target)
    if found[1] is not None:
        given.index_add_(0, edges.target, found[1])
    return given, own


def prepare_back(layer: Layer, p: Parameters, x: Tensor, degree: Tensor, given: Sequence[Tensor], gx: Tensor | None,
                 entry: LayerInput = AS_IS) -> tuple[Tensor | None, Sequence[Tensor | None]]:
    """The gradient of ``x`` from those of sources and targets, added to the partial gradient ``gx`` (``None``: not
    requested), and the gradients of the parameters."""
    with torch.enable_grad():
        inside = x.detach().requires_grad_(gx is not None)
        source, target = layer.prepare(p, entry.of(inside), degree)
        outputs = [source] if target is None else [source, target]
        inputs = [*([] if gx is None else [inside]), *p.values()]
        found = torch.autograd.grad(outputs, inputs, list(given), allow_unused=True)
    if gx is None:
        return None, list(found)
    return gx if found[0] is None else gx + found[0], list(found[1:])


# -- accumulators ---------------------------------------------------------------------------------------------------


def _by_head(values: Tensor, heads: Tensor) -> Tensor:
    return values.view(len(values), heads.shape[1], values.shape[1] // heads.shape[1])


def _softmax(state: Sequence[Tensor], message: tuple[Tensor, Tensor], target: Tensor) -> None:
    total, largest, exponents = state
    score, value = message
    scale = largest.clone()
    largest.index_reduce_(0, target, score, "amax")
    scale.sub_(largest).exp_().nan_to_num_(0.0)  # no edge so far: nothing to scale
    exponents.mul_(scale)
    _by_head(total, largest).mul_(scale[..., None])
    exponent = (score - largest.index_select(0, target)).exp_()
    exponents.index_add_(0, target, exponent)
    weighted = _by_head(value, exponent) * exponent[..., None]
    total.index_add_(0, target, weighted.view(value.shape))


def _largest(state: Sequence[Tensor], message: Tensor, target: Tensor) -> None:
    total = state[0]
    if len(state) == 1:
        total.index_reduce_(0, target, message, "amax")
        return
    before, ties = total.clone(), state[1]
    total.index_reduce_(0, target, message, "amax")
    ties.mul_(before == total)
    ties.index_add_(0, target, (message == total.index_select(0, target)).to(ties.dtype))


def _of_messages(layer: Layer, message: Tensor | tuple[Tensor, Tensor], back: Sequence[Tensor], target: Tensor
                 ) -> tuple[list[Tensor], list[Tensor]]:
    """The messages and their gradients."""
    g = back[0].index_select(0, target)
    if isinstance(message, tuple):
        score, value = message
        share = score.detach().sub(back[1].index_select(0, target)).exp_()
        of_score = _by_head(g * value.detach(), share).sum(-1).sub_(back[2].index_select(0, target)).mul_(share)
        return [score, value], [of_score, (_by_head(g, share) * share[..., None]).view(value.shape)]
    if layer.gather == "max":
        g.mul_(message.detach() == back[1].index_select(0, target))
    return [message], [g]


def _matrix(begins: Tensor, columns: Tensor, shape: tuple[int, int], like: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(begins, columns, torch.ones(len(columns), dtype=like.dtype, device=like.device),
                                   shape, check_invariants=False)

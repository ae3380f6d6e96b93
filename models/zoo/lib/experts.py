"""A mixture of experts in the place of a feed-forward part (Lepikhin et al., GShard, 2020; Fedus et al., Switch
Transformer, 2021; Jiang et al., Mixtral, 2024).

Tokens are moved into one buffer an expert, (experts, capacity, hidden), and back. Devices that hold some experts each
cut that buffer by expert; devices that hold some sequences each produce it cut by capacity: going from one to the other
is the all-to-all of expert parallelism. Gates multiply what the experts' second products read, so that their results
are not kept for the gates' gradients ("Scalable training of MoE models with Megatron Core", 2026).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.models.graph.operators import Split, Tensor
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved, activation, feed_forward, linear, pointwise


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Every token goes to ``active`` of ``experts`` feed-forward parts of ``hidden`` inside, on average.

    ``capacity_factor``: room of an expert, in multiples of an even share. ``shared``: width inside a feed-forward part
    that every token goes to beside them (0: none), ``shared_gate``: its output is scaled by a learned gate.
    ``router_bias``: whether the router's products have biases. ``dealt``: of so many groups of experts one is here,
    with the tokens that as many devices send it (expert parallelism).
    """

    experts: int
    active: float
    hidden: int
    capacity_factor: float = 1.0
    shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    dealt: int = 1


def mixture_of_experts(b: GraphBuilder, x: Tensor, sizes: ExpertSizes, kind: str = "gelu", *,
                       bias: bool = True) -> Tensor:
    """Every token of ``x`` (batch, sequence, hidden) through its experts, and the shared one."""
    tokens, experts = math.prod(x.shape[:-1]), sizes.experts // sizes.dealt
    capacity = math.ceil(tokens * sizes.active / experts * sizes.capacity_factor)
    router = linear(b, x, sizes.experts, "experts.router", bias=sizes.router_bias)
    gates = pointwise(b, "softmax", "experts.gates", [router], flops=5.0, keeps="output")
    buffer = b.tensor("experts.dispatched", (experts, capacity, x.shape[-1]))
    by_batch = {tensor.name: 0 for tensor in (x, gates)}
    b.add("dispatch", "experts.dispatch", [x, gates], [buffer], saved=Saved([gates]),
          splits=[Split("batch", x.shape[0], by_batch, {buffer.name: 1}),
                  Split("experts", experts, {}, {buffer.name: 0})])
    inner = 2 * sizes.hidden if kind in ("swiglu", "geglu") else sizes.hidden
    up = _expert_linear(b, buffer, inner, "experts.up", bias)
    down = _expert_linear(b, activation(b, up, kind, f"experts.{kind}"), x.shape[-1], "experts.down", bias)
    y = b.tensor("experts.combined", x.shape)
    b.add("combine", "experts.combine", [down, gates], [y], work=Passes(2.0 * sizes.active * math.prod(x.shape)),
          saved=Saved([gates]),
          splits=[Split("batch", x.shape[0], {down.name: 1, gates.name: 0}, {y.name: 0}),
                  Split("experts", experts, {down.name: 0, gates.name: 2}, {y.name: "partial"})])
    return pointwise(b, "add", "experts.sum", [y, _shared(b, x, sizes, kind, bias)]) if sizes.shared else y


def _shared(b: GraphBuilder, x: Tensor, sizes: ExpertSizes, kind: str, bias: bool) -> Tensor:
    """The expert of all tokens."""
    y = feed_forward(b, x, sizes.shared, kind, "experts.shared", bias=bias)
    if not sizes.shared_gate:
        return y
    gate = linear(b, x, 1, "experts.shared_gate", bias=False)
    scaled = b.tensor("experts.shared_scaled", y.shape)
    b.add("multiply", "experts.shared_scaled", [y, gate], [scaled], work=Passes(2.0 * math.prod(y.shape)),
          saved=Saved([y, gate]),
          splits=[b.along(name, axis, [y, gate], [scaled]) for axis, name in enumerate(("batch", "sequence"))])
    return scaled


def _expert_linear(b: GraphBuilder, x: Tensor, out: int, name: str, bias: bool) -> Tensor:
    """One linear layer an expert: ``x`` is (experts, capacity, in)."""
    experts, capacity, width = x.shape
    y = b.tensor(name, (experts, capacity, out))
    matrix = b.parameter(f"{name}.weight", experts, out, width)
    parameters = (matrix, *((b.parameter(f"{name}.bias", experts, out),) if bias else ()))
    b.add("expert_linear", name, [x], [y], work=Passes(2.0 * experts * capacity * width * out), parameters=parameters,
          saved=Saved([x], deferred=[x]),
          splits=[b.along("experts", 0, [x], [y], parameters), b.along("capacity", 1, [x], [y]),
                  Split("output", out, {}, {y.name: 2}, frozenset(p.name for p in parameters)),
                  Split("input", width, {x.name: 2}, {y.name: "partial"}, frozenset({matrix.name}))])
    return y

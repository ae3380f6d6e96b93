"""One GPU's share of every layer in a uniform grid, for one micro-batch.

Tensor parallelism is that of :mod:`weft.models.tensor_parallel.shard`, with tensors between layers cut along the
sequence. With *context* parallelism a GPU has a part of every sequence, and the keys and values of the others are
passed around a ring (Liu et al., "Ring attention", 2023): the excess of a ring step over the concurrent part of
attention is exposed time. Or they are gathered before attention, again before its backward, and their gradients
reduce-scattered after it, without overlap (Llama 3, 2024, section 3.3.2; Megatron-LM's ``--cp-comm-type all_gather``).
With distributed *experts*, tokens go to their experts and back by all-to-alls, without overlap, or always overlapped by
the computation of another micro-batch (DeepSeek-V3, 2024, section 3.2.1; Megatron-LM's
``--overlap-moe-expert-parallel-comm``): then only the excess counts; the GPU with the most tokens determines the time.
A token is sent to each of its experts, or once to each *machine* that has some of them (DeepEP). *Selective*
recomputation keeps the tensors of fused attention and recomputes the operators between queries and context (Korthikanti
et al., 2022); fused attention does so by itself. *Light* recomputation recomputes norms, the activations of experts,
and the projections of latent vectors (:func:`kept_otherwise`). In *8 bits* linear layers of transformer layers
multiply at the device's 8-bit rate, keep their cast inputs, and read and write the casts: two reads and two writes in
half the bytes of every input and of every output's gradient (for the maximum, then both orders); weights are cast once
a step, which is not counted.

Identical layers cost the same: two of each kind are built, since the first may have different inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.models.graph.operators import Operator, OperatorGraph, Tensor
from weft.models.grid.degrees import FP8, Degrees
from weft.models.grid.links import GridLinks
from weft.models.layers.costs import LayerCost, recomputed
from weft.models.layers.layering import layers_of
from weft.models.spec.families import GptModel
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.tensor_parallel.shard import Sharded, shard
from weft.models.times.operator_times import OperatorTime
from weft.models.times.roofline import Roofline
from weft.models.zoo.gpt import Share, gpt_graph, layer_sizes

#: Operators recomputed selectively, by the end of their names.
_AGAIN = ("attention.score", "attention.softmax", "attention.dropout", "attention.context")
#: The kinds of attention operators.
_ATTENDS = ("attention.core", "attention.score", "attention.context")
_EXPERTS = "expert_linear"
_PRODUCTS = ("linear", _EXPERTS)
#: Operators of light recomputation: of any layer, and of attention from latent vectors, by the end of their names.
_LIGHT = ("norm1", "norm2", "experts.swiglu", "experts.geglu", "experts.gelu", "experts.relu")
_LATENT = ("attention.q", "attention.kv", "attention.q_norm", "attention.kv_norm", "attention.rotary")


@dataclass(frozen=True, slots=True)
class RankLayer:
    """One layer of a GPU. ``experts``: its parameters distributed by expert. ``flops``: of the forward of the whole
    micro-batch, on all GPUs that share it."""

    cost: LayerCost
    experts: int
    flops: float


def _in_eight_bits(operator: Operator) -> bool:
    return operator.kind in _PRODUCTS and operator.layer not in ("embedding", "head")


class _EightBits(Roofline):
    """The roofline with linear layers of transformer layers in 8 bits."""

    def time(self, operator: Operator, dtype: str) -> OperatorTime:
        if not _in_eight_bits(operator):
            return Roofline.time(self, operator, dtype)
        fast = replace(self.device, flops={**self.device.flops, dtype: self.device.peak(FP8)})
        found = Roofline(fast).time(operator, dtype)
        read = operator.forward.bytes_read - sum(p.bytes for p in operator.parameters)
        bandwidth = self.device.bandwidth * self.device.reach["pointwise", "forward"].memory
        ahead = 3 * max(0, read) / bandwidth
        back = 3 * operator.forward.bytes_written / bandwidth if operator.input_grad is not None else 0.0
        return replace(found, forward=round(found.forward + ahead, 9), input_grad=round(found.input_grad + back, 9))


@dataclass
class GridRanks:
    """The layers of ``model`` on a GPU of a grid connected by ``links``; each computed once."""

    model: GptModel
    links: GridLinks
    dtype: str = "float16"
    known: dict[Degrees, tuple[RankLayer, ...]] = field(default_factory=dict)

    def of(self, degrees: Degrees) -> tuple[RankLayer, ...]:
        """First to last: embedding, layers, multi-token prediction layers, head."""
        key = replace(degrees, pipeline=1, virtual=1, data=1, zero=1, collective_bytes=4,  # without effect on layers
                      imbalance=degrees.imbalance if degrees.expert > 1 else 1.0)
        if key not in self.known:
            if key.recompute == "full":
                kept = self.of(replace(degrees, recompute="none"))
                self.known[key] = (kept[0], *map(_recomputed, kept[1:-1]), kept[-1])
            else:
                self.known[key] = self._expanded(self._built(key))
        return self.known[key]

    @property
    def recomputes_selectively(self) -> bool:
        """Whether selective recomputation differs from fused attention."""
        return self.model.attention != "fused"

    def _kinds(self) -> list[int]:
        """For each layer the first identical one."""
        sizes = [layer_sizes(self.model, i) for i in range(self.model.layers)]
        first: dict[object, int] = {}
        return [first.setdefault(size, i) for i, size in enumerate(sizes)]

    def _built(self, key: Degrees) -> dict[str, RankLayer]:
        kinds = self._kinds()
        last = {kind: max(i for i, own in enumerate(kinds[:4096]) if own == kind) for kind in kinds}
        share = Share(key.context, key.expert, tuple(sorted({*last, *last.values()})))
        model = self.model if key.imbalance == 1 else self.model.model_copy(update={
            "capacity_factor": getattr(self.model, "capacity_factor", 1.0) * key.imbalance})
        graph = gpt_graph(model, key.micro_batch, dtype=self.dtype, share=share)
        found = self._sharded(graph, key)
        costs = layers_of(found.graph, found.times, training=True)
        if key.recompute == "selective" and self.recomputes_selectively:
            costs = self._selective(found, costs, model, key, share)
        more = self._exposed(found, key, {cost.name: cost for cost in costs})
        return {cost.name: self._layer(cost, found.graph, graph, key, more) for cost in costs}

    def _sharded(self, graph: OperatorGraph, key: Degrees) -> Sharded:
        device, cast = self.links.device, key.precision == "fp8"
        roofline = _EightBits(device) if cast else Roofline(device)
        parts = PartTimes(graph, roofline.times(graph), key.tensor, roofline)
        found = shard(graph, parts, lambda kind, size: self.links.collective(kind, size, key.tensor),
                      sliced=key.sequence_parallel, whole=not key.sequence_parallel)
        again = () if key.recompute != "light" else _LIGHT if self.model.latent is None else (*_LIGHT, *_LATENT)
        own, times = kept_otherwise(found.graph, found.times, lambda operator: operator.name.endswith(again),
                                    lambda operator: cast and _in_eight_bits(operator))
        return replace(found, graph=own, times=times)

    def _selective(self, found: Sharded, costs: Sequence[LayerCost], model: GptModel, key: Degrees,
                   share: Share) -> list[LayerCost]:
        """The times of attention with a part recomputed, and the tensors kept by fused attention."""
        fused = model.model_copy(update={"attention": "fused"})
        keeping = self._sharded(gpt_graph(fused, key.micro_batch, dtype=self.dtype, share=share), key)
        kept = layers_of(keeping.graph, keeping.times, training=True)
        again = {cost.name: sum(found.times[operator.name].forward for operator in found.graph.operators
                                if operator.layer == cost.name and operator.name.endswith(_AGAIN)) for cost in costs}
        return [_longer(replace(cost, activation_bytes=own.activation_bytes,
                                shared_activations=own.shared_activations), 0.0, again[cost.name])
                for cost, own in zip(costs, kept, strict=True)]

    def _exposed(self, found: Sharded, key: Degrees, costs: Mapping[str, LayerCost]
                 ) -> Mapping[str, tuple[float, float]]:
        """Exposed seconds of passing keys, values and tokens in each layer's forward and backward."""
        added: dict[str, tuple[float, float]] = {}

        def add(layer: str, forward: float, backward: float) -> None:
            before = added.get(layer, (0.0, 0.0))
            added[layer] = before[0] + forward, before[1] + backward

        for layer in {operator.layer for operator in found.graph.operators}:
            if key.context > 1:
                add(layer, *(self._ring if key.context_keys == "ring" else self._gathering)(found, layer, key))
        for operator in found.graph.operators:
            if key.expert > 1 and operator.kind in ("dispatch", "combine"):
                buffer = operator.outputs[0] if operator.kind == "dispatch" else found.graph.tensors[operator.inputs[0]]
                seconds = self._to_experts(buffer.bytes, key)
                if key.overlap_experts:  # a forward of one micro-batch beside a backward of another: half of both each
                    own = costs[operator.layer]
                    seconds = max(0.0, seconds - (own.forward + own.backward) / 4)
                add(operator.layer, seconds, seconds)
        return added

    def _to_experts(self, size: int, key: Degrees) -> float:
        """Seconds to send ``size`` bytes of tokens, a copy for each expert, to their experts. If a token is sent to
        each machine once, the number of its experts' machines is the expected value."""
        whole = self.links.network.size
        machines, rest = divmod(key.expert * key.tensor, whole)
        if key.expert_machines is None or machines < 2 or rest or whole % key.tensor:
            return self.links.collective("all_to_all", size, key.expert, key.tensor)
        most, active = min(machines, key.expert_machines), getattr(self.model, "active", 1)
        copies = most * (1 - (1 - 1 / most)**active) / active
        return (self.links.collective("all_to_all", round(size * copies), machines, whole)
                + self.links.collective("all_to_all", size, whole // key.tensor, key.tensor))

    def _gathering(self, found: Sharded, layer: str, key: Degrees) -> tuple[float, float]:
        if not _attending(found, layer):
            return 0.0, 0.0
        size = self._keys_and_values(key)
        forward = self.links.collective("all_gather", size, key.context, key.tensor)
        return forward, forward + self.links.collective("reduce_scatter", size * key.context, key.context, key.tensor)

    def _ring(self, found: Sharded, layer: str, key: Degrees) -> tuple[float, float]:
        attending = _attending(found, layer)
        if not attending:
            return 0.0, 0.0
        size = self._keys_and_values(key)
        times = [found.times[operator.name] for operator in attending]
        steps, link = key.context - 1, self.links
        forward = steps * max(0.0, link.to_next(size, key.tensor * steps) - sum(t.forward for t in times) / key.context)
        backward = steps * max(0.0, link.to_next(2 * size, key.tensor * steps)
                               - sum(t.input_grad for t in times) / key.context)
        return forward, backward

    def _keys_and_values(self, key: Degrees) -> int:
        """Bytes of one GPU's keys and values of one layer."""
        model = self.model
        if model.latent is not None:
            width = model.heads * (model.latent.plain + model.latent.rotary + model.latent.value)
        else:
            width = 2 * (model.kv_heads or model.heads) * (model.head_size or model.hidden // model.heads)
        return 2 * key.micro_batch * (model.sequence // key.context) * width // key.tensor

    def _layer(self, cost: LayerCost, own: OperatorGraph, whole: OperatorGraph, key: Degrees,
               more: Mapping[str, tuple[float, float]]) -> RankLayer:
        ahead, back = more.get(cost.name, (0.0, 0.0))
        output = cost.output_bytes if key.sequence_parallel else -(-cost.output_bytes // key.tensor)
        experts = sum(p.count for operator in own.operators if operator.layer == cost.name and operator.kind == _EXPERTS
                      for p in operator.parameters)
        flops = key.context * sum(o.forward.flops for o in whole.operators if o.layer == cost.name)
        if key.context > 1 and key.context_keys == "gather" and cost.name not in ("embedding", "head"):
            gathered = key.context * self._keys_and_values(key)  # and their gradients, in the backward
            cost = replace(cost, workspace_forward=cost.workspace_forward + gathered,
                           workspace_backward=cost.workspace_backward + 2 * gathered)
        return RankLayer(replace(_longer(cost, ahead, back), output_bytes=output), experts, flops)

    def _expanded(self, built: Mapping[str, RankLayer]) -> tuple[RankLayer, ...]:
        """Every layer, from the two built of each kind."""
        kinds = self._kinds()
        last = {kind: max(i for i, own in enumerate(kinds) if own == kind) for kind in kinds}
        found = [built["embedding"]]
        for i, kind in enumerate(kinds):
            like = built[f"layer{kind if i == kind else last[kind]}"]
            found.append(replace(like, cost=replace(like.cost, name=f"layer{i}")))
        return *found, *(built[f"predict{i}"] for i in range(self.model.predict)), built["head"]


def _attending(found: Sharded, layer: str) -> list[Operator]:
    return [operator for operator in found.graph.operators
            if operator.layer == layer and operator.name.endswith(_ATTENDS)]


def _recomputed(layer: RankLayer) -> RankLayer:
    """The same layer keeping only its input. Embedding and head are excluded: little would be saved."""
    return replace(layer, cost=recomputed(layer.cost))


def _longer(cost: LayerCost, forward: float, backward: float) -> LayerCost:
    """``cost`` with more seconds: of the backward, the input gradient's."""
    inner = None if cost.input_grad is None else round(cost.input_grad + backward, 9)
    return replace(cost, forward=round(cost.forward + forward, 9), backward=round(cost.backward + backward, 9),
                   input_grad=inner)


def kept_otherwise(graph: OperatorGraph, times: Mapping[str, OperatorTime], again: Callable[[Operator], bool],
                   cast: Callable[[Operator], bool]) -> tuple[OperatorGraph, Mapping[str, OperatorTime]]:
    """``graph`` with the operators selected by ``again`` recomputed before the backward of their readers, in the input
    gradient's pass, and those selected by ``cast`` keeping their inputs in half the bytes; and the new times.

    The outputs of a recomputed operator are not kept, but its inputs are, unless they are recomputed themselves
    (Megatron-LM's ``--recompute-modules layernorm moe_act mla_up_proj``; DeepSeek-V3, 2024, section 3.2.3). In 8 bits
    each product keeps a separate cast copy of its input (Transformer Engine's linear layers), unless the input is
    recomputed: then it keeps that operator's inputs.
    """
    picked = {operator.name: operator for operator in graph.operators if again(operator)}

    def made_of(tensor: str) -> list[str]:
        """The tensors kept in place of ``tensor``."""
        maker = picked.get(graph.producer.get(tensor, ""))
        return [tensor] if maker is None else [source for name in maker.inputs for source in made_of(name)]

    operators = []
    for operator in graph.operators:
        names: dict[str, list[str]] = {}
        copies: dict[str, Tensor] = {}
        slices = dict(operator.slices)
        for name in operator.keeps:
            names[name] = made_of(name) if name not in {tensor.name for tensor in operator.outputs} else [name]
            if names[name] != [name]:
                whole = slices.pop(name, graph.tensors[name].bytes)
                slices |= {source: 0 for source in names[name] if source not in slices}
                slices[names[name][0]] += whole
            elif cast(operator) and (name in operator.inputs or name in slices):
                tensor = graph.tensors[name]
                copies[name] = Tensor(f"{name} in 8 bits for {operator.name}", -(-tensor.bytes // 2), tensor.shape)
                names[name] = [copies[name].name]
                if name in slices:
                    slices[copies[name].name] = -(-slices.pop(name) // 2)
        deferred = operator.deferred
        if deferred is not None:  # tensors recomputed in the input gradient's pass stay for the weight gradient
            slices = {name: 0 for name in deferred if name in operator.slices and name not in copies} | slices
            deferred = tuple(copies[name].name if name in copies else name for name in deferred)
        operators.append(replace(
            operator, keeps=tuple(dict.fromkeys(name for of in names.values() for name in of)), deferred=deferred,
            internal=(*operator.internal, *copies.values()), slices=slices))
    spent = {name: replace(times[name], input_grad=round(times[name].input_grad + times[name].forward, 9))
             for name in picked}
    return replace(graph, operators=tuple(operators)), {**times, **spent}

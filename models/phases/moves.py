"""What moves where a plan takes another one's place between two steps: parameters with their optimizer state.

A GPU keeps what it has under both plans and receives the rest of what it needs from GPUs that have it, copies sharing
the work. Gradients do not move: none are there between steps. A weight that is divided along the same dimension before
and after has the parts of an interval; divided along another one, a part of each is needed of every part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weft.models.candidates.family_costs import spec_graph, uses_measured_gpt
from weft.models.candidates.gpu_costs import layer_costs
from weft.models.layers.cluster import Network, model_cluster
from weft.models.phases.plans import Plan
from weft.models.spec.model_sections import ExplicitModel
from weft.models.spec.sections import Spec, Training

__all__ = ["Holdings", "Moves", "Shard", "moves_between", "shards_of"]

#: Bytes by GPU, and whether they go to or come from another machine.
_Loads: TypeAlias = defaultdict[tuple[int, bool], float]


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``parts`` along ``dimension``; all of it where there is one part."""

    dimension: str = ""
    index: int = 0
    parts: int = 1

    @property
    def share(self) -> float:
        return 1 / self.parts

    def common(self, other: Shard) -> float:
        """The share of the whole that both have."""
        if self.dimension and other.dimension and self.dimension != other.dimension:
            return self.share * other.share
        first = max(self.index / self.parts, other.index / other.parts)
        return max(0.0, min((self.index + 1) / self.parts, (other.index + 1) / other.parts) - first)


@dataclass(frozen=True)
class Moves:
    """``bytes``: that all GPUs receive. ``seconds``: until the last of them has all, GPUs sending and receiving at the
    same time, over the cluster's links."""

    bytes: int
    seconds: float


#: By GPU, the shards of every parameter that it holds.
Shards: TypeAlias = Mapping[int, Mapping[str, frozenset[Shard]]]


class Holdings(NamedTuple):
    """The shards of ``weights`` on each GPU, and those whose optimizer ``state`` it has."""

    weights: Shards
    state: Shards


def shards_of(spec: Spec, plan: Plan) -> Holdings:
    """What each GPU holds under ``plan``, by the names of parameters (of listed layers: the layers')."""
    weights = _weights(spec, plan)
    if not plan.sliced:
        return Holdings(weights, weights)
    count = len(weights)
    return Holdings(weights, {gpu: dict.fromkeys(named, frozenset({Shard("slice", gpu, count)}))
                              for gpu, named in weights.items()})


def _weights(spec: Spec, plan: Plan) -> Shards:
    parameters = _parameters(spec)
    held: dict[int, dict[str, set[Shard]]] = {gpu: defaultdict(set) for gpu in range(spec.cluster.gpus)}
    if plan.kind == "data":
        return {gpu: {name: frozenset({Shard()}) for named in parameters.values() for _, name, _ in named}
                for gpu in held}
    divided = _divided(spec)
    for layers, gpus in zip(plan.layers, plan.gpus, strict=True):
        splits = plan.split_of.get(len(gpus), {})
        for operator, name, _ in (entry for layer in layers for entry in parameters[layer]):
            dimension = splits.get(operator, "")
            cut = dimension and name in divided.get((operator, dimension), frozenset())
            for place, gpu in enumerate(gpus):
                held[gpu][name].add(Shard(dimension, place, len(gpus)) if cut else Shard())
    return {gpu: {name: frozenset(shards) for name, shards in named.items()} for gpu, named in held.items()}


def moves_between(spec: Spec, before: Holdings, after: Holdings) -> Moves:
    """What a switch moves, of a model of ``spec`` (:func:`shards_of` says what GPUs hold)."""
    run, network = spec.run, model_cluster(spec.cluster).network
    counts = {name: count for named in _parameters(spec).values() for _, name, count in named}
    state = run.optimizer_bytes_per_parameter if isinstance(run, Training) else 0
    sent: _Loads = defaultdict(float)
    received: _Loads = defaultdict(float)
    total = sum(_move(old, new, {name: count * each for name, count in counts.items()}, network, sent, received)
                for old, new, each in ((before.weights, after.weights, run.parameter_bytes),
                                       (before.state, after.state, state)))
    seconds = max((network.near.seconds(round(loads[gpu, False])) + network.far.seconds(round(loads[gpu, True]))
                   for loads in (sent, received) for gpu in after.weights), default=0.0)
    return Moves(round(total), round(seconds, 9))


def _move(before: Shards, after: Shards, sizes: Mapping[str, int], network: Network, sent: _Loads,
          received: _Loads) -> float:
    """Add up what each GPU sends and receives of tensors of these ``sizes``; the bytes of all."""
    total = 0.0
    for gpu, named in after.items():
        for name, shards in named.items():
            own = before[gpu].get(name, frozenset())
            for shard in shards:
                missing = shard.share - max((shard.common(mine) for mine in own), default=0.0)
                if missing <= 1e-12:
                    continue
                sources = _sources(before, name, shard, gpu)
                scale = missing * sizes[name] / sum(sources.values())
                for source, share in sources.items():
                    far = source // network.size != gpu // network.size
                    sent[source, far] += share * scale
                    received[gpu, far] += share * scale
                total += missing * sizes[name]
    return total


def _sources(before: Shards, name: str, shard: Shard, gpu: int) -> dict[int, float]:
    """By GPU, what share of the parameter it sends of ``shard``: copies share it evenly, nearer ones are no better."""
    holders: dict[Shard, list[int]] = defaultdict(list)
    for other, named in before.items():
        if other != gpu:
            for held in named.get(name, frozenset()):
                if held.common(shard):
                    holders[held].append(other)
    found: dict[int, float] = defaultdict(float)
    for held, gpus in holders.items():
        for other in gpus:
            found[other] += held.common(shard) / len(gpus)
    return found


def _parameters(spec: Spec) -> Mapping[str, list[tuple[str, str, int]]]:
    """By layer, its parameters: the operator, the name, the number."""
    if _by_layer(spec):
        return {layer.name: [("", layer.name, layer.parameters)] for layer in layer_costs(spec)}
    found: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for operator in spec_graph(spec).operators:
        found[operator.layer] += [(operator.name, parameter.name, parameter.count) for parameter in operator.parameters]
    return found


def _divided(spec: Spec) -> Mapping[tuple[str, str], frozenset[str]]:
    """The parameters that each operator's split along each dimension divides."""
    if _by_layer(spec):
        return {}
    return {(operator.name, split.dimension): split.parameters
            for operator in spec_graph(spec).operators for split in operator.splits}


def _by_layer(spec: Spec) -> bool:
    """Whether costs are of whole layers, without operators."""
    return isinstance(spec.model, ExplicitModel) or uses_measured_gpt(spec)

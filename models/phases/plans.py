"""The part of a placement that is independent of costs: a plan, and the same plan at another spec's costs.

A plan assigns layers to GPUs, divides the weights of every operator among a group's GPUs, and fixes the kind of
backward. Times and memory follow from the spec; the order of blocks is searched again for them.

The data moved when plans switch between two steps: parameters with their optimizer state.

A GPU keeps the data that it has under both plans and receives the rest from GPUs that have it, with copies sharing the
work. Gradients do not move: there are none between steps. For a weight divided along the same dimension before and
after, the parts are intervals; along another dimension, a share of every old part is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from weft.models.candidates.build import CutDoesNotFit, ModelCandidate, candidates
from weft.models.candidates.gpu_costs import layer_costs, spec_graph, uses_measured_gpt
from weft.models.candidates.stage_split import NoSplit
from weft.models.candidates.stages import Backward
from weft.models.layers.cluster import Network, model_cluster
from weft.models.overlap.data_parallel import ALL_REDUCE, GRADIENTS
from weft.models.spec.model_sections import ExplicitModel
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.tensor_parallel.shapes import ShapeCandidate, candidate_of, space_for
from weft.models.tensor_parallel.space import Space
from weft.solver.problem import BlockKind, Problem

#: A shape of one GPU a stage, one of groups of GPUs, or the whole model on every GPU.
Kind = Literal["stages", "groups", "data"]
_ONE_GPU = ("chain", "v", "loop", "wave")


@dataclass(frozen=True)
class PhasePlan:
    """``layers`` and ``gpus`` of each stage, in order; none for ``data``.

    ``splits``: by degree, the operators whose weights are divided among that many GPUs, each with the dimension.
    ``co_shard``: by stage, the co-sharded parts of its layers ("": none). ``replicas``: of the model; the stages of
    each are consecutive. ``sliced``: for ``data``, whether each GPU has only its slice of the optimizer state.
    ``title`` is for display, equal plans may have different ones.
    """

    title: str = field(compare=False)
    kind: Kind
    backward: Backward
    layers: tuple[tuple[str, ...], ...] = ()
    gpus: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, tuple[tuple[str, str], ...]], ...] = ()
    co_shard: tuple[str, ...] = ()
    replicas: int = 1
    sliced: bool = False

    @property
    def split_of(self) -> Mapping[int, Mapping[str, str]]:
        """``splits`` as mappings."""
        return {degree: dict(splits) for degree, splits in self.splits}


def plan_of(spec: Spec, problem: Problem, entries: Mapping[str, Any], choices: Mapping[str, str]) -> PhasePlan:
    """The plan of a placement of ``spec``, which is this ``problem`` with these ``choices``; ``entries``: those of
    its schedules."""
    title = str(entries.get("placement", ""))
    kinds = {block.kind for block in problem.blocks}
    backward: Backward = "split" if BlockKind.INPUT_GRAD in kinds else "full"
    layers = tuple(tuple(names) for names in entries.get("layers_of_stage", ()))
    if entries.get("unit") == "step" or not layers:
        return PhasePlan(title, "data", backward, sliced=choices.get(GRADIENTS) != ALL_REDUCE)
    if "gpus_of_stage" not in entries:
        by_name = {block.name: block for block in problem.blocks}
        return PhasePlan(title, "stages", backward, layers,
                         tuple(by_name[f"F{stage}"].devices for stage in range(len(layers))))
    gpus = tuple(tuple(group) for group in entries["gpus_of_stage"])
    space = space_for(spec)
    assert space is not None  # or there were no groups
    parts = [entry["parts"] if entry else "" for entry in entries.get("co_shard", [None] * len(gpus))]
    return PhasePlan(title, "groups", backward, layers, gpus, _splits(space, layers, gpus), tuple(parts),
                     int(entries.get("replicas", 1)))


def _splits(space: Space, layers: tuple[tuple[str, ...], ...], gpus: tuple[tuple[int, ...], ...]
            ) -> tuple[tuple[int, tuple[tuple[str, str], ...]], ...]:
    """The division of weights in the stages of each degree."""
    found = []
    for degree in sorted({len(group) for group in gpus} - {1}):
        inside = {name for names, group in zip(layers, gpus, strict=True) if len(group) == degree for name in names}
        choices = space.sharded[degree].choices
        found.append((degree, tuple(
            (operator.name, choice.dimension) for operator in space.graph.operators
            if operator.layer in inside and (choice := choices[operator.name]) is not None and choice.parameters)))
    return tuple(found)


def candidate_at(spec: Spec, plan: PhasePlan) -> ModelCandidate | None:
    """``plan``, of one GPU a stage, at the costs of ``spec``; ``None`` if it does not fit."""
    counts = tuple(len(names) for names in plan.layers)
    chunks = len(counts) // spec.cluster.gpus
    # pydantic does not check a copy, and need not: the spec was checked.
    pinned = spec.model_copy(update={"placement": spec.placement.model_copy(update={
        "cut": counts, "shapes": _ONE_GPU, "backward": (plan.backward,), "chunks": chunks,
        "co_shard": ()})})
    with suppress(NoSplit, CutDoesNotFit):
        for found in candidates(pinned):
            if tuple((device,) for device in found.stage_device) == plan.gpus and found.backward == plan.backward:
                return found
    return None


def shape_candidate_at(spec: Spec, plan: PhasePlan) -> tuple[ShapeCandidate, Space] | None:
    """``plan``, on groups of GPUs, at the costs of ``spec``; ``None`` if it does not fit."""
    space = space_for(spec)
    if space is None:
        return None
    space = replace(space, pinned=plan.split_of)
    index = {name: i for i, name in enumerate(space.layers)}
    each = len(plan.layers) // plan.replicas
    parts = []
    for number, (names, gpus, in_parts) in enumerate(zip(plan.layers, plan.gpus, plan.co_shard, strict=True)):
        if in_parts and in_parts not in space.co_sharded:
            return None
        replica, stage = divmod(number, each)
        parts.append(space.part(f"{stage}{'u' * replica}", [index[name] for name in names], gpus, replica, in_parts))
    found = candidate_of(space, "x" if plan.replicas > 1 else "groups", plan.backward, tuple(parts),
                         replicas=plan.replicas)
    return None if found is None else (found, space)


#: Bytes by GPU, and whether they go to or come from another machine.
_Loads: TypeAlias = defaultdict[tuple[int, bool], float]


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``parts`` along ``dimension``; the whole if there is one part."""

    dimension: str = ""
    index: int = 0
    parts: int = 1

    @property
    def share(self) -> float:
        return 1 / self.parts

    def common(self, other: Shard) -> float:
        """The common share of the whole."""
        if self.dimension and other.dimension and self.dimension != other.dimension:
            return self.share * other.share
        first = max(self.index / self.parts, other.index / other.parts)
        return max(0.0, min((self.index + 1) / self.parts, (other.index + 1) / other.parts) - first)


@dataclass(frozen=True)
class PlanMoves:
    """``bytes``: received by all GPUs. ``seconds``: until the last of them has finished, with concurrent sends and
    receives, over the cluster's links."""

    bytes: int
    seconds: float


#: By GPU, its shards of every parameter.
Shards: TypeAlias = Mapping[int, Mapping[str, frozenset[Shard]]]


class Holdings(NamedTuple):
    """Each GPU's shards of ``weights``, and those of the optimizer ``state``."""

    weights: Shards
    state: Shards


def shards_of(spec: Spec, plan: PhasePlan) -> Holdings:
    """Each GPU's shards under ``plan``, by the names of parameters (for listed layers: the layers')."""
    weights = _weights(spec, plan)
    if not plan.sliced:
        return Holdings(weights, weights)
    count = len(weights)
    return Holdings(weights, {gpu: dict.fromkeys(named, frozenset({Shard("slice", gpu, count)}))
                              for gpu, named in weights.items()})


def _weights(spec: Spec, plan: PhasePlan) -> Shards:
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


def moves_between(spec: Spec, before: Holdings, after: Holdings) -> PlanMoves:
    """The data moved by a switch, for a model of ``spec`` (:func:`shards_of` gives the GPUs' shards)."""
    run, network = spec.run, model_cluster(spec.cluster).network
    counts = {name: count for named in _parameters(spec).values() for _, name, count in named}
    state = run.optimizer_bytes_per_parameter if isinstance(run, TrainingRun) else 0
    sent: _Loads = defaultdict(float)
    received: _Loads = defaultdict(float)
    total = sum(_move(old, new, {name: count * each for name, count in counts.items()}, network, sent, received)
                for old, new, each in ((before.weights, after.weights, run.parameter_bytes),
                                       (before.state, after.state, state)))
    seconds = max((network.near.seconds(round(loads[gpu, False])) + network.far.seconds(round(loads[gpu, True]))
                   for loads in (sent, received) for gpu in after.weights), default=0.0)
    return PlanMoves(round(total), round(seconds, 9))


def _move(before: Shards, after: Shards, sizes: Mapping[str, int], network: Network, sent: _Loads,
          received: _Loads) -> float:
    """Sum each GPU's sent and received bytes for tensors of these ``sizes``; returns the total bytes."""
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
    """By GPU, the share of the parameter that it sends for ``shard``: copies share it evenly, nearer ones are not
    preferred."""
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
    """Whether costs refer to whole layers, without operators."""
    return isinstance(spec.model, ExplicitModel) or uses_measured_gpt(spec)

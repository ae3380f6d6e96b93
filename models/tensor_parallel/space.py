"""The model of a spec at every degree of tensor parallelism: the basis of all placements on groups of GPUs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from weft.models.candidates.build import bytes_per_parameter, under_optimizer
from weft.models.candidates.gpu_costs import FamilyCosts, device_of
from weft.models.candidates.stages import Backward
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES, DeviceType
from weft.models.layers.cluster import Network, model_cluster
from weft.models.layers.collectives import collective_time, group_time
from weft.models.layers.costs import LayerCost
from weft.models.layers.layering import layers_of
from weft.models.spec.sections import Inference, Spec, TrainingRun
from weft.models.tensor_parallel.bound.any_placement import least_step
from weft.models.tensor_parallel.bound.group_cover import LayerTerms, terms_of
from weft.models.tensor_parallel.co_shard import FAMILIES, CoSharded, co_shard
from weft.models.tensor_parallel.part_times import PartTimes, Timer, has_gradient
from weft.models.tensor_parallel.parts import LayersPart, stage_cost
from weft.models.tensor_parallel.shard import Sharded, shard
from weft.models.times.roofline import Roofline
from weft.solver.late import nx


@dataclass(frozen=True)
class Space:
    """A model's layers on 1 to all GPUs together.

    ``capacity``: bytes of each GPU without the framework's reserve. ``under_optimizer``: layers with the memory of
    their gradients. ``classes``: bytes of a parameter by purpose. ``co_shard_parts``: candidate numbers of co-sharded
    parts on one GPU (:mod:`weft.models.tensor_parallel.co_shard`). ``backward``: its allowed modes. ``both_ways``:
    whether two replicas of the model may share the GPUs.
    """

    name: str
    family: FamilyCosts
    device: DeviceType
    gpus: int
    capacity: int
    network: Network
    bytes_per_parameter: int
    micro_batches: int
    training: bool
    recompute: bool
    under_optimizer: Callable[[Iterable[LayerCost]], list[LayerCost]]
    classes: Mapping[str, int]
    co_shard_parts: tuple[int, ...] = ()
    backward: tuple[str, ...] = ("full", "split")
    both_ways: bool = False
    #: By degree, the split dimension of operators whose weights are already divided in this way.
    pinned: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def graph(self) -> OperatorGraph:
        """One micro-batch on one device."""
        return self.family.graph

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """1, 2, 4 ... and all GPUs, if they fill machines evenly."""
        powers = {2**k for k in range(self.gpus.bit_length()) if 2**k <= self.gpus}
        return tuple(sorted(degree for degree in powers | {self.gpus} if self.network.is_filled_by(degree)))

    @cached_property
    def sharded(self) -> dict[int, Sharded]:
        """The graph of one device, by degree."""
        return {degree: self._shard(degree) for degree in self.degrees}

    def _shard(self, degree: int, *, sliced: bool = False) -> Sharded:
        return shard(self.graph, self.part_times(degree), self.timer(degree), recompute=self.recompute, sliced=sliced,
                     pinned=self.pinned.get(degree, {}))

    def _costs(self, found: Sharded | CoSharded) -> list[LayerCost]:
        return self.under_optimizer(layers_of(found.graph, found.times, training=self.training,
                                              recompute=self.recompute))

    def part_times(self, parts: int) -> PartTimes:
        """The times of operators in ``parts`` parts: measured if the costs come from a profile that has them."""
        profile = self.family.profile
        return PartTimes(
            self.graph, self.family.times, parts, Roofline(self.device),
            [] if profile is None else profile.rows_together(self.graph, parts),
            lambda kind, size: collective_time(kind, size, parts, self.device).seconds)

    @cached_property
    def costs(self) -> dict[int, list[LayerCost]]:
        """One device's share of each layer, by degree."""
        return {degree: self._costs(found) for degree, found in self.sharded.items()}

    def part(self, name: str, layers: Sequence[int], gpus: Sequence[int], replica: int = 0,
             co_shard: str = "") -> LayersPart:
        """``layers`` on ``gpus`` together, at their costs."""
        costs = self.co_sharded[co_shard] if co_shard else self.costs[len(gpus)]
        return LayersPart(name, tuple(layers), tuple(gpus), stage_cost(costs, layers), replica, co_shard)

    def sliced(self, degree: int) -> tuple[Sharded, list[LayerCost]]:
        """The graph of one of ``degree`` devices with tensors between layers cut along their positions, and the
        device's share of each layer."""
        if degree not in self._sliced:
            found = self._shard(degree, sliced=True)
            self._sliced[degree] = found, self._costs(found)
        return self._sliced[degree]

    @cached_property
    def _sliced(self) -> dict[int, tuple[Sharded, list[LayerCost]]]:
        return {}

    @cached_property
    def co_sharded(self) -> dict[str, list[LayerCost]]:
        """One device's costs of each layer with attention, feed-forward parts or both co-sharded, by titles such as
        "attention in 4 parts"; dominated ways left out."""
        found: dict[str, list[LayerCost]] = {}
        for parts, families in itertools.product(self.co_shard_parts, ((FAMILIES[0],), (FAMILIES[1],), FAMILIES)):
            made = co_shard(self.graph, self.family.times, dict.fromkeys(families, parts), self.part_times,
                            Roofline(self.device))
            if made is not None and {segment.family for segment in made.segments} == set(families):
                found[f"{' and '.join(families)} in {parts} parts"] = self._costs(made)
        measures = {name: _measures(costs) for name, costs in {"": self.costs[1], **found}.items()}
        return {name: costs for name, costs in found.items() if not any(
            other != name and all(a <= b for a, b in zip(measures[other], measures[name], strict=True))
            and measures[other] != measures[name] for other in measures)}

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, first to last."""
        return tuple(cost.name for cost in self.costs[1])

    @cached_property
    def vocabulary_layers(self) -> tuple[int, ...]:
        """Layers with an operator that can be cut along the vocabulary, and those that share a weight with such a
        layer."""
        index = {name: i for i, name in enumerate(self.layers)}
        found = {o.layer for o in self.graph.operators if any(s.dimension == "vocabulary" for s in o.splits)}
        tables = {p.name for o in self.graph.operators if o.layer in found for p in o.parameters if len(p.shape) > 1}
        return tuple(sorted({index[o.layer] for o in self.graph.operators
                             if o.layer in found or any(p.name in tables for p in o.parameters)}))

    @cached_property
    def towers(self) -> tuple[tuple[int, ...], ...]:
        """Parallel layers before their join, tower by tower; none in a model without towers.

        The join is the first layer that depends, directly or indirectly, on all earlier layers. The layers before it
        form independent towers.
        """
        index = {name: i for i, name in enumerate(self.layers)}
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.layers)))
        for before, after in self.graph.graph.edges:
            first, second = (index[self.graph.by_name[name].layer] for name in (before, after))
            if first != second:
                graph.add_edge(first, second)
        for layer in range(2, len(self.layers)):
            above = graph.subgraph(range(layer))
            if len(nx.ancestors(graph, layer)) == layer:
                parts = [tuple(sorted(part)) for part in nx.weakly_connected_components(above)]
                if len(parts) > 1:
                    return tuple(sorted(parts))
        return ()

    def origins(self, degree: int, layers: Collection[str]) -> dict[str, float]:
        """The origins of the time of ``layers`` on ``degree`` GPUs: shares of one forward and backward."""
        sharded = self.sharded[degree]
        seconds: defaultdict[str, float] = defaultdict(float)
        for operator in self.graph.operators:
            if operator.layer in layers:
                time = sharded.times[operator.name]
                seconds[time.origin] += time.forward + time.input_grad + time.weight_grad
        for entry in sharded.exchanges:
            if entry.layer in layers:
                for kind, size in filter(None, entry.exchange.collectives):
                    found = group_time(kind, size, range(degree), self.network, self.device)
                    seconds[found.origin] += found.seconds
        total = sum(seconds.values())
        return {str(origin): round(value / total, 4) for origin, value in sorted(seconds.items()) if total}

    def static_of(self, layer: int, degree: int) -> int:
        """Bytes of a layer's parameters, gradients and optimizer state on each of ``degree`` GPUs."""
        return self.costs[degree][layer].parameters * self.bytes_per_parameter

    @cached_property
    def least_period(self) -> float:
        """A lower bound in seconds a micro-batch over all placements covered by
        :mod:`weft.models.tensor_parallel.bound.any_placement`; infinite if nothing fits."""
        return min(least_step(self.terms.replicated(copies), self.gpus, self.capacity, 1, fills=False) / copies
                   for copies in self._copies) * 1e-9

    def least_makespan(self, micro_batches: int) -> float:
        """A lower bound in seconds on a step of ``micro_batches`` micro-batches in any such placement."""
        bounds = (least_step(self.terms.replicated(copies), self.gpus, self.capacity, micro_batches // copies)
                  for copies in self._copies if micro_batches % copies == 0)
        return min(bounds) * 1e-9

    @property
    def _copies(self) -> tuple[int, ...]:
        """The number of copies of the model on the same GPUs allowed by the spec."""
        return (1, 2) if self.both_ways else (1,)

    @cached_property
    def terms(self) -> LayerTerms:
        """Lower bounds on each layer's costs in every placement."""
        return terms_of(self.costs, list(self.co_sharded.values()), self.bytes_per_parameter, self.modes(self.backward),
                        is_row=self._is_row)

    @property
    def _is_row(self) -> bool:
        """Whether every layer reads what the one before it makes, and in training sends a gradient back."""
        producers = self.graph.producer
        joined = {(self.graph.by_name[producers[name]].layer, operator.layer)
                  for operator in self.graph.operators for name in operator.inputs
                  if name in producers and (not self.training or has_gradient(self.graph, name))}
        return all(pair in joined for pair in itertools.pairwise(self.layers))

    def modes(self, wanted: Sequence[str]) -> list[Backward]:
        """The backward modes of ``wanted`` that exist."""
        if not self.training:
            return ["none"]
        modes: list[Backward] = ["full"] if "full" in wanted else []
        if "split" in wanted and any(cost.weight_grad for cost in self.costs[1]):
            modes.append("split")
        return modes

    def timer(self, degree: int) -> Timer:
        """Seconds of collectives among ``degree`` GPUs."""
        return lambda kind, size: round(group_time(kind, size, range(degree), self.network, self.device).seconds, 9)


def space_of(spec: Spec, family: FamilyCosts) -> Space | None:
    """The space of ``spec``, with the layer costs of ``family``; ``None`` if no device is named, as its collectives
    must be known, or if GPUs differ in memory."""
    name = device_of(spec)
    cluster = model_cluster(spec.cluster)
    if name is None or len(set(cluster.available)) > 1:
        return None
    run = spec.run
    return Space(spec.name, family, DEVICES[name], spec.cluster.gpus, cluster.available[0],
                 cluster.network, bytes_per_parameter(spec), run.micro_batches,
                 isinstance(run, TrainingRun), isinstance(run, TrainingRun) and run.recompute,
                 partial(under_optimizer, spec), _classes(run, bytes_per_parameter(spec)), spec.placement.co_shard,
                 spec.placement.backward, "x" in spec.placement.shapes)


def _measures(costs: Sequence[LayerCost]) -> tuple[float, ...]:
    """Measures by which layers are compared: total time, kept bytes, and peak bytes beside them."""
    return (sum(cost.forward + cost.backward for cost in costs), sum(cost.activation_bytes for cost in costs),
            max(cost.workspace_forward for cost in costs), max(cost.workspace_backward for cost in costs),
            max(cost.working_set for cost in costs))


def _classes(run: TrainingRun | Inference, total: int) -> dict[str, int]:
    if not isinstance(run, TrainingRun):
        return {"weights": total}
    optimizer = run.optimizer_bytes_per_parameter
    return {"weights": run.parameter_bytes, "gradients": total - run.parameter_bytes - optimizer,
            "optimizer state": optimizer}

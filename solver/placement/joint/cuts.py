"""A graph of stages whose sizes of micro-batch are open: the costs of each stage at each size.

The loads are those of the placement problem at a stage's own size. A transfer goes in messages as small as the smallest
micro-batch of the stages that it touches, so a stage pays for several of them if a neighbour's micro-batches are
smaller. Half of them count in the forward, half in the backward, as with one size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from weft.solver.placement.dag.in_flight import depths
from weft.solver.placement.dag.stage_blocks import StageLoad
from weft.solver.placement.dag.stage_dag import following
from weft.solver.placement.groups import Parts
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.paths import in_paths


@dataclass(frozen=True, slots=True)
class SizedStageCosts:
    """A stage in micro-batches of one size: time of its passes without transfers, and of the transfers at least; the
    memory it keeps for a micro-batch on each of its devices, a device's memory for that (``None``: unlimited), its
    static memory. ``trains``: it has a backward. All-reduces are in its backward, in equal parts."""

    forward: float
    backward: float
    least_transfers: float
    kept: float
    room: float | None
    resident: float
    trains: bool

    @property
    def least_forward(self) -> float:
        """The least time with transfers, at any sizes of its neighbours."""
        return self.forward + self.least_transfers / (2 if self.trains else 1)

    @property
    def least_backward(self) -> float:
        """The least time with transfers, at any sizes of its neighbours."""
        return self.backward + (self.least_transfers / 2 if self.trains else 0.0)


@dataclass(frozen=True)
class SizedCut:
    """Stages as (kind, nodes), deepest first, with their numbers of ``devices``, and the direct successors of each."""

    sized: SizedProblem = field(repr=False, compare=False)
    parts: tuple[tuple[int, tuple[int, ...]], ...]
    devices: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """Per stage those that it directly follows."""
        return tuple(tuple(other for other, following in enumerate(self.after) if stage in following)
                     for stage in range(len(self.parts)))

    @cached_property
    def depth(self) -> int:
        """Stages on the longest way."""
        return max(depths(self.after))

    @cached_property
    def costs(self) -> tuple[dict[int, SizedStageCosts], ...]:
        """Per stage its costs at each size that it may have: on several devices those for which there are times."""
        return tuple({size: self._costs_of(stage, size) for size in self.sized.sizes if self.devices[stage] == 1
                      or any(d.devices == self.devices[stage] for d in self.sized.by_size[size].degrees)}
                     for stage in range(len(self.parts)))

    @cached_property
    def twins(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Pairs of paths of stages that may change places: costs, predecessors, successors and the tensors that cross
        their borders are then the same. Of choices that differ by such changes one is enough."""
        families: dict[object, list[list[int]]] = {}
        for path in in_paths(self.before, self.after):
            key = (self.before[path[0]], self.after[path[-1]],
                   tuple((self.devices[s], tuple(self.costs[s].items())) for s in path))
            families.setdefault(key, []).append(path)
        return tuple((tuple(one), tuple(other)) for family in families.values()
                     for one, other in pairwise(family) if self._may_change(one, other))

    def _may_change(self, one: Sequence[int], other: Sequence[int]) -> bool:
        place = {**dict(zip(one, other, strict=True)), **dict(zip(other, one, strict=True))}
        tensors = [(tuple(self.sized.by_size[size].tensors[i].time for size in self.sized.sizes), touched)
                   for i, touched in {i: touched for of in self._crossing for i, touched in of}.items()]
        return Counter(tensors) == Counter(
            (times, frozenset(place.get(stage, stage) for stage in touched)) for times, touched in tensors)

    @cached_property
    def _crossing(self) -> tuple[list[tuple[int, frozenset[int]]], ...]:
        """Per stage the tensors that cross its border, each with all stages that it touches."""
        stage_of = {node: stage for stage, (_, nodes) in enumerate(self.parts) for node in nodes}
        found: tuple[list[tuple[int, frozenset[int]]], ...] = tuple([] for _ in self.parts)
        for i, tensor in enumerate(self.sized.any.tensors):
            touched = frozenset(stage_of[node] for node in (tensor.producer, *tensor.consumers))
            for stage in touched if len(touched) > 1 else ():
                found[stage].append((i, touched))
        return found

    def _message(self, stage: int, tensor: int, size: int, part: int) -> float:
        """Time of ``tensor`` for a micro-batch of ``size`` samples of ``stage``, in messages of ``part`` samples."""
        problem = self.sized.by_size[part]
        factor = problem.kinds[self.parts[stage][0]].transfer_factor
        return size // part * problem.tensors[tensor].time * factor / self.devices[stage]

    def _costs_of(self, stage: int, size: int) -> SizedStageCosts:
        problem, devices = self.sized.by_size[size], self.devices[stage]
        kind, nodes = self.parts[stage]
        degree = next((d for d in problem.degrees if d.devices == devices), None)
        ahead = back = 0.0
        for node in nodes:
            time = (problem.nodes[node].times if devices == 1 or degree is None else degree.times[node])[kind] or 0.0
            ahead += problem.nodes[node].forward * time
            back += (1 - problem.nodes[node].forward) * time
        trains = any(problem.nodes[node].forward < 1 for node in nodes)
        if degree is not None and trains:
            back += degree.all_reduce * sum(problem.nodes[n].gradient for n in nodes) * size / self.sized.mini_batch
        memory, resident = problem.kinds[kind].memory, sum(problem.nodes[node].resident for node in nodes)
        least = sum(min(self._message(stage, tensor, size, part) for part in self.sized.sizes if part <= size)
                    for tensor, _ in self._crossing[stage])
        return SizedStageCosts(ahead, back, least, sum(problem.nodes[n].per_micro_batch for n in nodes) / devices,
                               None if memory is None else memory - resident, resident, trains)

    def works(self, sizes: Sequence[int]) -> list[StageLoad]:
        """The work of each stage in micro-batches of these sizes."""
        found = []
        for stage, size in enumerate(sizes):
            costs = self.costs[stage][size]
            transfers = sum(self._message(stage, tensor, size, min(size, *(sizes[other] for other in touched)))
                            for tensor, touched in self._crossing[stage])
            found.append(StageLoad(
                costs.forward + transfers / (2 if costs.trains else 1),
                costs.backward + transfers / 2 if costs.trains else 0.0, costs.kept, size,
                None if costs.room is None else max(0.0, costs.room), self.devices[stage], static=costs.resident))
        return found


def cut_of(sized: SizedProblem, parts: Parts, devices: Sequence[int] = ()) -> SizedCut:
    """The graph of stages of ``parts`` on these numbers of ``devices`` (default: one each), deepest stages first: equal
    graphs are equal cuts."""
    stages = [(kind, tuple(sorted(nodes)), count) for (kind, nodes), count in zip(
        parts, devices or (1,) * len(parts), strict=True) if nodes]
    deep = depths(following(sized.any, [(kind, nodes) for kind, nodes, _ in stages]))
    ranked = sorted(range(len(stages)), key=lambda i: (-deep[i], stages[i][1][0]))
    own = tuple(stages[i][:2] for i in ranked)
    return SizedCut(sized, own, tuple(stages[i][2] for i in ranked), following(sized.any, own))

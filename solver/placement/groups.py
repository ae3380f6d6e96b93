"""The placement problem as the solver sees it: groups of operators that share a stage, their order, and nets.

A *group* is a set of operators that are in one stage in every placement, or in one that is as good as any. A *net* is
a set of groups with a cost: a stage pays the cost if some but not all of the net's groups are in it (see
:mod:`weft.solver.placement.problem`: the cost of a tensor depends only on *which* operators it joins, so tensors with
the same groups are one net, including an activation and its gradient).

:func:`groups_of` is the first exact reduction, and :func:`contract` carries out every further one.

Groups divided into stages: the result of every construction, and the loads that follow from the groups' costs.

The judge (:mod:`weft.solver.placement.judge`) counts the same from operators and tensors alone; this is for searches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.solver.late import nx
from weft.solver.placement.placement import PlacedStage
from weft.solver.placement.problem import PlacementProblem

Times = NDArray[np.float64]


#: The share of a limit by which sums of fractions may exceed it: the tolerance of the judge.
_ROUNDING = 1e-9


def room(memory: float) -> float:
    """The room for stages on a device with ``memory``: a billionth more, as sums are rounded."""
    return memory * (1 + _ROUNDING)


@dataclass(frozen=True, slots=True)
class Net:
    """Groups (ascending, at least two) that a tensor joins, and its cost for a stage with some but not all of them."""

    groups: tuple[int, ...]
    cost: float


@dataclass(frozen=True, eq=False)
class Groups:
    """``members[g]``: the nodes of group g. Groups are numbered in a topological order of ``order``.

    ``times[g, k]``: time on kind k, infinite if k does not support the group. ``order``: pairs (before, after) with
    before < after, transitively reduced.
    """

    problem: PlacementProblem
    members: tuple[tuple[int, ...], ...]
    times: Times
    resident: Times
    per_micro_batch: Times
    order: tuple[tuple[int, int], ...]
    nets: tuple[Net, ...]

    @property
    def count(self) -> int:
        return len(self.members)

    @cached_property
    def least(self) -> Times:
        """Per group its time on the fastest kind that supports it."""
        return np.asarray(self.times.min(axis=1))

    @cached_property
    def graph(self) -> nx.DiGraph[int]:
        """The order as a graph."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(self.count))
        graph.add_edges_from(self.order)
        return graph

    @cached_property
    def nets_of(self) -> tuple[tuple[int, ...], ...]:
        """Per group the indices of its nets."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        for index, net in enumerate(self.nets):
            for group in net.groups:
                found[group].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def degrees(self) -> tuple[tuple[int, Times], ...]:
        """The numbers of devices that a stage may have, rising, and for each the times of groups with their share of
        the all-reduce (:mod:`weft.solver.placement.problem`: replication)."""
        found = [(1, self.times)]
        nodes, steps = self.problem.nodes, self.problem.micro_batches or 1
        for degree in self.problem.degrees:
            times = np.array([[float("inf") if time is None or not kind.count else
                               time + degree.all_reduce * node.gradient / steps
                               for time, kind in zip(own, self.problem.kinds, strict=True)]
                              for own, node in zip(degree.times, nodes, strict=True)])
            found.append((degree.devices, np.array([times[list(members)].sum(axis=0) for members in self.members])))
        return tuple(found)

    def memory(self, groups: Iterable[int], in_flight: int) -> float:
        """The joint memory of these groups with ``in_flight`` micro-batches."""
        chosen = list(groups)
        return float(self.resident[chosen].sum() + in_flight * self.per_micro_batch[chosen].sum())

    def spread(self, stages: Sequence[int]) -> list[int]:
        """Per node its stage, from one stage per group."""
        found = [0] * len(self.problem.nodes)
        for members, stage in zip(self.members, stages, strict=True):
            for node in members:
                found[node] = stage
        return found


def groups_of(problem: PlacementProblem) -> Groups:
    """Colocation classes, and everything those tie into cycles, as one group each.

    Exact: operators of one class share a stage by definition; if stage(a) <= stage(b) <= stage(a) along a cycle of
    the order between classes, all stages on it are equal.
    """
    class_of = [0] * len(problem.nodes)
    for index, nodes in enumerate(problem.classes):
        for node in nodes:
            class_of[node] = index
    nets = [({class_of[i] for i in (tensor.producer, *tensor.consumers)}, tensor.time) for tensor in problem.tensors]
    return _build(problem, problem.classes, [(class_of[a], class_of[b]) for a, b in problem.order], nets)


def contract(groups: Groups, label: Sequence[int], further_order: Iterable[tuple[int, int]] = ()) -> Groups:
    """Groups with equal labels merged, with everything that ties into a cycle; ``further_order`` is between old groups.

    If some best placement puts groups with equal labels into one stage and respects ``further_order``, the result has
    the same optimum.
    """
    names = {old: new for new, old in enumerate(dict.fromkeys(label))}
    merged: list[list[int]] = [[] for _ in names]
    for group, name in enumerate(label):
        merged[names[name]].extend(groups.members[group])
    new = [names[name] for name in label]
    return _build(groups.problem, [tuple(nodes) for nodes in merged],
                  [(new[a], new[b]) for a, b in (*groups.order, *further_order)],
                  [({new[g] for g in net.groups}, net.cost) for net in groups.nets])


def _build(problem: PlacementProblem, parts: Sequence[Sequence[int]], order: Iterable[tuple[int, int]],
           nets: Iterable[tuple[set[int], float]]) -> Groups:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(parts)))
    graph.add_edges_from((a, b) for a, b in order if a != b)
    whole = nx.condensation(graph)
    place: dict[int, int] = {}
    members: list[tuple[int, ...]] = []
    numbered: dict[int, int] = {}
    # Ties go to the part with the smallest number: equal inputs give equal numberings.
    first = {component: min(data["members"]) for component, data in whole.nodes(data=True)}
    for number, component in enumerate(nx.lexicographical_topological_sort(whole, key=first.__getitem__)):
        numbered[component] = number
        nodes: list[int] = []
        for part in sorted(whole.nodes[component]["members"]):
            place[part] = number
            nodes.extend(parts[part])
        members.append(tuple(sorted(nodes)))
    costs: dict[tuple[int, ...], float] = {}
    for joined, cost in nets:
        key = tuple(sorted({place[part] for part in joined}))
        if len(key) > 1 and cost > 0:
            costs[key] = costs.get(key, 0.0) + cost
    times = np.array([[float("inf") if time is None or not kind.count else time
                       for time, kind in zip(node.times, problem.kinds, strict=True)] for node in problem.nodes])
    resident = np.array([node.resident for node in problem.nodes])
    flying = np.array([node.per_micro_batch for node in problem.nodes])
    return Groups(
        problem, tuple(members),
        np.array([times[list(nodes)].sum(axis=0) for nodes in members]),
        np.array([resident[list(nodes)].sum() for nodes in members]),
        np.array([flying[list(nodes)].sum() for nodes in members]),
        reduced(len(members), {(numbered[a], numbered[b]) for a, b in whole.edges}),
        tuple(Net(key, cost) for key, cost in sorted(costs.items())))


def reduced(count: int, order: set[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """``order``, whose pairs ascend, without the pairs that others imply.

    The groups reachable from a group are a whole number used as a set of bits, so that ten thousand groups take
    milliseconds.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    for first, second in order:
        after[first].append(second)
    reach = [0] * count
    kept = []
    for first in reversed(range(count)):
        seen = 0
        for second in sorted(after[first]):
            if not seen >> second & 1:
                kept.append((first, second))
                seen |= reach[second]
        reach[first] = seen | 1 << first
    return tuple(sorted(kept))


def neighbours(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Per group of ``count`` those that ``pairs`` (before, after) put directly before it, and directly after it."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for first, second in pairs:
        after[first].append(second)
        before[second].append(first)
    return before, after


def waits(groups: Groups) -> list[tuple[int, int]]:
    """Pairs of groups (before, after) of which the second waits for the first, without those implied by others.

    ``groups.order`` may contain more: an order imposed on interchangeable groups makes no stage deeper.
    """
    place = groups.spread(range(groups.count))
    return list(reduced(groups.count, {(place[a], place[b]) for a, b in groups.problem.order if place[a] != place[b]}))


def least_times(groups: Groups) -> Times:
    """Per group its least time in a stage, on the best kind and number of devices."""
    found = groups.least
    for devices, times in groups.degrees[1:]:
        if devices <= groups.problem.devices:
            found = found.clip(max=times.min(axis=1))
    return found


def least_work(groups: Groups) -> Times:
    """Per group its least time summed over all devices of its stage."""
    found = groups.least
    for devices, times in groups.degrees[1:]:
        if devices <= groups.problem.devices:
            found = found.clip(max=devices * times.min(axis=1))
    return found


#: Stages as (kind of device, nodes), in order.
Parts: TypeAlias = Sequence[tuple[int, Sequence[int]]]


@dataclass(frozen=True)
class Division:
    """``value``: the largest load. ``stages``: (kind, groups) in order, none empty. ``devices``: the number of devices
    of each (empty: one each)."""

    value: float
    stages: tuple[tuple[int, tuple[int, ...]], ...]
    devices: tuple[int, ...] = ()


def largest_load(groups: Groups, stages: Sequence[tuple[int, tuple[int, ...]]], devices: Sequence[int] = ()) -> float:
    """The largest load of these stages (kind, groups), with these numbers of ``devices`` (default: one each)."""
    return max(_loads(groups, stages, devices))


def heaviest(groups: Groups, division: Division) -> int:
    """The index of the stage with the largest load."""
    loads = _loads(groups, division.stages, division.devices)
    return loads.index(max(loads))


def nodes_of(groups: Groups, division: Division) -> list[tuple[int, tuple[int, ...]]]:
    """The stages of ``division`` as (kind, nodes)."""
    return [(kind, tuple(node for group in inside for node in groups.members[group]))
            for kind, inside in division.stages]


def parts_of(stages: Sequence[PlacedStage]) -> list[tuple[int, tuple[int, ...]]]:
    """Judged stages as (kind, nodes)."""
    return [(stage.kind, stage.nodes) for stage in stages]


def divided(groups: Groups, parts: Parts) -> Division | None:
    """``parts``, which contain all nodes, as stages of ``groups``; ``None`` if a group is in two of them."""
    stage_of = {node: index for index, (_, nodes) in enumerate(parts) for node in nodes}
    inside: list[list[int]] = [[] for _ in parts]
    for group, members in enumerate(groups.members):
        found = {stage_of[node] for node in members}
        if len(found) > 1:
            return None
        inside[found.pop()].append(group)
    stages = tuple((kind, tuple(held)) for (kind, _), held in zip(parts, inside, strict=True) if held)
    return Division(largest_load(groups, stages), stages)


def _loads(groups: Groups, stages: Sequence[tuple[int, tuple[int, ...]]], devices: Sequence[int]) -> list[float]:
    on = list(devices) or [1] * len(stages)
    times = dict(groups.degrees)
    stage_of = {group: index for index, (_, inside) in enumerate(stages) for group in inside}
    loads = [float(times[r][list(inside), kind].sum()) for (kind, inside), r in zip(stages, on, strict=True)]
    for net in groups.nets:
        touched = {stage_of[group] for group in net.groups}
        if len(touched) > 1:
            for stage in touched:
                loads[stage] += net.cost * groups.problem.kinds[stages[stage][0]].transfer_factor / on[stage]
    return loads

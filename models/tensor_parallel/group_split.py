"""Cutting a chain of layers into stages on groups of devices that compute together: exact dynamic programming.

A stage is a run of layers on ``degree`` devices (1: no tensor parallelism); the groups are disjoint and use all
devices. For every number of stages the split with the least bottleneck is found (the largest time of a stage, forward
and backward), under each device's memory with as many micro-batches in flight as remaining stages (as in 1F1B) or one.
This is the space of Piper (Tarnawski et al., NeurIPS 2021) without its data parallelism, whose dynamic program also
goes over the stages from the last to the first.

The costs of every run of layers as a stage: the numbers of :class:`~weft.models.candidates.stages.Stages` in tables,
for the programs that consider every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.candidates.stages import Backward, StageCost, Stages, nanoseconds
from weft.models.layers.costs import LayerCost
from weft.solver.control.clock import checked

#: The micro-batches in flight for which a split has room: one, those of 1F1B, or none, as if only weights used memory.
InFlight: TypeAlias = Literal["least", "1f1b", "weights"]
_Table: TypeAlias = NDArray[np.float64]
#: A stage's number of devices, and its co-sharded parts ("": none).
_Way: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True)
class GroupStage:
    """Layers ``cost.first`` to ``cost.last - 1`` on ``degree`` devices; ``cost`` is the share of each.

    ``co_shard``: the name of its layers' co-sharded parts; "" for none.
    """

    cost: StageCost
    degree: int
    co_shard: str = ""


@dataclass(frozen=True)
class LayerChain:
    """The layers of a model from ``first`` to ``last - 1`` as a chain to be cut, by degree (``costs``: all layers).

    ``skipped``: layers in between that belong to no stage. ``room``: bytes of each device for these stages.
    ``micro_batches``: the maximum in flight. ``co_sharded``: the layers on one device with some co-sharded, by name; a
    stage may use these.
    """

    costs: Mapping[int, Sequence[LayerCost]]
    first: int
    last: int
    skipped: frozenset[int]
    room: int
    bytes_per_parameter: int
    micro_batches: int
    backward: Backward
    co_sharded: Mapping[str, Sequence[LayerCost]] = field(default_factory=dict)


def split_onto_groups(chain: LayerChain, devices: int, in_flight: InFlight = "1f1b") -> list[tuple[GroupStage, ...]]:
    """For every number of stages for which a split fits, the split with the least bottleneck, by rising number."""
    return Cutter(chain, devices).splits(in_flight)


class Cutter:
    """A chain of layers and its devices; the cost of every stage is computed once for all splits."""

    def __init__(self, chain: LayerChain, devices: int) -> None:
        self.chain, self.devices = chain, devices
        self.layers = [i for i in range(chain.first, chain.last) if i not in chain.skipped]
        costs: dict[_Way, Sequence[LayerCost]] = {(degree, ""): costs for degree, costs in sorted(chain.costs.items())
                                                  if degree <= devices}
        costs |= {(1, name): costs for name, costs in chain.co_sharded.items()}
        self.ways = list(costs)
        self.stages = {way: Stages(costs[way]) for way in self.ways}
        self.tables = {way: self._tables(costs[way]) for way in checked(self.ways)}

    def _tables(self, costs: Sequence[LayerCost]) -> StageTables:
        """Loads in seconds; infinite if layers are not consecutive or their static memory is too much."""
        found = StageTables.of([costs[i] for i in self.layers], self.chain.bytes_per_parameter, self.chain.backward)
        starts = np.array(self.layers) - np.arange(len(self.layers))  # equal for consecutive layers
        is_run = np.zeros_like(found.load, dtype=bool)
        is_run[:-1, 1:] = np.triu(starts[:, None] == starts[None, :])
        is_run &= found.static <= self.chain.room
        return replace(found, load=np.where(is_run, found.load * 1e-9, np.inf))

    def is_tight(self) -> bool:
        """Whether the activations of 1F1B prevent the least bottleneck for any number of stages."""
        def bottlenecks(in_flight: InFlight) -> list[tuple[int, int]]:
            return [(len(stages), max(stage.cost.load for stage in stages)) for stages in self.splits(in_flight)]

        return bottlenecks("1f1b") != bottlenecks("weights")

    def stage(self, way: _Way, i: int, j: int) -> StageCost:
        return self.stages[way].stage(self.layers[i], self.layers[j - 1] + 1)

    def splits(self, in_flight: InFlight = "1f1b") -> list[tuple[GroupStage, ...]]:
        """As :func:`split_onto_groups`."""
        count = len(self.layers)
        rest = np.full((self.devices + 1, count + 1), np.inf)  # by devices used: least bottleneck from each layer on
        rest[0, count] = 0.0
        choices: list[tuple[Any, Any]] = []
        found = []
        for number in checked(range(1, min(count, self.devices) + 1)):
            held = min(number, self.chain.micro_batches) if in_flight == "1f1b" else 1
            following = np.full_like(rest, np.inf)
            ends, places = (np.zeros(rest.shape, dtype=np.int32) for _ in range(2))
            used = np.flatnonzero(np.isfinite(rest).any(axis=1))
            for place, way in enumerate(self.ways):
                rows = used[used + way[0] <= self.devices]
                if len(rows):
                    value, end = _through(self._loads(way, held, in_flight), rest[rows])
                    here = following[rows + way[0]]
                    better = value < here
                    following[rows + way[0]] = np.where(better, value, here)
                    ends[rows + way[0]] = np.where(better, end, ends[rows + way[0]])
                    places[rows + way[0]] = np.where(better, place, places[rows + way[0]])
            choices.append((ends, places))
            rest = following
            if np.isfinite(rest[self.devices, 0]):
                found.append(self._read(choices))
            if not np.isfinite(rest).any():
                break
        return found

    def _loads(self, way: _Way, held: int, in_flight: InFlight) -> _Table:
        """The loads of stages in which ``held`` micro-batches fit; infinite for the others."""
        tables = self.tables[way]
        if in_flight == "weights":
            return tables.load
        return np.where(tables.static + tables.workspace + held * tables.each <= self.chain.room, tables.load, np.inf)

    def _read(self, choices: Sequence[tuple[Any, Any]]) -> tuple[GroupStage, ...]:
        at, used, stages = 0, self.devices, []
        for ends, places in reversed(choices):
            until, way = int(ends[used, at]), self.ways[int(places[used, at])]
            stages.append(GroupStage(self.stage(way, at, until), *way))
            at, used = until, used - way[0]
        return tuple(stages)


def _through(load: _Table, rest: _Table) -> tuple[_Table, NDArray[np.intp]]:
    """By row of ``rest`` and first layer: the least maximum of a stage's load and the rest after it; its end."""
    count = len(load) - 1
    longest = int(np.isfinite(load).sum(axis=1).max())  # loads rise with the end: finite ones come first
    if not longest:
        return np.full_like(rest, np.inf), np.zeros(rest.shape, dtype=np.intp)
    ends = np.minimum(np.arange(count + 1)[:, None] + np.arange(1, longest + 1)[None, :], count)
    band = np.take_along_axis(load, ends, axis=1)
    band[np.arange(count + 1)[:, None] + np.arange(1, longest + 1)[None, :] > count] = np.inf
    through = np.maximum(band[None], rest[:, ends])
    best = through.argmin(axis=2)
    return (np.take_along_axis(through, best[:, :, None], axis=2)[:, :, 0],
            np.take_along_axis(np.broadcast_to(ends, through.shape), best[:, :, None], axis=2)[:, :, 0])


@dataclass(frozen=True, eq=False)
class StageTables:
    """By first layer and end (the layer after the last; 0 if that is not after the first).

    ``load``: nanoseconds. ``static``: static bytes. ``workspace``: peak temporary bytes. ``each``: bytes kept for a
    micro-batch.
    """

    load: _Table
    static: _Table
    workspace: _Table
    each: _Table

    @classmethod
    def of(cls, layers: Sequence[LayerCost], bytes_per_parameter: int, backward: Backward) -> StageTables:
        """The tables of all runs of ``layers``."""
        load = _sums([nanoseconds(layer.forward) + nanoseconds(layer.backward) for layer in layers])
        static = (bytes_per_parameter * _shared_sums([layer.parameters for layer in layers],
                                                     [layer.shared_parameters for layer in layers])
                  + _shared_sums([sum(size for _, size in layer.held_gradients) for layer in layers],
                                 [layer.held_gradients for layer in layers]))
        if backward == "none":
            return cls(load, static, _most([layer.working_set for layer in layers]), np.zeros_like(load))
        each = _shared_sums([layer.activation_bytes for layer in layers],
                            [layer.shared_activations for layer in layers])
        behind = _most([layer.workspace_backward for layer in layers])
        workspace = np.maximum(_most([layer.workspace_forward for layer in layers]), behind)
        if backward == "split":
            more = _sums([layer.weight_grad_bytes for layer in layers]) - each
            workspace = np.maximum(workspace, np.maximum(more, 0) + behind)
            workspace = np.maximum(workspace, more + _most([layer.workspace_weight_grad for layer in layers]))
        return cls(load, static, workspace, each)


def _sums(amounts: Sequence[int]) -> _Table:
    """For every run, the sum of its layers' ``amounts``: whole numbers below 2^53, so exact."""
    before = np.concatenate(([0.0], np.cumsum(np.array(amounts, dtype=np.float64))))
    return np.triu(before[None, :] - before[:, None])


def _shared_sums(amounts: Sequence[int], shared: Sequence[Iterable[tuple[str, int]]]) -> _Table:
    """The same with amounts shared by several layers of a run (names and amounts) counted once."""
    total = _sums(amounts)
    last: dict[str, int] = {}
    for layer, own in enumerate(shared):
        for name, amount in own:
            if name in last:
                total[:last[name] + 1, layer + 1:] -= amount
            last[name] = layer
    return total


def _most(amounts: Sequence[int]) -> _Table:
    """For every run, the largest of its layers' ``amounts``."""
    count = len(amounts)
    found = np.zeros((count + 1, count + 1))
    running: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.maximum.accumulate
    for first in range(count):
        found[first, first + 1:] = running(np.array(amounts[first:], dtype=np.float64))
    return found

"""Cutting a chain of layers into stages on groups of devices that compute together: exact dynamic programming.

A stage is a run of layers on ``degree`` devices (1: no tensor parallelism); the groups stand side by side and use all
devices. For every number of stages the split with the least bottleneck is found (the largest time of a stage, forward
and backward), under each device's memory with as many micro-batches in flight as stages are left (what 1F1B holds) or
one. This is the space of Piper (Tarnawski et al., NeurIPS 2021) without its data parallelism, whose dynamic program
also goes over the stages from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.candidates.stages import Backward, StageCost, Stages, static_bytes
from weft.models.layers.costs import LayerCost
from weft.solver.control.clock import checked

__all__ = ["Cutter", "GroupStage", "InFlight", "LayerChain", "split_onto_groups"]

#: For how many micro-batches a split leaves room: one, as many as 1F1B holds, or none, as if only weights took memory.
InFlight: TypeAlias = Literal["least", "1f1b", "weights"]
_Table: TypeAlias = NDArray[np.float64]
#: How a stage is computed: on so many devices, and in what parts in turn ("": none).
_Way: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True)
class GroupStage:
    """Layers ``cost.first`` to ``cost.last - 1`` on ``degree`` devices; ``cost`` is what each of them has of it.

    ``co_shard``: the name of the parts that its layers are in, run in turn; "" for none.
    """

    cost: StageCost
    degree: int
    co_shard: str = ""


@dataclass(frozen=True)
class LayerChain:
    """The layers of a model from ``first`` to ``last - 1`` as a chain to be cut, by degree (``costs``: all layers).

    ``skipped``: layers in between that are no part of any stage. ``room``: bytes of each device for these stages.
    ``micro_batches``: no more are in flight.
    ``co_sharded``: the layers on one device with some in parts that run in turn, by name; a stage may be of these.
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
    """For every number of stages for which a split fits, that of the least bottleneck, by rising number."""
    return Cutter(chain, devices).splits(in_flight)


class Cutter:
    """A chain of layers and the devices that it is cut for; the cost of every stage is found once for all splits."""

    def __init__(self, chain: LayerChain, devices: int) -> None:
        self.chain, self.devices = chain, devices
        self.layers = [i for i in range(chain.first, chain.last) if i not in chain.skipped]
        costs: dict[_Way, Sequence[LayerCost]] = {(degree, ""): costs for degree, costs in sorted(chain.costs.items())
                                                  if degree <= devices}
        costs |= {(1, name): costs for name, costs in chain.co_sharded.items()}
        self.ways = list(costs)
        self.stages = {way: Stages(costs[way]) for way in self.ways}
        tables = {way: self._tables(way) for way in self.ways}
        self.load = {way: table[0] for way, table in tables.items()}
        self.fixed = {way: table[1] for way, table in tables.items()}
        self.each = {way: table[2] for way, table in tables.items()}

    def _tables(self, way: _Way) -> tuple[_Table, _Table, _Table]:
        """By first layer and end: the load in seconds, bytes held in any case, and bytes a micro-batch more.

        What a stage always holds only grows with its layers, so the longer ones are left out where that is too much.
        """
        count = len(self.layers)
        load, fixed, each = (np.full((count + 1, count + 1), np.inf) for _ in range(3))
        for i in checked(range(count)):
            for j in range(i + 1, count + 1):
                if j - i > 1 and self.layers[j - 1] != self.layers[j - 2] + 1:
                    break
                stage = self.stage(way, i, j)
                workspace = (stage.working_set if self.chain.backward == "none" else
                             max(stage.workspace_forward, stage.workspace_backward, stage.workspace_after_forward
                                 if self.chain.backward == "split" else 0))
                static = static_bytes([stage], self.chain.bytes_per_parameter)
                if static > self.chain.room:
                    break
                load[i, j] = stage.load * 1e-9
                fixed[i, j] = static + workspace
                each[i, j] = 0 if self.chain.backward == "none" else stage.activation
        return load, fixed, each

    def is_tight(self) -> bool:
        """Whether activations, held as 1F1B holds them, keep any number of stages from its least bottleneck."""
        def bottlenecks(in_flight: InFlight) -> list[tuple[int, int]]:
            return [(len(stages), max(stage.cost.load for stage in stages)) for stages in self.splits(in_flight)]

        return bottlenecks("1f1b") != bottlenecks("weights")

    def stage(self, way: _Way, i: int, j: int) -> StageCost:
        return self.stages[way].stage(self.layers[i], self.layers[j - 1] + 1)

    def splits(self, in_flight: InFlight = "1f1b") -> list[tuple[GroupStage, ...]]:
        """As :func:`split_onto_groups`."""
        count = len(self.layers)
        end = np.full(count + 1, np.inf)
        end[count] = 0.0
        best: list[dict[int, _Table]] = [{0: end}]  # by stages, by devices used: least bottleneck from each layer on
        choice: list[dict[int, tuple[Any, Any]]] = [{}]
        found = []
        for number in checked(range(1, min(count, self.devices) + 1)):
            held = min(number, self.chain.micro_batches) if in_flight == "1f1b" else 1
            tables: dict[int, _Table] = {}
            taken: dict[int, tuple[Any, Any]] = {}
            for place, way in enumerate(self.ways):
                load = self.load[way]
                if in_flight != "weights":
                    load = np.where(self.fixed[way] + held * self.each[way] <= self.chain.room, load, np.inf)
                for used, rest in best[-1].items():
                    now = used + way[0]
                    if now > self.devices:
                        continue
                    through = np.maximum(load, rest[None, :])
                    ends = through.argmin(axis=1)
                    value = through[np.arange(count + 1), ends]
                    if now not in tables:
                        tables[now], taken[now] = value, (ends, np.full(count + 1, place))
                    else:
                        better = value < tables[now]
                        tables[now] = np.where(better, value, tables[now])
                        old_ends, old_places = taken[now]
                        taken[now] = (np.where(better, ends, old_ends), np.where(better, place, old_places))
            best.append(tables)
            choice.append(taken)
            if self.devices in tables and np.isfinite(tables[self.devices][0]):
                found.append(self._read(choice, number))
        return found

    def _read(self, choice: Sequence[Mapping[int, tuple[Any, Any]]], number: int) -> tuple[GroupStage, ...]:
        at, used, stages = 0, self.devices, []
        for left in range(number, 0, -1):
            ends, places = choice[left][used]
            until, way = int(ends[at]), self.ways[int(places[at])]
            stages.append(GroupStage(self.stage(way, at, until), *way))
            at, used = until, used - way[0]
        return tuple(stages)

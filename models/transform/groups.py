"""Cutting a row of layers into stages on groups of devices that compute together: exact dynamic programming.

A stage is a run of layers on ``degree`` devices (1: no tensor parallelism); the groups stand side by side and use all
devices. For every number of stages the split with the least bottleneck is found (the largest time of a stage, forward
and backward), under each device's memory with as many micro-batches in flight as stages are left (what 1F1B holds) or
one. This is the space of Piper (Tarnawski et al., NeurIPS 2021) without its data parallelism, whose dynamic program
also goes over the stages from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.costs import LayerCost
from models.stages import Backward, StageCost, Stages, static_bytes

__all__ = ["GroupStage", "InFlight", "Row", "split_row"]

InFlight: TypeAlias = Literal["least", "1f1b"]
_Table: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupStage:
    """Layers ``cost.first`` to ``cost.last - 1`` on ``degree`` devices; ``cost`` is what each of them has of it."""

    cost: StageCost
    degree: int


@dataclass(frozen=True)
class Row:
    """The layers of a model from ``first`` to ``last - 1`` as a row to be cut, by degree (``costs``: all layers).

    ``borders``: layers before which a stage must begin. ``room``: bytes of each device for these stages.
    ``activations`` beside what is kept and needed while a block runs. ``micro_batches``: no more are in flight.
    """

    costs: Mapping[int, Sequence[LayerCost]]
    first: int
    last: int
    borders: frozenset[int]
    skipped: frozenset[int]
    room: int
    bytes_per_parameter: int
    micro_batches: int
    backward: Backward


def split_row(row: Row, devices: int, in_flight: InFlight = "1f1b", *, most_stages: int | None = None,
              behind: int = 0) -> list[tuple[GroupStage, ...]]:
    """For every number of stages for which a split fits, that of the least bottleneck, by rising number.

    ``behind``: stages of the pipeline that follow this row. Layers in ``row.skipped`` are no part of any stage.
    """
    return _Cutter(row, devices, in_flight, behind).all(most_stages or devices)


class _Cutter:
    def __init__(self, row: Row, devices: int, in_flight: InFlight, behind: int) -> None:
        self.row, self.devices, self.behind = row, devices, behind
        self.in_flight: InFlight = in_flight if row.backward != "none" else "least"
        self.layers = [i for i in range(row.first, row.last) if i not in row.skipped]
        self.degrees = [degree for degree in sorted(row.costs) if degree <= devices]
        self.stages = {degree: Stages(row.costs[degree]) for degree in self.degrees}
        tables = {degree: self._tables(degree) for degree in self.degrees}
        self.load = {degree: table[0] for degree, table in tables.items()}
        self.fixed = {degree: table[1] for degree, table in tables.items()}
        self.each = {degree: table[2] for degree, table in tables.items()}

    def _tables(self, degree: int) -> tuple[_Table, _Table, _Table]:
        """By first layer and end: the load in seconds, bytes held in any case, and bytes a micro-batch more."""
        count = len(self.layers)
        load, fixed, each = (np.full((count + 1, count + 1), np.inf) for _ in range(3))
        for i in range(count):
            for j in range(i + 1, count + 1):
                if j - i > 1 and (self.layers[j - 1] != self.layers[j - 2] + 1 or self.layers[j - 1] in
                                  self.row.borders):
                    break
                stage = self.stage(degree, i, j)
                workspace = (stage.working_set if self.row.backward == "none" else
                             max(stage.workspace_forward, stage.workspace_backward, stage.workspace_after_forward
                                 if self.row.backward == "split" else 0))
                load[i, j] = stage.load * 1e-9
                fixed[i, j] = static_bytes([stage], self.row.bytes_per_parameter) + workspace
                each[i, j] = 0 if self.row.backward == "none" else stage.activation
        return load, fixed, each

    def stage(self, degree: int, i: int, j: int) -> StageCost:
        return self.stages[degree].stage(self.layers[i], self.layers[j - 1] + 1)

    def all(self, most: int) -> list[tuple[GroupStage, ...]]:
        count = len(self.layers)
        end = np.full(count + 1, np.inf)
        end[count] = 0.0
        best: list[dict[int, _Table]] = [{0: end}]  # by stages, by devices used: least bottleneck from each layer on
        choice: list[dict[int, tuple[Any, Any]]] = [{}]
        found = []
        for number in range(1, min(most, count, self.devices) + 1):
            held = min(number + self.behind, self.row.micro_batches) if self.in_flight == "1f1b" else 1
            tables: dict[int, _Table] = {}
            taken: dict[int, tuple[Any, Any]] = {}
            for degree in self.degrees:
                fits = self.fixed[degree] + held * self.each[degree] <= self.row.room
                load = np.where(fits, self.load[degree], np.inf)
                for used, rest in best[-1].items():
                    if used + degree > self.devices:
                        continue
                    through = np.maximum(load, rest[None, :])
                    ends = through.argmin(axis=1)
                    value = through[np.arange(count + 1), ends]
                    now = used + degree
                    if now not in tables:
                        tables[now], taken[now] = value, (ends, np.full(count + 1, degree))
                    else:
                        better = value < tables[now]
                        tables[now] = np.where(better, value, tables[now])
                        old_ends, old_degrees = taken[now]
                        taken[now] = (np.where(better, ends, old_ends), np.where(better, degree, old_degrees))
            best.append(tables)
            choice.append(taken)
            if self.devices in tables and np.isfinite(tables[self.devices][0]):
                found.append(self._read(choice, number))
        return found

    def _read(self, choice: Sequence[Mapping[int, tuple[Any, Any]]], number: int) -> tuple[GroupStage, ...]:
        at, used, stages = 0, self.devices, []
        for left in range(number, 0, -1):
            ends, degrees = choice[left][used]
            until, degree = int(ends[at]), int(degrees[at])
            stages.append(GroupStage(self.stage(degree, at, until), degree))
            at, used = until, used - degree
        return tuple(stages)

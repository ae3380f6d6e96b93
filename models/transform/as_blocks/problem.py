"""A plan as a block problem: parts and communications with their seconds and bytes, for weft's search of an order.

All micro-batches of a plan are parts of it, so one micro-batch of the problem is the plan's whole step. Devices are the
plan's; communications run on their lanes (one in, one out for messages from one device to another), beside the
computation, or occupy the devices themselves as in a run without threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from weft.models.transform.as_blocks.costs import OperatorCosts
from weft.models.transform.as_blocks.grouping import Grouped, folded, grouped, twins
from weft.models.transform.as_blocks.holding import holdings, resident
from weft.models.transform.plan import Preserved
from weft.models.transform.planned import Part, Planned
from weft.models.transform.program import PlanError
from weft.solver.late import nx
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

_KIND = {"forward": BlockKind.FORWARD, "recomputed": BlockKind.RECOMPUTE, "backward": BlockKind.INPUT_GRAD,
         "weights": BlockKind.WEIGHT_GRAD, "update": BlockKind.OTHER}
#: The duration of a block without time, as a share of the longest.
_LEAST = 1e-6
#: Longer than any operator, in seconds.
_MOST = 1e9


@dataclass(frozen=True)
class Pricing:
    """The options of making a plan's blocks. ``costs``: seconds of operators. ``memory``: bytes of a device, or of
    each, unlimited if none. ``overlap``: whether communications overlap computation. ``split_backward`` and ``grain``
    as in :func:`~weft.models.transform.as_blocks.grouping.grouped`."""

    costs: OperatorCosts
    memory: int | Sequence[int] | None = None
    overlap: bool = True
    split_backward: bool = True
    grain: int | None = None


@dataclass(frozen=True)
class PlanBlocks:
    """``problem``: one micro-batch of it is the plan's step. ``blocks``: its blocks. ``turns``: if the plan consists of
    identical micro-batches, the blocks of each, in the order of their counterparts in the first (``None``
    otherwise)."""

    done: Preserved
    problem: Problem
    blocks: tuple[Grouped, ...]
    turns: tuple[tuple[int, ...], ...] | None = None

    @property
    def micro_batches(self) -> int:
        """Of :attr:`folded`."""
        return 1 if self.turns is None else len(self.turns)

    @cached_property
    def folded(self) -> Problem:
        """``problem``, or if micro-batches are alike the problem of one of them: :attr:`micro_batches` of it are the
        same step."""
        if self.turns is None:
            return self.problem
        row = self.turns[0]
        names = {self.problem.blocks[i].name for i in row}
        return replace(self.problem, blocks=tuple(
            replace(block, after=tuple(wait for wait in block.after if wait.block in names))
            for block in map(self.problem.blocks.__getitem__, row)))

    def block_of(self, block: int, micro_batch: int) -> Grouped:
        """The plan's block for a block of :attr:`folded`."""
        return self.blocks[block if self.turns is None else self.turns[micro_batch][block]]

    @cached_property
    def written(self) -> Schedule:
        """:attr:`folded` in the plan's own order."""
        times = time_orders(self.folded, self.micro_batches, self.orders())
        return Schedule(self.folded, self.micro_batches, times, 0.0, solver={"name": "as written"})

    def orders(self) -> list[list[tuple[int, int]]]:
        """Per device and lane of :attr:`folded` its blocks and their micro-batches, in the plan's own order.
        """
        position = {part: i for i, part in enumerate(self.done.order)}
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(range(len(self.blocks)))
        graph.add_edges_from((self.problem.index[wait.block], i) for i, block in enumerate(self.problem.blocks)
                             for wait in block.after)

        def when(i: int) -> tuple[int, int]:
            if self.blocks[i].parts:
                return position[self.blocks[i].parts[0]], 0
            return max(position[view.part] for n in self.blocks[i].joined
                       for view in self.done.joined[n].producers), 1

        rows: list[list[tuple[int, int]]] = [[] for _ in self.problem.devices]
        whole = tuple(range(len(self.blocks)))
        of = {i: (k, m) for m, row in enumerate((whole,) if self.turns is None else self.turns)
              for k, i in enumerate(row)}
        for i in nx.lexicographical_topological_sort(graph, key=when):
            for device in self.problem.blocks[i].devices:
                rows[device].append(of[i])
        return rows


def plan_blocks(done: Preserved, pricing: Pricing) -> PlanBlocks:
    """The block problem of a preserved plan.

    Raises :class:`~weft.models.transform.program.PlanError` for a plan that cannot be divided into blocks
    (:func:`~weft.models.transform.as_blocks.grouping.grouped`), and for parameters that exceed a device's memory.
    """
    groups = grouped(done, split_backward=pricing.split_backward, grain=pricing.grain)
    devices, places = _devices(done, groups, pricing)
    held = holdings(done, groups)
    seconds = [_seconds(done, block, pricing.costs) for block in groups]
    least = max(seconds, default=0.0) * _LEAST or 1e-9
    pairs = twins(done, groups, seconds)
    also: dict[int, list[int]] = {}
    for first, then in pairs:
        also.setdefault(then, []).append(first)
    blocks = []
    for i, (block, hold) in enumerate(zip(groups, held, strict=True)):
        on = places[i]
        named = [device for device in block.devices for _ in range(len(on) // len(block.devices))]
        change, space = _once(named, hold.change), _once(named, hold.workspace)
        after = sorted({*block.after, *also.get(i, ())})
        kind = BlockKind.COLLECTIVE if block.joined else _KIND[block.phase]
        if kind is BlockKind.INPUT_GRAD and not pricing.split_backward:
            kind = BlockKind.BACKWARD
        blocks.append(Block(block.name, kind, on, max(round(max(seconds[i], least), 9), 1e-9), change, space,
                            tuple(Dependency(groups[one].name) for one in after)))
    problem = Problem(done.planned.program.name, devices, tuple(blocks))
    return PlanBlocks(done, problem, groups, folded(groups, pairs))


def _once(named: Sequence[int], amounts: Mapping[int, int]) -> tuple[int, ...]:
    """Each device's amount on the first of its lanes."""
    seen: set[int] = set()
    found = []
    for device in named:
        found.append(0 if device in seen else amounts[device])
        seen.add(device)
    return tuple(found)


def _devices(done: Preserved, groups: Sequence[Grouped], pricing: Pricing
             ) -> tuple[tuple[Device, ...], list[tuple[int, ...]]]:
    """The devices with their lanes, and the location of each block."""
    count = 1 + max(device for block in groups for device in block.devices)
    memory = [pricing.memory] * count if pricing.memory is None or isinstance(pricing.memory, int) else list(
        pricing.memory)
    if len(memory) != count:
        raise PlanError(f"memory is of {len(memory)} devices, the plan uses {count}")
    static = resident(done)
    devices = []
    for d, amount in enumerate(memory):
        if amount is not None and static.get(d, 0) > amount:
            raise PlanError(f"device {d} has {amount} bytes, its parameters and states take {static[d]}")
        devices.append(Device(f"device {d}", None if amount is None else amount - static.get(d, 0), static.get(d, 0)))
    if not pricing.overlap:
        return tuple(devices), [block.devices for block in groups]
    pairs = {i: pair for i, block in enumerate(groups) if (pair := _pair(done, block)) is not None}
    lanes: dict[tuple[int, str], int] = {}

    def lane(device: int, what: str) -> int:
        if (device, what) not in lanes:
            lanes[device, what] = len(devices)
            devices.append(Device(f"device {device} {what}", lane_of=f"device {device}"))
        return lanes[device, what]

    places = []
    for i, block in enumerate(groups):
        if not block.joined:
            places.append(block.devices)
        elif i in pairs:
            source, _ = pairs[i]
            places.append(tuple(lane(device, "out" if device == source else "in") for device in block.devices))
        elif pairs:
            places.append(tuple(lane(device, what) for device in block.devices for what in ("out", "in")))
        else:
            places.append(tuple(lane(device, "network") for device in block.devices))
    return tuple(devices), places


def _pair(done: Preserved, block: Grouped) -> tuple[int, int] | None:
    """The source and the target of a block of messages from one device to another."""
    ends: set[tuple[int, int]] = set()
    for i in block.joined:
        entry = done.joined[i]
        if entry.kinds != ("send",):
            return None
        if entry.conversion is None:
            ends |= {(sent.device, sent.target) for sent in entry.messages}
        else:
            ends |= {(sent.source, sent.target) for step in entry.conversion.steps for sent in step.messages}
    ends = {(source, target) for source, target in ends if source != target}
    return next(iter(ends)) if len(ends) == 1 and len(block.devices) == 2 else None


def _seconds(done: Preserved, block: Grouped, costs: OperatorCosts) -> float:
    """A block's time: its communications in sequence, or the computation of its busiest device."""
    if block.joined:
        return sum(done.joined[i].seconds for i in block.joined)
    total: dict[int, float] = {}
    planned = done.planned
    for part in block.parts:
        device = planned.device(part)
        total[device] = total.get(device, 0.0) + part_seconds(planned, part, costs)
    return max(total.values())


def part_seconds(planned: Planned, part: Part, costs: OperatorCosts) -> float:
    """A part's time."""
    found = costs.seconds(planned.program, planned.program.by_name[part.operation], planned.sizes(part))
    if not (math.isfinite(found) and 0 <= found <= _MOST):
        raise PlanError(f"costs: {part} takes {found} seconds, it must be a number from 0 to {_MOST:g}")
    return found

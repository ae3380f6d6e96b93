"""A placement whose collectives have options: a problem with choices, and its assignments without overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.solver.problem import Block, Device, Options, Problem


def lane_name(device: str) -> str:
    """The name of the network lane of ``device``."""
    return f"{device} network"


@dataclass(frozen=True)
class OverlapPlacement:
    """``problem``: one placement with the options of its collectives. ``bare``: under each of these options no
    communication overlaps computation; other choices remain open.

    ``micro_batches``: the number of the spec's micro-batches in one micro-batch of the problem. ``gpus``: the GPUs
    represented by each device of the problem other than lanes, in order; ``memory``: each GPU's memory for blocks.
    ``details``: entries of its schedules, lists with an entry for each GPU. ``notes``: assumptions of its costs.
    ``update``: seconds of the optimizer's update on all parameters, if its blocks include it.
    """

    title: str
    problem: Problem
    bare: tuple[Options, ...]
    micro_batches: int
    gpus: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    update: float = 0.0

    def on_every_gpu(self, problem: Problem) -> Problem:
        """``problem``, of one assignment, with every GPU and its lane written out."""
        return written_out(problem, self.gpus, self.memory)


def written_out(problem: Problem, gpus: Sequence[Sequence[int]], memory: Sequence[int] | None = None) -> Problem:
    """``problem``, whose devices other than lanes represent ``gpus``, with each GPU and its lane; ``memory`` of each
    GPU in order, by default that of the device. A block's memory on a device applies to every GPU that the device
    represents."""
    owners = [device for device in problem.devices if device.lane_of is None]
    stands_for = {device.name: tuple(group) for device, group in zip(owners, gpus, strict=True)}
    has_lane = {device.lane_of for device in problem.devices}
    owner_of = {gpu: device for device in owners for gpu in stands_for[device.name]}
    devices: list[Device] = []
    places: dict[tuple[int, bool], int] = {}
    for gpu in sorted(owner_of):
        places[gpu, False] = len(devices)
        own = owner_of[gpu].memory
        devices.append(Device(f"gpu{gpu}", own if memory is None or own is None else memory[gpu],
                              owner_of[gpu].static))
        if owner_of[gpu].name in has_lane:
            places[gpu, True] = len(devices)
            devices.append(Device(lane_name(f"gpu{gpu}"), lane_of=f"gpu{gpu}"))

    def spread(block: Block) -> Block:
        rows = sorted((places[gpu, device.lane_of is not None], block.memory_on(d), block.workspace_on(d))
                      for d in block.devices for device in [problem.devices[d]]
                      for gpu in stands_for[device.lane_of or device.name])
        where, taken, workspace = zip(*rows, strict=True)
        return replace(block, devices=where, memory=taken, workspace=workspace)

    return replace(problem, devices=tuple(devices), blocks=tuple(map(spread, problem.blocks)))

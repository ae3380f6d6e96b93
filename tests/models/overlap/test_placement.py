"""Devices that stand for several GPUs, written out with their lanes."""

from __future__ import annotations

from weft.models.overlap.placement import lane_name, written_out
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def test_every_gpu_has_its_lane_and_its_own_memory() -> None:
    devices = (Device("gpu0-1", 10), Device("gpu2", 20, 5), Device(lane_name("gpu0-1"), lane_of="gpu0-1"))
    blocks = (Block("F0", BlockKind.FORWARD, (0,), 2, (3,), (1,)),
              Block("S0", BlockKind.COLLECTIVE, (2,), 1, (-1,), (0,), (Dependency("F0"),)),
              Block("F1", BlockKind.FORWARD, (1, 0), 2, (4, 2), (0, 0), (Dependency("S0"),)))
    found = written_out(Problem("p", devices, blocks), [(0, 1), (2,)], [10, 9, 20])
    assert [(device.name, device.memory, device.lane_of) for device in found.devices] == [
        ("gpu0", 10, None), ("gpu0 network", None, "gpu0"), ("gpu1", 9, None), ("gpu1 network", None, "gpu1"),
        ("gpu2", 20, None)]
    assert [(block.devices, block.memory) for block in found.blocks] == [
        ((0, 2), (3, 3)), ((1, 3), (-1, -1)), ((0, 2, 4), (2, 2, 4))]
    assert found.blocks[1].after == blocks[1].after and found.devices[4].static == 5

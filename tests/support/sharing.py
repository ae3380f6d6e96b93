"""Small jobs that share GPUs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from weft.models.share.job import Job, job_of
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def one_gpu(name: str, compute: float, network: float, *, memory: float | None = None, static: float = 0,
            takes: float = 0) -> Job:
    """A job that computes and then uses the network, each step after the one before."""
    devices = (Device("gpu", memory, static), Device("network", lane_of="gpu"))
    return job_of(name, Problem(name, devices, (
        Block("compute", BlockKind.OTHER, (0,), compute, workspace=(takes,),
              after=(Dependency("sum", distance=1),)),
        Block("sum", BlockKind.COLLECTIVE, (1,), network, after=(Dependency("compute"),)))))


def random_jobs(seed: int) -> list[Job]:
    """Two or three jobs on two to four GPUs with a network lane each: computations on single GPUs, and collectives on
    the lanes of some of them."""
    draw = random.Random(seed)
    gpus = draw.randint(2, 4)
    devices = tuple(device for g in range(gpus)
                    for device in (Device(f"gpu{g}"), Device(f"gpu{g} network", lane_of=f"gpu{g}")))
    return [_job(f"job {number}", draw, gpus, devices) for number in range(draw.randint(2, 3))]


def _job(name: str, draw: random.Random, gpus: int, devices: Sequence[Device]) -> Job:
    blocks: list[Block] = []
    on: list[list[str]] = [[] for _ in range(gpus)]  # the blocks of each GPU so far
    for number in range(draw.randint(1, 3)):
        members = sorted(draw.sample(range(gpus), draw.randint(2, gpus)))
        for g in members:
            computed = f"C{number} on {g}"
            after = tuple(map(Dependency, on[g][-1:]))
            blocks.append(Block(computed, BlockKind.OTHER, (2 * g,), draw.randint(1, 5), after=after))
            on[g].append(computed)
        collective = f"S{number}"
        blocks.append(Block(collective, BlockKind.COLLECTIVE, tuple(2 * g + 1 for g in members), draw.randint(1, 5),
                            after=tuple(Dependency(on[g][-1]) for g in members)))
        for g in members:
            on[g].append(collective)
    last = Dependency(blocks[-1].name, distance=1)
    first = blocks[0]
    blocks[0] = Block(first.name, first.kind, first.devices, first.duration, after=(*first.after, last))
    return job_of(name, Problem(name, tuple(devices), tuple(blocks)))

"""Pipelines whose GPUs have engines of their own: transfers on network lanes, copies to the host on copy lanes."""

from __future__ import annotations

from weft.solver import Schedule, baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem


def laned_pipeline(ranks: int, memory: Number | None = None, *, forward: Number = 20, transfer: Number = 8,
                   copy: Number = 0) -> Problem:
    """A stage a GPU. What goes from one to the next is a block on the network lanes of both; with ``copy``, what a
    forward keeps is copied to the host, and back, on a third engine. Times in ms."""
    devices: list[Device] = []
    for r in range(ranks):
        devices += [Device(f"gpu {r}", memory), Device(f"gpu {r} network", lane_of=f"gpu {r}"),
                    Device(f"gpu {r} copies", lane_of=f"gpu {r}")]
    blocks: list[Block] = []
    kept = 1 if copy else 0

    def add(name: str, kind: BlockKind, devices: tuple[int, ...], duration: Number, memory: Number,
            *after: str) -> None:
        blocks.append(Block(name, kind, devices, duration, (memory,) + (0,) * (len(devices) - 1),
                            after=tuple(map(Dependency, after))))

    for r in range(ranks):
        if r:
            add(f"send F{r}", BlockKind.OTHER, (3 * r - 2, 3 * r + 1), transfer, 0, f"F{r - 1}")
        add(f"F{r}", BlockKind.FORWARD, (3 * r,), forward, 1, *[f"send F{r}"] * (r > 0))
        if copy:
            add(f"O{r}", BlockKind.OTHER, (3 * r + 2,), copy, -1, f"F{r}")
            add(f"L{r}", BlockKind.OTHER, (3 * r + 2,), copy, 1, f"O{r}")
    for r in reversed(range(ranks)):
        before = f"send B{r + 1}" if r < ranks - 1 else f"F{r}"
        add(f"B{r}", BlockKind.BACKWARD, (3 * r,), 2 * forward, -1, before, *[f"L{r}"] * kept)
        if r:
            add(f"send B{r}", BlockKind.OTHER, (3 * r + 1, 3 * r - 2), transfer, 0, f"B{r}")
    return Problem("laned pipeline", tuple(devices), tuple(blocks), time_unit="ms", memory_unit="activations")


def laned_schedule(ranks: int = 2, micro_batches: int = 3, memory: Number | None = 2, *, copy: Number = 0) -> Schedule:
    """Any order of it that fits."""
    return baseline("greedy", laned_pipeline(ranks, memory, copy=copy), micro_batches)

"""Streams of chunks through one GPU, and what a plain streamer makes of them; shares no code with the search."""

from __future__ import annotations

import random

from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem


def drawn_stream(grid: int, slots: int, seed: int) -> Problem:
    """``grid`` columns of as many chunks, each loaded into a slot and computed; a column's first result keeps its slot
    until all of the column is computed and the result stored. Loads and stores are on lanes. One micro-batch is all."""
    draw = random.Random(f"{grid} {seed}")
    blocks: list[Block] = []

    def add(name: str, device: int, memory: int, *after: str) -> None:
        blocks.append(Block(name, BlockKind.OTHER, (device,), draw.randint(3, 9), (memory,),
                            after=tuple(map(Dependency, after))))

    for column in range(grid):
        for row in range(grid):
            add(f"L{row},{column}", 1, 1)
            add(f"C{row},{column}", 0, -1 if row else 0, f"L{row},{column}")
        add(f"S{column}", 2, -1, *(f"C{row},{column}" for row in range(grid)))
    devices = (Device("gpu", slots), Device("loads", lane_of="gpu"), Device("stores", lane_of="gpu"))
    return Problem(f"stream {grid} x {grid}, {slots} slots #{seed}", devices, tuple(blocks), (), "ms", "chunks")


def plain_streamer(problem: Problem) -> Number:
    """The makespan of a stream in the order of its file: a load as soon as a slot is free, computations in order, each
    store when its column is computed."""
    slots = problem.devices[0].memory
    assert isinstance(slots, int)
    free: list[Number] = [0, 0, 0]
    end: dict[str, Number] = {}
    released: list[Number] = []
    loads = 0
    for block in problem.blocks:  # what a load waits for stands before it
        start = max([free[block.devices[0]], *(end[item.block] for item in block.after)])
        if block.memory[0] > 0:
            loads += 1
            if loads > slots:
                start = max(start, sorted(released)[loads - slots - 1])
        end[block.name] = free[block.devices[0]] = start + block.duration
        if block.memory[0] < 0:
            released.append(end[block.name])
    return max(end.values())

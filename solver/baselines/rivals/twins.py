"""Devices that run the same blocks in the same memory are one device: whatever order fits one fits all of them."""

from __future__ import annotations

from dataclasses import replace

from weft.solver.problem import Problem
from weft.solver.timing import Orders

__all__ = ["on_every_twin", "without_twins"]


def without_twins(problem: Problem) -> tuple[Problem, tuple[int, ...]]:
    """``problem`` on the first of each set of twins, and which device of it stands for each of the problem's own.

    Devices with a link have no twins: the link tells them apart. Nor have lanes and those that have lanes.
    """
    linked = {device for link in problem.links for device in (link.source, link.target)}
    linked |= {d for d, owner in enumerate(problem.pool_of) if owner != d or problem.lanes_of[d]}
    known: dict[object, int] = {}
    stands_for: list[int] = []
    for d, (device, places) in enumerate(zip(problem.devices, problem.places_on, strict=True)):
        amounts = tuple((i, problem.blocks[i].memory[place], problem.blocks[i].workspace[place])
                        for i, place in places.items())
        key = d if d in linked or not places else (device.memory, amounts)
        stands_for.append(known.setdefault(key, len(known)))
    if len(known) == len(stands_for):
        return problem, tuple(stands_for)
    first = {new: old for old, new in reversed(list(enumerate(stands_for)))}
    blocks = []
    for block in problem.blocks:
        kept = [(place, stands_for[d]) for place, d in enumerate(block.devices) if first[stands_for[d]] == d]
        blocks.append(replace(block, devices=tuple(new for _, new in kept),
                              memory=tuple(block.memory[place] for place, _ in kept),
                              workspace=tuple(block.workspace[place] for place, _ in kept)))
    links = tuple(replace(link, source=stands_for[link.source], target=stands_for[link.target])
                  for link in problem.links)
    devices = tuple(problem.devices[first[new]] for new in range(len(first)))
    return replace(problem, devices=devices, blocks=tuple(blocks), links=links), tuple(stands_for)


def on_every_twin(rows: Orders, stands_for: tuple[int, ...]) -> Orders:
    """Per-device orders of the whole problem from those ``without_twins``; twins share theirs."""
    return [rows[new] for new in stands_for]

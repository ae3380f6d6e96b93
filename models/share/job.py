"""One of several jobs on the same GPUs: its blocks as a problem of its own, and the bare problem that is one without
overlap of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.solver.problem import Device, Number, Problem, ProblemError
from weft.solver.wide.block import Amounts, WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

__all__ = ["Job", "SharingError", "job_of", "one_at_a_time"]


class SharingError(ValueError):
    """Jobs that cannot share GPUs as they are; the message says which entry is in the way and what would do."""


@dataclass(frozen=True)
class Job:
    """``problem``: one step of it, without jobs and classes; it may have choices. ``kind``: how it runs, in words.

    ``notes``: what a reader should know of its costs. ``micro_batches``: how many of its own a step has on each GPU,
    where it trains data parallel.
    """

    name: str
    problem: WideProblem
    kind: str = ""
    notes: tuple[str, ...] = ()
    micro_batches: int = 1

    @property
    def capacity(self) -> tuple[Number | None, ...]:
        """What each GPU, and no lane, has for everything; ``None``: as much as is asked for."""
        return tuple(None if device.memory is None else device.memory + device.static
                     for device in self.problem.devices if device.lane_of is None)

    @property
    def held(self) -> tuple[Number, ...]:
        """What it holds on each GPU all the time."""
        return tuple(device.static for device in self.problem.devices if device.lane_of is None)

    @property
    def gpus(self) -> frozenset[int]:
        """The GPUs that its blocks hold, or a lane of, by their number among those that are no lanes."""
        numbers = {device.name: number for number, device in enumerate(_own(self.problem))}
        names = [device.lane_of or device.name for device in self.problem.devices]
        return frozenset(numbers[names[d]] for block in self.problem.blocks for d in block.devices)


def job_of(name: str, problem: Problem | WideProblem, kind: str = "", notes: tuple[str, ...] = ()) -> Job:
    """The job ``name`` that ``problem`` is. Raises :class:`SharingError` for a problem with jobs or classes."""
    if isinstance(problem, Problem):
        return Job(name, _widened(problem), kind, notes)
    if problem.jobs:
        raise SharingError(f"{problem.name} has the jobs {', '.join(map(repr, problem.jobs))} already: solve it with "
                           "weft solve, or give each job a file of its own")
    if problem.classes:
        raise SharingError(f"{problem.name} has micro-batches that differ (the classes "
                           f"{', '.join(map(repr, problem.classes))}), and a job that shares GPUs has steps that are "
                           "alike: give each class a file of its own, or one cost")
    return Job(name, problem, kind, notes)


def one_at_a_time(problem: WideProblem) -> WideProblem:
    """``problem`` where a GPU and its lanes are one: what a lane runs keeps the GPU from everything else."""
    kept = _own(problem)
    place = {device.name: number for number, device in enumerate(kept)}
    owner = [place[device.lane_of or device.name] for device in problem.devices]
    links = tuple(replace(link, source=owner[link.source], target=owner[link.target]) for link in problem.links)
    return replace(problem, devices=kept, links=links,
                   blocks=tuple(_on_owners(block, owner) for block in problem.blocks))


def _own(problem: WideProblem) -> tuple[Device, ...]:
    return tuple(device for device in problem.devices if device.lane_of is None)


def _on_owners(block: WideBlock, owner: list[int]) -> WideBlock:
    devices = tuple(dict.fromkeys(owner[d] for d in block.devices))

    def together(amounts: Amounts) -> Amounts:
        each = amounts * len(block.devices) if len(amounts) == 1 else amounts or (0,) * len(block.devices)
        total: dict[int, Number] = dict.fromkeys(devices, 0)
        for device, amount in zip(block.devices, each, strict=True):
            total[owner[device]] += amount
        return tuple(total.values())

    def by_class(value: Amounts | Mapping[str, Amounts]) -> Amounts | Mapping[str, Amounts]:
        if isinstance(value, Mapping):
            return {name: together(own) for name, own in value.items()}
        return together(value)

    return replace(block, devices=devices, memory=by_class(block.memory), workspace=by_class(block.workspace))


def _widened(problem: Problem) -> WideProblem:
    blocks = tuple(WideBlock(block.name, block.kind, block.devices, block.duration, block.memory, block.workspace,
                             tuple(WideDependency(wait.block, wait.lag, wait.link, wait.distance)
                                   for wait in block.after)) for block in problem.blocks)
    try:
        return WideProblem(problem.name, problem.devices, blocks, problem.links, time_unit=problem.time_unit,
                           memory_unit=problem.memory_unit, model=problem.model)
    except ProblemError as error:  # what a plain problem may have and a wide one may not
        raise SharingError(f"{problem.name}: {error}") from None

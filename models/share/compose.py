"""Jobs in one problem: their devices, lanes, links and memory are the same ones, their blocks keep to themselves.

A GPU's memory is there for all jobs: what it has, less what all of them hold all the time, is what their blocks may
take together. Blocks and choices get the name of their job before their own, so that no two are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.models.share.job import Job, SharingError
from weft.models.share.units import amount_text, in_units
from weft.solver.problem import Device, Link, Number
from weft.solver.wide.block import Options, WideBlock
from weft.solver.wide.problem import WideProblem

__all__ = ["MARK", "composed", "in_one_unit", "require_same_gpus"]

#: Between the name of a job and that of its block.
MARK = "/"


def in_one_unit(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """``jobs`` with times and amounts in the units of the first of them.

    Raises :class:`~weft.models.share.job.SharingError` for units that nobody can convert.
    """
    first = jobs[0].problem
    return tuple(replace(job, problem=in_units(job.problem, first.time_unit, first.memory_unit)) for job in jobs)


def composed(jobs: Sequence[Job], name: str = "") -> WideProblem:
    """The problem of all ``jobs``, which are in one unit and have different names.

    Raises :class:`~weft.models.share.job.SharingError` where their GPUs, lanes or links are not the same ones, and
    where what they hold all the time is more than there is.
    """
    devices = _devices(jobs)
    places = {device.name: number for number, device in enumerate(devices)}
    links = _links(jobs, places)
    blocks = [_own(block, job, places) for job in jobs for block in job.problem.blocks]
    choices = {f"{job.name}{MARK}{choice}": options for job in jobs for choice, options in job.problem.choices.items()}
    first = jobs[0].problem
    return WideProblem(name or " with ".join(job.name for job in jobs), devices, tuple(blocks), links, choices,
                       first.time_unit, first.memory_unit)


def _devices(jobs: Sequence[Job]) -> tuple[Device, ...]:
    """The GPUs of the first job, each with the lanes that any job has of it."""
    require_same_gpus(jobs)
    lanes: dict[str, dict[str, None]] = {}
    for job in jobs:
        for device in job.problem.devices:
            if device.lane_of is not None:
                lanes.setdefault(device.lane_of, {})[device.name] = None
    held = [sum(amounts) for amounts in zip(*(job.held for job in jobs), strict=True)]
    found: list[Device] = []
    own = [device for device in jobs[0].problem.devices if device.lane_of is None]
    for number, (device, whole, static) in enumerate(zip(own, jobs[0].capacity, held, strict=True)):
        left = None if whole is None else whole - static
        if left is not None and left < 0:
            unit = jobs[0].problem.memory_unit
            each = ", ".join(f"{job.name} {amount_text(job.held[number], unit)}" for job in jobs)
            raise SharingError(f"{device.name}: the jobs hold {amount_text(static, unit)} all the time ({each}), "
                               f"{amount_text(-left, unit)} more than there is")
        found.append(replace(device, memory=left, static=static))
        found += [Device(lane, lane_of=device.name) for lane in lanes.get(device.name, ())]
    return tuple(found)


def require_same_gpus(jobs: Sequence[Job]) -> None:
    """Raise :class:`~weft.models.share.job.SharingError` unless the jobs are on GPUs of the same names and memory."""
    first = jobs[0]
    names = [device.name for device in first.problem.devices if device.lane_of is None]
    owner = {device.name: device.lane_of for device in first.problem.devices}
    for job in jobs[1:]:
        own = [device.name for device in job.problem.devices if device.lane_of is None]
        if own != names:
            raise SharingError(f"{job.name} is on the GPUs {', '.join(own)}, and {first.name} on {', '.join(names)}: "
                               "jobs share GPUs only if devices are the same, in the same order")
        for device in job.problem.devices:
            if owner.setdefault(device.name, device.lane_of) != device.lane_of:
                raise SharingError(f"{job.name}: device {device.name!r} is a lane of {device.lane_of!r}, and for "
                                   f"another job of {owner[device.name]!r}: give lanes of different GPUs "
                                   "different names")
        for name, amount, other in zip(names, first.capacity, job.capacity, strict=True):
            if amount != other:
                one, two = _texts(amount, other, first.problem.memory_unit)
                raise SharingError(f"{name} has {one} for {first.name}, and {two} for {job.name}: jobs share "
                                   "one cluster; give both the same memory (what is free for blocks, and in "
                                   "static what the job holds all the time)")


def _texts(one: Number | None, other: Number | None, unit: str) -> list[str]:
    """Both amounts as people read them; to the last digit where they would look alike."""
    found = ["unlimited memory" if amount is None else amount_text(amount, unit) for amount in (one, other)]
    return [f"{one} {unit}", f"{other} {unit}"] if found[0] == found[1] else found


def _links(jobs: Sequence[Job], places: dict[str, int]) -> tuple[Link, ...]:
    found: dict[str, tuple[Link, str]] = {}
    for job in jobs:
        names = [device.name for device in job.problem.devices]
        for link in job.problem.links:
            moved = Link(link.name, places[names[link.source]], places[names[link.target]])
            other, whose = found.setdefault(link.name, (moved, job.name))
            if other != moved:
                raise SharingError(f"{job.name}: link {link.name!r} does not join the devices that it joins for "
                                   f"{whose}: give one of them another name")
    return tuple(link for link, _ in found.values())


def _own(block: WideBlock, job: Job, places: dict[str, int]) -> WideBlock:
    before = job.name + MARK

    def renamed(when: Options) -> Options:
        return {before + choice: option for choice, option in when.items()}

    names = [device.name for device in job.problem.devices]
    return replace(block, name=before + block.name, job=job.name, when=renamed(block.when),
                   devices=tuple(places[names[d]] for d in block.devices),
                   after=tuple(replace(wait, block=before + wait.block, when=renamed(wait.when))
                               for wait in block.after))

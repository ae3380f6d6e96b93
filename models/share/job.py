"""One of several jobs on the same GPUs: its blocks as a separate problem, and the bare problem without its own overlap.

Exact conversion of amounts to other units: problems that share GPUs may use different ones.

Jobs in one problem: they share devices, lanes, links and memory, but no waits.

All jobs share a GPU's memory: its capacity, less the static memory of all jobs, is available to their blocks together.
Blocks and choices are prefixed with the name of their job, so that names are unique.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from weft.solver.problem import (
    Amounts,
    Block,
    Device,
    Link,
    Number,
    Options,
    Problem,
    changed,
)
from weft.solver.values import exact, plain


class SharingError(ValueError):
    """Jobs that cannot share GPUs; the message names the conflicting entry and the remedy."""


@dataclass(frozen=True)
class Job:
    """``problem``: one step of it, without jobs and classes; it may have choices. ``kind``: its kind of run, in words.

    ``notes``: remarks on its costs. ``micro_batches``: the number in a step on each GPU, if it trains data parallel.
    """

    name: str
    problem: Problem
    kind: str = ""
    notes: tuple[str, ...] = ()
    micro_batches: int = 1

    @property
    def capacity(self) -> tuple[Number | None, ...]:
        """The total memory of each GPU, without lanes; ``None``: unlimited."""
        return tuple(None if device.memory is None else device.memory + device.static
                     for device in self.problem.devices if device.lane_of is None)

    @property
    def held(self) -> tuple[Number, ...]:
        """Its static memory on each GPU."""
        return tuple(device.static for device in self.problem.devices if device.lane_of is None)

    @property
    def gpus(self) -> frozenset[int]:
        """The GPUs whose computation or lanes its blocks use, by their number among devices other than lanes."""
        numbers = {device.name: number for number, device in enumerate(_own(self.problem))}
        names = [device.lane_of or device.name for device in self.problem.devices]
        return frozenset(numbers[names[d]] for block in self.problem.blocks for d in block.devices)


def job_of(name: str, problem: Problem, kind: str = "", notes: tuple[str, ...] = ()) -> Job:
    """The job ``name`` of ``problem``. Raises :class:`SharingError` for a problem with jobs or classes."""
    if problem.jobs:
        raise SharingError(f"{problem.name} has the jobs {', '.join(map(repr, problem.jobs))} already: solve it with "
                           "weft solve, or give each job a file of its own")
    if problem.classes:
        raise SharingError(f"{problem.name} has micro-batches that differ (the classes "
                           f"{', '.join(map(repr, problem.classes))}), and a job that shares GPUs has steps that are "
                           "alike: give each class a file of its own, or one cost")
    return Job(name, problem, kind, notes)


def one_at_a_time(problem: Problem) -> Problem:
    """``problem`` with each GPU and its lanes merged: a lane's block blocks the GPU."""
    kept = _own(problem)
    place = {device.name: number for number, device in enumerate(kept)}
    owner = [place[device.lane_of or device.name] for device in problem.devices]
    links = tuple(replace(link, source=owner[link.source], target=owner[link.target]) for link in problem.links)
    return replace(problem, devices=kept, links=links,
                   blocks=tuple(_on_owners(block, owner) for block in problem.blocks))


def _own(problem: Problem) -> tuple[Device, ...]:
    return tuple(device for device in problem.devices if device.lane_of is None)


def _on_owners(block: Block, owner: list[int]) -> Block:
    devices = tuple(dict.fromkeys(owner[d] for d in block.devices))

    def together(amounts: Amounts) -> Amounts:
        total: dict[int, Number] = dict.fromkeys(devices, 0)
        for device, amount in zip(block.devices, amounts, strict=True):
            total[owner[device]] += amount
        return tuple(total.values())

    return replace(block, devices=devices, **changed(block, memory=together, workspace=together))


_TIMES = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6),
          "ns": Fraction(1, 10**9)}
_AMOUNTS = {"B": Fraction(1), **{f"{letter}iB": Fraction(1024**power) for power, letter in enumerate("KMGT", 1)},
            **{f"{letter}B": Fraction(1000**power) for power, letter in enumerate("KMGT", 1)}, "kB": Fraction(1000)}


def in_units(problem: Problem, time_unit: str, memory_unit: str) -> Problem:
    """``problem`` with its times in ``time_unit`` and its amounts in ``memory_unit``.

    Raises :class:`~weft.models.share.job.SharingError` if the units have no known conversion.
    """
    time = _factor(problem, "time_unit", problem.time_unit, time_unit, _TIMES)
    amount = _factor(problem, "memory_unit", problem.memory_unit, memory_unit, _AMOUNTS)
    if time == amount == 1:
        return replace(problem, time_unit=time_unit, memory_unit=memory_unit)
    return replace(problem, time_unit=time_unit, memory_unit=memory_unit,
                   devices=tuple(_device(device, amount) for device in problem.devices),
                   blocks=tuple(_block(block, time, amount) for block in problem.blocks))


def amount_text(amount: Number, unit: str) -> str:
    """A readable amount of memory: bytes in the unit with the shortest number, other units unchanged."""
    if unit == "B":
        for larger, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if amount >= size:
                return f"{amount / size:.1f} {larger}"
        return f"{amount:.0f} B"
    return f"{amount:g} {unit}"


def _factor(problem: Problem, what: str, own: str, wanted: str, known: Mapping[str, Fraction]) -> Fraction:
    if own == wanted:
        return Fraction(1)
    if own not in known or wanted not in known:
        raise SharingError(f"{problem.name}: {what} is {own!r}, and that of another job is {wanted!r}: write both in "
                           f"one unit, or in {', '.join(known)}")
    return known[own] / known[wanted]


def _device(device: Device, amount: Fraction) -> Device:
    return replace(device, memory=None if device.memory is None else _times(device.memory, amount),
                   static=_times(device.static, amount))


def _block(block: Block, time: Fraction, amount: Fraction) -> Block:
    def lasts(value: Number) -> Number:
        return _times(value, time)

    def holds(values: Amounts) -> Amounts:
        return tuple(_times(value, amount) for value in values)

    return replace(block, after=tuple(replace(wait, **changed(wait, lag=lasts)) for wait in block.after),
                   **changed(block, duration=lasts, memory=holds, workspace=holds))


def _times(value: Number, factor: Fraction) -> Number:
    """The decimal number that was written, times ``factor``."""
    return plain(exact(value) * factor)


#: Between the name of a job and that of its block.
MARK = "/"


def in_one_unit(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """``jobs`` with times and amounts in the units of the first of them.

    Raises :class:`~weft.models.share.job.SharingError` for units without a known conversion.
    """
    first = jobs[0].problem
    return tuple(replace(job, problem=in_units(job.problem, first.time_unit, first.memory_unit)) for job in jobs)


def composed(jobs: Sequence[Job], name: str = "") -> Problem:
    """The problem of all ``jobs``, which are in one unit and have different names.

    Raises :class:`~weft.models.share.job.SharingError` if their GPUs, lanes or links differ, and if their static memory
    exceeds the capacity.
    """
    devices = _devices(jobs)
    places = {device.name: number for number, device in enumerate(devices)}
    links = _links(jobs, places)
    blocks = [_own_block(block, job, places) for job in jobs for block in job.problem.blocks]
    choices = {f"{job.name}{MARK}{choice}": options for job in jobs for choice, options in job.problem.choices.items()}
    first = jobs[0].problem
    return Problem(name or " with ".join(job.name for job in jobs), devices, tuple(blocks), links,
                   first.time_unit, first.memory_unit, choices=choices)


def _devices(jobs: Sequence[Job]) -> tuple[Device, ...]:
    """The GPUs of the first job, each with the lanes that any job uses."""
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
    """Both amounts as readable text; with all digits if they would look equal."""
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


def _own_block(block: Block, job: Job, places: dict[str, int]) -> Block:
    before = job.name + MARK

    def renamed(when: Options) -> Options:
        return {before + choice: option for choice, option in when.items()}

    names = [device.name for device in job.problem.devices]
    return replace(block, name=before + block.name, job=job.name, when=renamed(block.when),
                   devices=tuple(places[names[d]] for d in block.devices),
                   after=tuple(replace(wait, block=before + wait.block, when=renamed(wait.when))
                               for wait in block.after))

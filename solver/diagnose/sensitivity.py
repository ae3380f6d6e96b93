"""The gain from more memory, faster links or less work: each change is made and the schedule searched anew.

Every figure is a schedule that has passed the judge. The known orders re-timed under the change are its start; a search
of small effort improves on them. The unchanged problem gets the same search, so that the gain of a longer search is not
credited to the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

from weft.solver.bounds import least_time
from weft.solver.control.clock import OutOfTime, checked, unwatched, watching
from weft.solver.control.stopping import STOP
from weft.solver.diagnose.bubbles import idle_times
from weft.solver.diagnose.critical_cycle import critical_cycle
from weft.solver.judge.validate import validate
from weft.solver.pipeline import NotAPipeline, Pipeline
from weft.solver.problem import Block, Dependency, Number, Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import solve
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders
from weft.solver.values import exact, plain

Kind: TypeAlias = Literal["memory", "transfer", "work"]

GIB = 2**30
#: Operations, over all changes, that are re-timed even without time left: it is very quick.
_AT_ONCE = 50_000


@dataclass(frozen=True)
class Change:
    """One change, in words, and the changed problem. ``device`` is the one with more memory, None: all."""

    kind: Kind
    title: str
    problem: Problem
    device: int | None = None


@dataclass(frozen=True)
class ChangeEffect:
    """The effect of a change. ``schedule`` is the best found under it, valid for the changed problem and no shorter
    than its ``makespan_bound``. ``resolved``: it comes from the search; otherwise it is the known order re-timed.
    ``period`` is the least time per micro-batch of a steady state that was found, in the known order or by the search.
    """

    change: Change
    schedule: Schedule
    resolved: bool
    period: float | None


@dataclass(frozen=True)
class WhatIf:
    """``unchanged``: the schedule of the problem as it is, searched further with the same effort. ``figures``: of every
    change tried, shortest makespan first. ``untried``: changes omitted, because time or number ran out and the known
    order gains nothing by them, or because of a stop."""

    unchanged: Schedule
    figures: tuple[ChangeEffect, ...]
    untried: tuple[Change, ...]


def changes(problem: Problem) -> tuple[Change, ...]:
    """One more GiB (one more unit if memory is not in bytes) on every device and on each; transfers twice as fast, all
    and between each two places; each stage (or device's work, if the problem is not a pipeline) 10 % shorter."""
    return (*_memory(problem), *_transfers(problem), *_work(problem))


def what_if(
    schedule: Schedule,
    *,
    effort: float = 0.5,
    most: int = 24,
    seed: int = 0,
    spent: Callable[[], bool] = lambda: False,
) -> WhatIf:
    """Try the :func:`changes` of a valid ``schedule``'s problem, at most ``most`` of them, the most promising first.

    ``effort`` is CP-SAT's deterministic time for each (about seconds). ``spent`` says whether to stop with the results
    so far. A stop (Ctrl-C) leaves the rest untried.
    """
    with watching(spent):  # searches inside end when it says so, with the best they have
        return _what_if(schedule, effort, most, seed, spent)


def _what_if(schedule: Schedule, effort: float, most: int, seed: int, spent: Callable[[], bool]) -> WhatIf:
    fresh = replace(schedule, solver={key: value for key, value in schedule.solver.items() if key != "interrupted"})
    unchanged = fresh if schedule.gap == 0 or spent() else _searched(fresh, effort, seed)
    waiting = {idle.device: idle.by_cause["memory"] for idle in idle_times(schedule)}
    stopped = _was_stopped(unchanged)
    starts: dict[Change, Schedule] = {}
    tried = list(changes(schedule.problem))
    at_once = len(schedule.operations) * len(tried) <= _AT_ONCE
    with suppress(OutOfTime), unwatched() if at_once else nullcontext():
        for change in checked(tried):
            if stopped or STOP.requested:
                return WhatIf(unchanged, (), tuple(tried))
            starts[change] = _retimed(schedule, change.problem)

    def promise(change: Change) -> tuple[bool, float]:
        if change.kind == "memory":
            gain = sum(waiting.values()) if change.device is None else waiting[change.device]
        else:
            gain = schedule.makespan - starts[change].makespan
        return change.kind == "memory" and change.device is None, gain

    queue = sorted(starts, key=promise, reverse=True)
    figures, untried = [], [change for change in tried if change not in starts]
    for number, change in enumerate(queue):
        start = starts[change]
        stopped = stopped or STOP.requested
        if stopped:
            untried.append(change)
            continue
        if number < most and not spent():
            best = _searched(start, effort, seed)
            stopped = _was_stopped(best)
        elif change.kind == "memory":
            untried.append(change)
            continue
        else:
            best = start
            with suppress(OutOfTime), unwatched() if at_once else nullcontext():
                bound = least_time(TickProblem.of(change.problem), start.micro_batches)
                best = replace(start, makespan_bound=min(start.makespan, bound))
        periods = [start.period, best.period, best.solver.get("repetend_period")]
        figures.append(ChangeEffect(change, best, best.makespan < start.makespan * (1 - RELATIVE_TOLERANCE),
                                    min((period for period in periods if period is not None), default=None)))
    figures.sort(key=lambda figure: figure.schedule.makespan)
    return WhatIf(unchanged, tuple(figures), tuple(untried))


def _was_stopped(schedule: Schedule) -> bool:
    """Whether Ctrl-C ended the search for it: then all searches end, not only this one."""
    return bool(schedule.solver.get("interrupted"))


def _searched(start: Schedule, effort: float, seed: int) -> Schedule:
    return solve(start.problem, start.micro_batches, time_limit=60 * effort + 60, effort=effort, seed=seed, start=start)


def _retimed(schedule: Schedule, problem: Problem) -> Schedule:
    """The orders of ``schedule`` under the changed ``problem``."""
    operations = time_orders(problem, schedule.micro_batches, schedule.orders)
    retimed = Schedule(problem, schedule.micro_batches, operations, makespan_bound=0.0, repetend=schedule.repetend,
                       solver={"name": schedule.solver.get("name", "schedule")})
    cycle = None if TickProblem.of(problem).mixed_pools else critical_cycle(retimed)  # its order may not say enough
    retimed = replace(retimed, period=cycle.period) if cycle is not None else replace(retimed, repetend=None)
    validate(retimed)
    return retimed


# -- the changes -------------------------------------------------------------------------------------------------


def _memory(problem: Problem) -> Iterator[Change]:
    limited = [d for d, device in enumerate(problem.devices) if device.memory is not None]
    step, text = (GIB, "1 GiB") if problem.memory_unit == "B" else (1, f"1 {problem.memory_unit}")
    if len(limited) > 1:
        yield Change("memory", f"{text} more on every device", _with_memory(problem, limited, step))
    for device in limited:
        title = f"{text} more on {problem.devices[device].name}"
        yield Change("memory", title, _with_memory(problem, [device], step), device)


def _with_memory(problem: Problem, where: list[int], step: Number) -> Problem:
    devices = tuple(
        replace(device, memory=plain(Fraction(str(device.memory)) + Fraction(step))) if number in where else device
        for number, device in enumerate(problem.devices))
    return replace(problem, devices=devices)


def _transfers(problem: Problem) -> Iterator[Change]:
    pairs = sorted({_ends(problem, block, dependency) for block in problem.blocks for dependency in block.after
                    if dependency.lag})
    if len(pairs) > 1:
        yield Change("transfer", "all transfers twice as fast", _with_half_lags(problem, pairs))
    for pair in pairs:
        yield Change("transfer", f"transfers between {' and '.join(pair)} twice as fast",
                     _with_half_lags(problem, [pair]))


def _ends(problem: Problem, block: Block, dependency: Dependency) -> tuple[str, ...]:
    """The two ends of the transfer of ``dependency``, in either direction."""
    if dependency.link is not None:
        link = problem.links_by_name[dependency.link]
        if link.source == link.target:  # the engine that copies to the host and back
            return problem.devices[link.source].name, "its host"
        return tuple(sorted(problem.devices[device].name for device in (link.source, link.target)))
    producer = problem.blocks[problem.index[dependency.block]]
    return tuple(sorted({_place(problem, producer.devices), _place(problem, block.devices)}))


def _place(problem: Problem, devices: tuple[int, ...]) -> str:
    if len(devices) > 1 and len(devices) == len(problem.devices):
        return "all devices"
    return "+".join(problem.devices[device].name for device in sorted(devices))


def _with_half_lags(problem: Problem, pairs: list[tuple[str, ...]]) -> Problem:
    def halved(block: Block, dependency: Dependency) -> Dependency:
        if _ends(problem, block, dependency) not in pairs:
            return dependency
        return replace(dependency, lag=_scaled(dependency.lag, Fraction(1, 2)))

    return replace(problem, blocks=tuple(
        replace(block, after=tuple(halved(block, dependency) for dependency in block.after))
        for block in problem.blocks))


def _work(problem: Problem) -> Iterator[Change]:
    for title, members in _stages(problem):
        blocks = tuple(replace(block, duration=_scaled(block.duration, Fraction(9, 10))) if i in members else block
                       for i, block in enumerate(problem.blocks))
        yield Change("work", f"{title} 10 % shorter", replace(problem, blocks=blocks))


def _stages(problem: Problem) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        stages = Pipeline.of(problem).stages
    except NotAPipeline:
        for devices in sorted({tuple(sorted(block.devices)) for block in problem.blocks}):
            yield (f"the work on {_place(problem, devices)}",
                   tuple(i for i, block in enumerate(problem.blocks) if tuple(sorted(block.devices)) == devices))
        return
    for number, stage in enumerate(stages):
        yield f"stage {number} ({problem.devices[stage.device].name})", stage.blocks


def _scaled(value: Number, share: Fraction) -> Number:
    """A time as a decimal number again, rounded to 12 digits: more would only make ticks finer than they need be."""
    return plain(Fraction(f"{float(exact(value) * share):.12g}"))

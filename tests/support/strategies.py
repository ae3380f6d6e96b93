"""Random problems, and schedules for them, for every hypothesis suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.whole import TooLarge, least_makespan
from tests.support.builders import chain, loop, pipeline, published, v
from weft.solver import Schedule, baseline, time_orders
from weft.solver.judge.validate import peaks
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem

WHOLE_TIMES = st.integers(1, 6)
DECIMAL_TIMES = st.sampled_from([0.1, 0.25, 0.3, 0.7, 1.1, 1.9, 2.5, 3.3])
WHOLE_LAGS = st.sampled_from([0, 0, 0, 1, 2])
DECIMAL_LAGS = st.sampled_from([0, 0, 0.1, 0.7, 1.5])
WHOLE_AMOUNTS = st.integers(0, 3)
DECIMAL_AMOUNTS = st.sampled_from([0, 0.1, 0.2, 0.3, 0.7, 1.5])


@dataclass(frozen=True)
class Case:
    """A problem, and a number of micro-batches that fits one at a time."""

    problem: Problem
    micro_batches: int


@st.composite
def problems(draw: st.DrawFn, /, *, max_devices: int = 4, max_blocks: int = 7, whole: bool = False,
             balanced: bool | None = None, links: bool = True, capacities: bool = False) -> Problem:
    """A random block graph: blocks on one or several devices, branches, lags, links, waits for the micro-batch before.

    ``whole`` keeps to whole numbers. ``balanced``: each micro-batch gives back all it took (``None``: either). Devices
    are unlimited unless ``capacities``, which adds capacities that may be too small for anything.
    """
    count = draw(st.integers(1, max_devices))
    whole = whole or draw(st.booleans())
    times, lags = (WHOLE_TIMES, WHOLE_LAGS) if whole else (DECIMAL_TIMES, DECIMAL_LAGS)
    amounts = WHOLE_AMOUNTS if whole else DECIMAL_AMOUNTS
    names = [f"gpu{d}" for d in range(count)]
    joined = [Link(f"{names[a]}-{names[b]}", a, b) for a in range(count) for b in range(count)
              if links and a != b and draw(st.integers(0, 3)) == 0]

    size = draw(st.integers(1, max_blocks))
    kinds = draw(st.sampled_from([list(BlockKind), [BlockKind.FORWARD], [BlockKind.FORWARD, BlockKind.WEIGHT_GRAD]]))
    widths = st.sampled_from([1, 1, 1, count])
    placed = [tuple(draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=draw(widths), unique=True)))
              for _ in range(size)]
    memory = _memory(draw, placed, count, amounts, draw(st.booleans()) if balanced is None else balanced)
    blocks = []
    for i, on in enumerate(placed):
        after = []
        for j in range(size):
            distance = 0 if j < i else 1
            if draw(st.integers(0, 2 if j == i - 1 else 6)) > (1 if j == i - 1 else 0):
                continue
            if distance and draw(st.integers(0, 2)):
                continue
            ways: list[str | None] = [link.name for link in joined
                                      if link.source in placed[j] and link.target in on]
            after.append(Dependency(f"b{j}", draw(lags), draw(st.sampled_from([None, *ways])), distance))
        workspace = tuple(draw(amounts) for _ in on) if draw(st.integers(0, 3)) == 0 else ()
        blocks.append(Block(f"b{i}", draw(st.sampled_from(kinds)), on, draw(times), memory[i], workspace,
                            tuple(after)))
    blocks = draw(st.permutations(blocks))
    room = st.one_of(st.none(), st.integers(0, 8) if whole else st.sampled_from([0.5, 1.1, 3.0, 6.5]))
    devices = tuple(Device(name, draw(room) if capacities else None) for name in names)
    units = draw(st.sampled_from([("s", "B"), ("step", "unit")]))
    return Problem("random", devices, tuple(blocks), tuple(joined), *units)


def _memory(draw: st.DrawFn, placed: list[tuple[int, ...]], count: int, amounts: st.SearchStrategy[Number],
            balanced: bool) -> list[tuple[Number, ...]]:
    """What each block changes on its devices; if ``balanced``, a device's last block gives back all that is held."""
    memory: list[list[Number]] = [[] for _ in placed]
    held = [Fraction(0)] * count
    last = {device: i for i, devices in enumerate(placed) for device in devices}
    for i, devices in enumerate(placed):
        for device in devices:
            exact: Fraction
            if balanced and last[device] == i:
                exact = -held[device]
            else:
                exact = Fraction(str(draw(amounts)))
                exact *= -1 if exact <= held[device] and draw(st.booleans()) else 1
            held[device] += exact
            memory[i].append(int(exact) if exact.denominator == 1 else float(exact))
    return [tuple(row) for row in memory]


@st.composite
def cases(draw: st.DrawFn, /, *, max_micro_batches: int = 5, **settings: Any) -> Case:
    """A random problem whose capacities, where it has any, are between just enough and ample."""
    problem = draw(problems(**settings))
    n = draw(st.integers(1, max_micro_batches))
    least = _sequential_peaks(problem, n)
    devices = []
    for device, peak in zip(problem.devices, least, strict=True):
        extra = draw(st.sampled_from([None, 0, 0, 1, 3]))
        room = None if extra is None else max(peak, Fraction(0)) + extra
        devices.append(replace(device, memory=None if room is None else
                               int(room) if room.denominator == 1 else float(room)))
    return Case(replace(problem, devices=tuple(devices)), n)


def least_of(problem: Problem, micro_batches: int, most_labels: int = 800) -> Fraction:
    """The least makespan in the problem's unit, by labels of all states; problems with very many of them, or without
    any schedule, are no examples."""
    try:
        best = least_makespan(problem, micro_batches, most_labels)
    except TooLarge:
        best = None
    assume(best is not None)
    assert best is not None
    return best


def _sequential_peaks(problem: Problem, micro_batches: int) -> list[Fraction]:
    """Per device, what one micro-batch after the other needs, each in the order of ``problem.topological_order``."""
    peaks = [Fraction(0)] * len(problem.devices)
    held = [Fraction(0)] * len(problem.devices)
    for _ in range(micro_batches):
        for i in problem.topological_order:
            block = problem.blocks[i]
            for device in block.devices:
                change, workspace = Fraction(str(block.memory_on(device))), Fraction(str(block.workspace_on(device)))
                peaks[device] = max(peaks[device], held[device] + max(change, Fraction(0)) + workspace)
                held[device] += change
    return peaks


@st.composite
def pipelines(draw: st.DrawFn, /, *, max_devices: int = 4) -> Problem:
    """A training pipeline of uneven stages: chain, loop or V; full or split backward; any memory from one
    micro-batch's up."""
    p = draw(st.integers(1, max_devices))
    shape: Callable[[int], list[int]] = draw(st.sampled_from([chain, loop, v]))
    split = draw(st.sampled_from([None, (1, 1)]))
    uniform = pipeline(shape(p), split=split, lag=draw(st.sampled_from([0, 0.5])),
                       first_input_grad=draw(st.booleans()))
    chunks = len(shape(p)) // p
    room = draw(st.one_of(st.none(), st.integers(chunks, chunks * p + 1)))
    return replace(uniform, name="pipeline", devices=tuple(replace(d, memory=room) for d in uniform.devices),
                   blocks=tuple(replace(b, duration=draw(st.integers(1, 5))) for b in uniform.blocks))


@st.composite
def schedules(draw: st.DrawFn, /, *, max_micro_batches: int = 5, **settings: Any) -> Schedule:
    """A valid schedule that fits: greedy for a random problem, or a baseline for a pipeline with memory enough."""
    if draw(st.booleans()):
        case = draw(cases(max_micro_batches=max_micro_batches, **settings))
        return baseline("greedy", case.problem, case.micro_batches)
    problem, n = draw(pipelines()), draw(st.integers(1, max_micro_batches))
    schedule = draw(st.sampled_from(list(published(problem, n).values())))
    devices = tuple(replace(device, memory=None if device.memory is None else max(device.memory, peak))
                    for device, peak in zip(problem.devices, schedule.peak_memory, strict=True))
    return replace(schedule, problem=replace(problem, devices=devices))


@st.composite
def laned(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """``schedule`` with some of its devices made lanes of others, which makes its memory what it comes to: some owners
    have just that room, the others are unlimited."""
    problem = schedule.problem
    owners: list[int] = []
    for d in range(len(problem.devices)):
        owners.append(draw(st.sampled_from([d, *(owner for owner in range(d) if owners[owner] == owner)])))
    devices = tuple(replace(device, memory=None, static=0, lane_of=None if owner == d else problem.devices[owner].name)
                    for d, (device, owner) in enumerate(zip(problem.devices, owners, strict=True)))
    free = replace(schedule, problem=replace(problem, devices=devices))
    tight = [draw(st.booleans()) for _ in devices]
    return replace(free, problem=replace(problem, devices=tuple(
        replace(device, memory=_number(peak)) if device.lane_of is None and tight[d] else device
        for d, (device, peak) in enumerate(zip(devices, peaks(free), strict=True)))))


def _number(amount: Fraction) -> Number:
    return int(amount) if amount.denominator == 1 else float(amount)


@st.composite
def in_order(draw: st.DrawFn, problem: Problem, micro_batches: int) -> Schedule:
    """A random schedule of a pipeline: whatever can run next on any device may, micro-batches of a block in order."""
    ran, orders = [0] * len(problem.blocks), [[] for _ in problem.devices]  # type: ignore[var-annotated]
    for _ in range(len(ran) * micro_batches):
        ready = [i for i, block in enumerate(problem.blocks) if ran[i] < micro_batches
                 and all(ran[problem.index[item.block]] > ran[i] for item in block.after)]
        chosen = draw(st.sampled_from(ready))
        orders[problem.blocks[chosen].devices[0]].append((chosen, ran[chosen]))
        ran[chosen] += 1
    return Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0)

"""List scheduling under memory: any operation that can start now starts, the most urgent first. For any block graph.

A heuristic of ours in the manner of list scheduling (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
Appl. Math. 17, 1969). Two rules can keep it from filling the memory with forwards that cannot be finished. Either the
number of micro-batches in flight is limited, and blocks that free memory are more urgent; or urgency falls with a
block's distance from the start of its micro-batch and with the micro-batch's number, and no block is overtaken that
would not fit any more (:mod:`weft.solver.baselines.lib.priority_rule`). Several settings of both are tried and the
shortest schedule that fits is kept; if none fits, micro-batches run one at a time
(:mod:`weft.solver.baselines.lib.sequential`).

Devices that run the same blocks in the same memory count as one device: an order that fits one fits all of them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeAlias

from weft.solver.baselines.lib import sequential
from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.extend import ENOUGH, enough, extended
from weft.solver.baselines.lib.priority_rule import fits_in_order, schedule_by_priority
from weft.solver.baselines.lib.time_pass import TimePass
from weft.solver.problem import BlockKind, Problem
from weft.solver.relations.pool_pass import paced
from weft.solver.ticks import TickProblem, heads_and_tails
from weft.solver.timing import Orders

#: Returns makespan and per-device orders of this many micro-batches, or None if they do not fit.
_Setting: TypeAlias = Callable[[int], tuple[float, list[Row]] | None]

#: A makespan and, for equal ones, the devices' peaks added up.
_Figures: TypeAlias = tuple[float, int]

#: Settings are tried with at most the micro-batches that make this many operations, but at least 16.
_TRIAL_OPERATIONS = 4000

#: Time between micro-batches for which keys are made, in times of the busiest device's work; the number tried of those
#: that fit.
_INTERVALS = (0.4, 0.5, 0.67, 0.8, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0)
_TRIED_INTERVALS = 8


def orders(problem: Problem, micro_batches: int) -> Orders:
    """Per-device orders for any problem; memory, links and all kinds of dependencies are respected.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` if not even one micro-batch at a time fits.
    """
    if Amounts.of(problem).mixed_pools:
        return _with_lanes(problem, micro_batches)
    problem, stands_for = without_twins(problem)
    return on_every_twin(_orders(problem, micro_batches), stands_for)


def _with_lanes(problem: Problem, micro_batches: int) -> Orders:
    """For devices that share memory with their lanes: only passes through time, which know the level at each time."""
    amounts, instance = Amounts.of(problem), TickProblem.of(problem)
    ranked = sorted(_by_width(problem, amounts, _trial(problem, micro_batches)), key=lambda entry: entry[0])
    for _, setting in ranked:
        rows = _rows(setting, micro_batches)
        made = None if rows is None else paced(instance, micro_batches, rows)
        if made is not None:
            return made
    return sequential.orders(problem, micro_batches)


def _trial(problem: Problem, micro_batches: int) -> int:
    return min(micro_batches, ENOUGH, max(16, _TRIAL_OPERATIONS // len(problem.blocks)))


def _orders(problem: Problem, micro_batches: int) -> Orders:
    trial = _trial(problem, micro_batches)
    amounts = Amounts.of(problem)
    settings = [*_by_width(problem, amounts, trial), *_by_key(problem, amounts, trial)]
    ranked = [setting for _, setting in sorted(settings, key=lambda entry: entry[0])]
    for setting in (*_filling(problem, amounts, trial, micro_batches, ranked[:1]), *ranked):
        rows = extended(problem, micro_batches, partial(_rows, setting))
        if rows is not None:
            return rows
    return sequential.orders(problem, micro_batches)


def _by_width(problem: Problem, amounts: Amounts, trial: int) -> Iterator[tuple[_Figures, _Setting]]:
    """Settings with each limit on micro-batches in flight that fits, and their figures for ``trial`` micro-batches."""
    for urgency in urgencies(problem, amounts):
        setting = partial(_setting, problem, amounts, urgency)
        best: tuple[float, int] | None = None
        for width in widths(trial):
            figures = _figures(setting(width), trial, amounts)
            if figures is not None:
                yield figures, setting(width)
                best = min(best or (figures[0], width), (figures[0], width))
        for width in _between(best):
            figures = _figures(setting(width), trial, amounts)
            if figures is not None:
                yield figures, setting(width)


def _filling(problem: Problem, amounts: Amounts, trial: int, micro_batches: int, best: list[_Setting]
             ) -> list[_Setting]:
    """Settings that fill a memory which holds more micro-batches than ``trial``, where all are alike with more in
    flight, and the ``best`` of those: by as many as a schedule has before it is extended."""
    taken = [sum(max(0, change) for change in row.values()) for row in amounts.change]
    held = min((room // of_one for of_one, room in zip(taken, amounts.room, strict=True)
                if room is not None and of_one), default=0)
    if not trial < min(held, micro_batches):
        return []
    count = min(micro_batches, enough(problem))
    settings = [*best, *(_setting(problem, amounts, urgency, min(held, micro_batches))
                         for urgency in urgencies(problem, amounts))]
    made = [(found, setting) for setting in settings if (found := setting(count)) is not None]
    if not made:
        return []
    shortest, same = min(made, key=lambda entry: entry[0][0])
    return [lambda n: shortest if n == count else same(n)]


def _setting(problem: Problem, amounts: Amounts, urgency: list[int], width: int) -> _Setting:
    return lambda n: list_schedule(problem, n, width, urgency, amounts)


def _by_key(problem: Problem, amounts: Amounts, trial: int) -> Iterator[tuple[_Figures, _Setting]]:
    """The best settings with keys, tried on a few micro-batches first, and their figures for ``trial``."""
    few = min(trial, 2 * len(problem.devices) + 4)
    offsets = heads_and_tails(problem)[0]
    work = max(sum(problem.blocks[i].duration for i in row) for row in problem.blocks_on)
    shared = any(len(block.devices) > 1 for block in problem.blocks)
    found: list[tuple[_Figures, int, _Setting]] = []
    fitting = (stretch * work for stretch in _INTERVALS
               if fits_in_order(problem, few, offsets, stretch * work, amounts))
    for interval in islice(fitting, _TRIED_INTERVALS):
        for lead, reserve in ((1.0, True), (float("inf"), True), *(((1.0, False), (0.5, False)) if shared else ())):
            setting: _Setting = partial(_by_priority, problem, amounts, offsets, interval, lead * interval, reserve)
            figures = _figures(setting, few, amounts)
            if figures is not None:
                found.append((figures, len(found), setting))
    for figures, _, setting in sorted(found, key=lambda entry: entry[:2])[:3]:
        longer = figures if few == trial else _figures(setting, trial, amounts)
        if longer is not None:
            yield longer, setting


def _by_priority(problem: Problem, amounts: Amounts, offsets: Sequence[float], interval: float, lead: float,
           reserve: bool, micro_batches: int) -> tuple[float, list[Row]] | None:
    return schedule_by_priority(problem, micro_batches, offsets, interval, lead, amounts, reserve=reserve)


def list_schedule(problem: Problem, micro_batches: int, width: int, urgency: Sequence[int], amounts: Amounts,
                  parts: Sequence[int] | None = None) -> tuple[float, list[Row]] | None:
    """Makespan and per-device orders of one pass through time, or ``None`` if memory leaves it stuck.

    At every time at which something ends or arrives, each block's next micro-batch starts if its inputs are available,
    its devices are free and its memory fits; ``urgency`` lists all blocks, the most urgent first. At most ``width``
    micro-batches are in flight; if a micro-batch here is a round of several, ``parts`` names the one that each block
    belongs to, and the limit counts these.
    """
    if amounts.tables.fit_kernel(micro_batches):
        return amounts.tables.by_width(micro_batches, width, urgency, parts)
    run, n = TimePass(problem, micro_batches, amounts), micro_batches
    needs = [[(d, amounts.take[d][i], room) for d in block.devices if (room := amounts.room[d]) is not None]
             for i, block in enumerate(problem.blocks)]
    pools = [(pool.take, pool.change, pool.capacity) for pool in amounts.mixed_pools]
    pool_levels, gives = [0] * len(pools), list[tuple[float, int, int]]()  # when, which pool, how much
    rank = {block: place for place, block in enumerate(urgency)}
    part_of = [0] * len(problem.blocks) if parts is None else parts
    size = Counter(part_of)
    started = Counter[tuple[int, int]]()
    in_flight = 0
    for now in run.moments():
        while gives and gives[0][0] <= now:
            _, p, amount = heapq.heappop(gives)
            pool_levels[p] -= amount
        for i in sorted(run.open, key=rank.__getitem__):
            m = run.following[i]
            if run.arrival[i * n + m] > now:
                continue
            whole = part_of[i], m
            if any(run.free[d] > now for d in problem.blocks[i].devices) or (not started[whole] and in_flight >= width):
                continue
            if any(run.levels[d] + take > room for d, take, room in needs[i]):
                continue
            if any(i in take and pool_levels[p] + take[i] > room for p, (take, _, room) in enumerate(pools)):
                continue
            in_flight += (started[whole] == 0) - (started[whole] == size[part_of[i]] - 1)
            started[whole] += 1
            end = run.start(i, now)
            for p, (take, change, _) in enumerate(pools):
                if i in take:
                    pool_levels[p] += take[i]
                    heapq.heappush(gives, (end, p, take[i] - change[i]))
    return None if run.left else (max(run.free), run.rows)


def urgencies(problem: Problem, amounts: Amounts) -> Iterator[list[int]]:
    """Two measures of urgency, where they differ; both then prefer the longer way to the end of the micro-batch."""
    tail = [block.duration + behind for block, behind in zip(problem.blocks, heads_and_tails(problem)[1], strict=True)]
    frees = [sum(amounts.change[d][i] for d in block.devices) < 0 for i, block in enumerate(problem.blocks)]
    freeing = sorted(range(len(problem.blocks)), key=lambda i: (not frees[i], -tail[i]))
    yield freeing
    # Weight gradients as filler: they have no dependents, so any block with dependents goes first.
    place = {BlockKind.BACKWARD: 0, BlockKind.INPUT_GRAD: 0, BlockKind.RECOMPUTE: 0, BlockKind.WEIGHT_GRAD: 2}
    by_kind = sorted(range(len(problem.blocks)), key=lambda i: (place.get(problem.blocks[i].kind, 1), -tail[i]))
    if by_kind != freeing:
        yield by_kind


def widths(micro_batches: int) -> Iterator[int]:
    """Numbers of micro-batches in flight to try: all, and half as many repeatedly."""
    width = micro_batches
    while width > 1:
        yield width
        width = (width + 1) // 2
    yield 1


def _between(best: tuple[float, int] | None) -> list[int]:
    """Numbers of micro-batches in flight skipped by halving, on both sides of the best."""
    if best is None:
        return []
    width = best[1]
    return [w for w in sorted({width * 3 // 4, width * 3 // 2}) if w not in (0, width)]


def _figures(setting: _Setting, micro_batches: int, amounts: Amounts) -> _Figures | None:
    made = setting(micro_batches)
    if made is None:
        return None
    return made[0], sum(amounts.peak(device, row) for device, row in enumerate(made[1]))


def _rows(setting: _Setting, micro_batches: int) -> list[Row] | None:
    made = setting(micro_batches)
    return None if made is None else made[1]


def without_twins(problem: Problem) -> tuple[Problem, tuple[int, ...]]:
    """``problem`` on the first of each set of twins, and the device of it that stands for each of the problem's own.

    Devices with a link have no twins: the link distinguishes them. Nor have lanes and their owners.
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

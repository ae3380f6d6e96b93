"""From measured timelines back to a problem's costs, so that the next search uses measured figures.

A block's duration is the median over all micro-batches of all runs; its spread, the width of the middle half of its
measurements as a share of the median, shows its reliability. A block on several devices runs from the last start on any
of them to the last end.

A transfer is not measured directly. If a block's device was idle before it, for most of the time since the transfer's
producer ended, and that was the last of the block's producers, the time from the producer's end to the block's start is
the transfer (and what the executor adds); the lower quartile of these counts, since a late rank or a busy machine only
ever adds to them, and on a link that carries one transfer at a time their least. If all of a transfer was hidden behind
other work, that time is only an upper bound: the planned one is kept if it is less, else the least observed one.

The time between two blocks of a rank that waits for nothing is the executor's own: it starts receives and sends,
reports to the watchdog and drops results. In a timeline that is the gap between a block's end and the next one's start
where all inputs of the next one had arrived before. A plan has no such gaps, so they are counted with the blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, quantiles

from weft.runtime.plan.program import RankMap
from weft.runtime.plan.timeline import Measured, Timeline
from weft.solver.problem import Block, Dependency, Problem

#: A block whose middle half of measurements is wider than this share of their median is unsteady.
LARGE_SPREAD = 0.1
#: Idle time on a device shorter than this share of the block that follows is the executor's own.
_IDLE = 0.02
#: A device that was idle for less than this share of the time since the producer's end was itself the cause.
_WAITED = 0.5
#: Significant digits of measured times: more would be noise, and work for the search.
_DIGITS = 4

_Instance = tuple[int, int]  # block, micro-batch


@dataclass(frozen=True, slots=True)
class BlockFit:
    """One block: planned and measured duration in the problem's time unit (``None`` if not measured), the middle half
    of its measurements as a share of that, and their number."""

    block: str
    planned: float
    measured: float | None
    spread: float
    count: int

    @property
    def is_unsteady(self) -> bool:
        """Whether the spread is large."""
        return self.spread > LARGE_SPREAD


@dataclass(frozen=True, slots=True)
class TransferFit:
    """The transfer from ``source`` to ``block`` on another device: planned and fitted time in the problem's unit, the
    middle half of the observations as a share of their median, and their number; 0 if it was always hidden, and
    ``fitted`` then at most the observed wait."""

    source: str
    block: str
    planned: float
    fitted: float
    spread: float
    count: int

    @property
    def is_unsteady(self) -> bool:
        """Whether the spread is large: ranks waited for each other, or for a core, more than for data."""
        return self.spread > LARGE_SPREAD


@dataclass(frozen=True)
class Fit:
    """The problem with measured costs, and what changed."""

    problem: Problem
    blocks: tuple[BlockFit, ...]
    transfers: tuple[TransferFit, ...]


def fit(problem: Problem, timelines: Sequence[Timeline]) -> Fit:
    """``problem`` with the durations and transfers measured in ``timelines``, runs of its schedules.

    Memory stays as planned. Raises ``ValueError`` if there is no timeline, or one that names a block or rank that the
    problem does not have.
    """
    if not timelines:
        raise ValueError("there is no timeline to fit the costs to")
    durations: defaultdict[int, list[float]] = defaultdict(list)
    seen: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    hidden: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for timeline in timelines:
        by_device = _by_device(problem, timeline)
        for (block, _), entries in _instances(by_device).items():
            durations[block].append(max(entry.end for entry in entries) - max(entry.start for entry in entries))
        _observe_transfers(problem, by_device, seen, hidden)
    blocks = tuple(_block_fit(block, durations[i]) for i, block in enumerate(problem.blocks))
    transfers = {(i, d): _transfer_fit(block, dependency, seen[i, d], hidden[i, d])
                 for i, block in enumerate(problem.blocks) for d, dependency in enumerate(block.after)
                 if _crosses(problem, block, dependency)}
    fitted = tuple(_corrected(block, blocks[i].measured, {d: fit.fitted for (j, d), fit in transfers.items() if j == i})
                   for i, block in enumerate(problem.blocks))
    return Fit(replace(problem, blocks=fitted), blocks, tuple(transfers.values()))


def _by_device(problem: Problem, timeline: Timeline) -> list[list[tuple[int, Measured]]]:
    """Per device, which may be a lane, its entries in order, as block indices; times in the problem's unit."""
    by_device: list[list[tuple[int, Measured]]] = [[] for _ in problem.devices]
    ranks = RankMap.of(problem)
    for entry in timeline.operations:
        block = problem.index.get(entry.block)
        if block is None or entry.rank not in ranks.of_block(block):
            raise ValueError(f"the timeline of {timeline.name!r} has block {entry.block!r} on rank {entry.rank}, which "
                             f"the problem {problem.name!r} does not have: it was measured on another one")
        unit = timeline.seconds_per_unit
        for device in ranks.held(entry.rank, block):
            by_device[device].append((block, entry._replace(start=entry.start / unit, end=entry.end / unit)))
    return [sorted(own, key=lambda item: item[1].start) for own in by_device]


def _instances(by_device: list[list[tuple[int, Measured]]]) -> dict[_Instance, list[Measured]]:
    found: defaultdict[_Instance, list[Measured]] = defaultdict(list)
    for own in by_device:
        for block, entry in own:
            found[block, entry.micro_batch].append(entry)
    return found


def _observe_transfers(problem: Problem, by_device: list[list[tuple[int, Measured]]],
                       seen: Mapping[tuple[int, int], list[float]],
                       hidden: Mapping[tuple[int, int], list[float]]) -> None:
    """Add to ``seen`` and ``hidden``, per block and place in its ``after``, the times since the producers' ends."""
    ends = {key: max(entry.end for entry in entries) for key, entries in _instances(by_device).items()}
    for device, own in enumerate(by_device):
        for (_, before), (block, entry) in pairwise([(-1, Measured("", 0, 0, 0.0, 0.0)), *own]):
            producers = [(d, problem.index[dependency.block], entry.micro_batch - dependency.distance)
                         for d, dependency in enumerate(problem.blocks[block].after)]
            known = [(d, producer, ends[producer, m]) for d, producer, m in producers if (producer, m) in ends]
            last = max((end for _, _, end in known), default=0.0)
            # Blocks on several devices may have waited for another rank instead.
            idle = entry.start - before.end
            stood_idle = len(problem.blocks[block].devices) == 1 and idle > _IDLE * (entry.end - entry.start)
            has_waited = idle > _WAITED * (entry.start - last)
            for d, producer, end in known:
                if device not in problem.blocks[producer].devices:
                    in_turn = problem.blocks[block].after[d].link is not None
                    told = seen if stood_idle and end == last and (has_waited or in_turn) else hidden
                    told[block, d].append(max(0.0, entry.start - end))


def _crosses(problem: Problem, block: Block, dependency: Dependency) -> bool:
    return not set(block.devices) <= set(problem.blocks[problem.index[dependency.block]].devices)


def _block_fit(block: Block, measured: list[float]) -> BlockFit:
    if not measured:
        return BlockFit(block.name, block.duration, None, 0.0, 0)
    _, middle, spread = _quartile_median_spread(measured)
    return BlockFit(block.name, block.duration, _rounded(middle), spread, len(measured))


def _transfer_fit(block: Block, dependency: Dependency, seen: list[float], hidden: list[float]) -> TransferFit:
    if not seen:
        fitted = min([float(dependency.lag), *(_rounded(time) for time in hidden)])
        return TransferFit(dependency.block, block.name, dependency.lag, fitted, 0.0, 0)
    low, _, spread = _quartile_median_spread(seen)
    return TransferFit(dependency.block, block.name, dependency.lag,
                       _rounded(low if dependency.link is None else min(seen)), spread, len(seen))


def _quartile_median_spread(times: list[float]) -> tuple[float, float, float]:
    low, middle, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else (times[0],) * 3
    return low, middle, (high - low) / middle if middle > 0 else 0.0


def _corrected(block: Block, duration: float | None, lags: Mapping[int, float]) -> Block:
    after = tuple(replace(dependency, lag=lags.get(d, dependency.lag)) for d, dependency in enumerate(block.after))
    return replace(block, after=after, duration=duration if duration else block.duration)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def executor_gaps(problem: Problem, timelines: Sequence[Timeline]) -> list[float]:
    """Per rank, the median gap in seconds before a block whose producers had all ended, and whose messages had had
    their planned time, when the block before it ended; 0 where there is none."""
    found: list[list[float]] = [[] for _ in problem.devices]
    for timeline in timelines:
        ends = {(entry.block, entry.micro_batch): entry.end for entry in timeline.operations}
        rows: list[list[Measured]] = [[] for _ in problem.devices]
        for entry in timeline.operations:  # sorted by start
            rows[entry.rank].append(entry)
        for rank, row in enumerate(rows):
            for before, entry in pairwise(row):
                ready = max((ends[dependency.block, entry.micro_batch - dependency.distance]
                             + dependency.lag * timeline.seconds_per_unit
                             for dependency in problem.blocks[problem.index[entry.block]].after
                             if (dependency.block, entry.micro_batch - dependency.distance) in ends), default=0.0)
                if ready <= before.end:
                    found[rank].append(max(0.0, entry.start - before.end))
    return [median(gaps) if gaps else 0.0 for gaps in found]


def with_gaps(problem: Problem, gaps: Sequence[float], seconds_per_unit: float = 1.0) -> Problem:
    """``problem`` with blocks longer by their rank's gap, in seconds; transfers from another rank are shorter by as
    much, but not below 0."""
    ranks, units = RankMap.of(problem), [gap / seconds_per_unit for gap in gaps]
    longest = [max(units[rank] for rank in ranks.of_block(i)) for i in range(len(problem.blocks))]
    return replace(problem, blocks=tuple(replace(
        block, duration=block.duration + longest[i],
        after=tuple(replace(dependency, lag=max(0.0, dependency.lag - longest[problem.index[dependency.block]]))
                    for dependency in block.after)) for i, block in enumerate(problem.blocks)))

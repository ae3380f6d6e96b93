"""The costs of a problem fitted to measured timelines, for the next search.

A block's duration is the median over all micro-batches of all runs. Its spread is the interquartile range as a share of
the median. A block on several devices lasts from the last start on any of them to the last end.

A transfer is not measured directly. Its time is observed where the consumer's device was idle for most of the time
since the producer's end, and this producer was the block's last: then it is the time from the producer's end to the
consumer's start, including the executor's overhead. Late ranks and load only lengthen it, so the lower quartile of the
observations counts, and the minimum on a link that carries one transfer at a time. If every transfer was hidden behind
other work, these times are only upper bounds: the fitted time is the planned one or the least observed, whichever is
less.

The executor's overhead between two blocks (starting receives and sends, reports to the watchdog, releasing results) is
the gap in a timeline between a block's end and the next start on the rank, where all inputs of the next block had
arrived before. A plan has no such gaps, so they are added to the blocks.
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

#: The spread from which on a block or transfer counts as unsteady.
LARGE_SPREAD = 0.1
#: Idle time before a block up to this share of its duration counts as the executor's overhead.
_IDLE = 0.02
#: A consumer has waited for the transfer if its device was idle for more than this share of the time since the
#: producer's end.
_WAITED = 0.5
#: Significant digits of measured times: further digits are noise, and cost the search time.
_DIGITS = 4

_Instance = tuple[int, int]  # block, micro-batch


@dataclass(frozen=True, slots=True)
class BlockFit:
    """One block: planned and measured duration in the problem's time unit (``None`` if not measured), the spread as a
    share of the median, and the number of measurements."""

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
    spread as a share of the median, and the number of observations. ``count`` is 0 if the transfer was always hidden;
    ``fitted`` is then an upper bound."""

    source: str
    block: str
    planned: float
    fitted: float
    spread: float
    count: int

    @property
    def is_unsteady(self) -> bool:
        """Whether the spread is large: ranks waited for each other, or for a core, rather than for data."""
        return self.spread > LARGE_SPREAD


@dataclass(frozen=True)
class Fit:
    """The problem with measured costs, and the fits of its blocks and transfers."""

    problem: Problem
    blocks: tuple[BlockFit, ...]
    transfers: tuple[TransferFit, ...]


def fit(problem: Problem, timelines: Sequence[Timeline]) -> Fit:
    """``problem`` with the durations and transfers measured in ``timelines`` of its schedules.

    Memory is not changed. Raises ``ValueError`` without timelines, and for a timeline with a block or rank that the
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
    """The entries of each device (or lane) in order of start, with block indices and times in the problem's unit."""
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
    instances: defaultdict[_Instance, list[Measured]] = defaultdict(list)
    for own in by_device:
        for block, entry in own:
            instances[block, entry.micro_batch].append(entry)
    return instances


def _observe_transfers(problem: Problem, by_device: list[list[tuple[int, Measured]]],
                       seen: Mapping[tuple[int, int], list[float]],
                       hidden: Mapping[tuple[int, int], list[float]]) -> None:
    """Add the times since the producers' ends to ``seen`` (observed transfers) or ``hidden`` (upper bounds), by block
    and place in its ``after``."""
    ends = {key: max(entry.end for entry in entries) for key, entries in _instances(by_device).items()}
    for device, own in enumerate(by_device):
        for (_, before), (block, entry) in pairwise([(-1, Measured("", 0, 0, 0.0, 0.0)), *own]):
            producers = [(d, problem.index[dependency.block], entry.micro_batch - dependency.distance)
                         for d, dependency in enumerate(problem.blocks[block].after)]
            known = [(d, producer, ends[producer, m]) for d, producer, m in producers if (producer, m) in ends]
            last = max((end for _, _, end in known), default=0.0)
            idle = entry.start - before.end
            # A block on several devices may have waited for another rank.
            was_idle = len(problem.blocks[block].devices) == 1 and idle > _IDLE * (entry.end - entry.start)
            has_waited = idle > _WAITED * (entry.start - last)
            for d, producer, end in known:
                if device not in problem.blocks[producer].devices:
                    has_link = problem.blocks[block].after[d].link is not None
                    times = seen if was_idle and end == last and (has_waited or has_link) else hidden
                    times[block, d].append(max(0.0, entry.start - end))


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
    """The executor's overhead before a block, in seconds: for each rank the median gap before blocks whose inputs, with
    the planned transfer times, were available when the previous block ended; 0 without such gaps."""
    by_rank: list[list[float]] = [[] for _ in problem.devices]
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
                    by_rank[rank].append(max(0.0, entry.start - before.end))
    return [median(gaps) if gaps else 0.0 for gaps in by_rank]


def with_gaps(problem: Problem, gaps: Sequence[float], seconds_per_unit: float = 1.0) -> Problem:
    """``problem`` with each block longer by its rank's gap (seconds), and the transfers of its result shorter by as
    much, at least 0."""
    ranks, units = RankMap.of(problem), [gap / seconds_per_unit for gap in gaps]
    longest = [max(units[rank] for rank in ranks.of_block(i)) for i in range(len(problem.blocks))]
    return replace(problem, blocks=tuple(replace(
        block, duration=block.duration + longest[i],
        after=tuple(replace(dependency, lag=max(0.0, dependency.lag - longest[problem.index[dependency.block]]))
                    for dependency in block.after)) for i, block in enumerate(problem.blocks)))

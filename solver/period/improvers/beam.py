"""Steady states of a given period, built device after device by beam search, guided by least distances.

A partial schedule has absolute starts for the blocks of some devices. The least distances D of the period turn each of
them into a window for every other block b, from t_i + D[i, b] to t_i - D[b, i]: dependencies, no-overlap and memory as
far as least distances know them. Pipelines are narrow, a device's blocks touch the rest through few others: all that
counts of a partial schedule is how long the blocks to come can still wait, and at which offsets of the period they
arrive. So the beam keeps, of every pattern of offsets, the schedules whose blocks to come can wait longest (Ow and
Morton, "Filtered beam search in scheduling", IJPR 1988; one list for each pattern, as niches keep a population
diverse).

Where bound and optimum lie close together this finds in seconds what whole models of a thousand blocks do not; it
proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.beam_expansion import EARLY, FREE, LATE, Starts, fits, place
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, retime
from weft.solver.period.structure.device_order import both_ways
from weft.solver.period.technique import Improver, Task
from weft.solver.relations.min_dist import Distances, least_distances
from weft.solver.ticks import TickProblem

__all__ = ["AtPeriod", "Beam", "Partial", "improve_by_beam", "suits_beam"]


class Beam(Improver):
    """Runs of beams, narrow ones and then wider ones."""

    name: ClassVar[str] = "beam"

    def __init__(self, seed: int, strays: bool) -> None:
        self.strays = strays
        self._draw = np.random.default_rng(seed)

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None where beams find schedules badly, see :func:`suits_beam`."""
        return cls(task.seed, task.strays) if suits_beam(bracket.instance) else None

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Each run takes some of what is left, more for more blocks."""
        for width in PARAMETERS.beam_widths:
            improve_by_beam(bracket.best, int(bracket.refuted) + 1, time.budget,
                            lambda found: bracket.offer(found, self.name), self._draw, width=width, stray=self.strays,
                            deterministic=min(time.left * PARAMETERS.improvers,
                                              len(bracket.best.starts) * PARAMETERS.beam_block))


def suits_beam(instance: TickProblem) -> bool:
    """Whether beams find schedules well: few blocks a device, each on one, and no links, whose order is not looked at.

    A block on several devices holds them together: those placed first know little of what the others will ask of it.
    """
    return (max(map(len, instance.blocks_on)) < PARAMETERS.beam_crowded
            and all(arc.link is None for arc in instance.arcs)
            and all(len(block.devices) == 1 for block in instance.problem.blocks))


def improve_by_beam(start: Periodic, low: int, budget: Budget, on_better: Callable[[Periodic], None],
                    draw: np.random.Generator, *, deterministic: float, width: int, stray: bool = False) -> None:
    """Look for periods from ``low`` ticks to that of ``start``, and say so to ``on_better`` whenever one is found.

    Beams of ``width`` partial schedules run from both ends of the pipeline, mostly from the one that was better last,
    ``budget.workers`` at a time. A period that none of them reaches is followed by a longer one, until that is close to
    the best; within ``budget`` and about ``deterministic`` seconds of it. With ``stray``, blocks stray when a period is
    tried again.
    """
    instance, best = start.instance, start
    ends = both_ways(instance)
    until = budget.deterministic_used + deterministic
    share, failed = PARAMETERS.beam_first_share, 0
    better_end: Sequence[int] | None = None
    while not budget.spent and budget.deterministic_used < until:
        target = min(max(low, int(low + (best.period - low) * share)), ceil(best.period) - 1)
        lags = least_distances(instance, target) if target >= low else None
        if lags is None:
            return
        at = AtPeriod.of(instance, target, lags)
        tries = [Partial(at, end, width, generator, stray=stray and failed > 0) for end, generator in zip(
            ends if better_end is None or draw.random() < PARAMETERS.beam_other_end else [better_end] * len(ends),
            draw.spawn(len(ends)), strict=True)]
        found = _run(tries, budget)
        if found is not None:
            shortest, better_end = found
            best = replace(shortest, micro_batches_per_period=start.micro_batches_per_period)
            share, failed = max(PARAMETERS.beam_first_share, share / 2), 0
            on_better(best)
            continue
        failed += 1
        if failed < PARAMETERS.beam_tries:
            continue
        failed = 0
        if best.period - target > best.period * PARAMETERS.beam_near and target < ceil(best.period) - 1:
            share = min(2 * share, (1 + share) / 2)
        else:
            return


def _run(beams: Sequence[Partial], budget: Budget) -> tuple[Periodic, Sequence[int]] | None:
    """The shortest period that ``beams`` find, and the order of the devices of the one that found it."""
    found = budget.side_by_side(lambda beam: beam.run(budget), beams)
    if found is None:
        return None
    budget.deterministic_used += sum(beam.work for beam in beams) / PARAMETERS.beam_second
    return min(((one, beam.devices) for one, beam in zip(found, beams, strict=True) if one is not None),
               key=lambda one: one[0].period, default=None)


@dataclass(frozen=True)
class AtPeriod:
    """What all beams at a period of ``ticks`` ask for: lags (blocks x blocks) to and ``back`` from each block, and the
    blocks that each waits for and that wait for it."""

    instance: TickProblem
    ticks: int
    lags: Distances
    back: Distances
    before: list[list[int]]
    after: list[list[int]]

    @classmethod
    def of(cls, instance: TickProblem, ticks: int, lags: Distances) -> AtPeriod:
        """``lags`` are the least distances at ``ticks``."""
        before: list[list[int]] = [[] for _ in instance.blocks]
        after: list[list[int]] = [[] for _ in instance.blocks]
        for arc in instance.arcs:
            before[arc.target].append(arc.source)
            after[arc.source].append(arc.target)
        return cls(instance, ticks, lags, np.ascontiguousarray(lags.T), before, after)


class Partial:
    """Builds a steady state in the order of ``devices``, from ``width`` partial schedules at a time.

    These have placed the same blocks: ``starts`` (schedules x blocks), and windows of the rest. With ``stray``, some
    blocks are further than they need be from where they would like to be. ``work`` counts schedules x blocks, over all
    devices, more if there are more candidates.
    """

    def __init__(self, at: AtPeriod, devices: Sequence[int], width: int, draw: np.random.Generator, *,
                 stray: bool = False) -> None:
        count = len(at.instance.durations)
        self.at, self.devices, self.width, self.draw = at, devices, width, draw
        self.work = 0
        self._stray, self._branches = stray, PARAMETERS.beam_straying if stray else PARAMETERS.beam_branches
        self.placed = np.zeros(count, dtype=np.bool_)
        self.starts = np.zeros((1, count), dtype=np.int64)
        self.earliest = np.full((1, count), -PARAMETERS.beam_far)
        self.latest = np.full((1, count), PARAMETERS.beam_far)

    def run(self, budget: Budget) -> Periodic | None:
        """Place all blocks; ``None`` if no schedule has room for those of some device, or if ``budget`` is spent."""
        for device in self.devices:
            if budget.spent or not self._add(device):
                return None
            self.work += self.width * len(self.placed) * self._branches // PARAMETERS.beam_branches
        return retime(self.at.instance, self.at.ticks, self.starts[0].tolist())

    def _add(self, device: int) -> bool:
        """Place the blocks of ``device``; False if no schedule has room for them."""
        blocks = list(self.at.instance.blocks_on[device])
        if self.placed[blocks].all():
            return True
        if not self.placed.any():  # a steady state has no begin: some block may start at 0
            self.earliest = np.maximum(self.earliest, self.at.lags[blocks[0]])
            self.latest = np.minimum(self.latest, -self.at.back[blocks[0]])
        parents = np.resize(np.arange(len(self.starts)), self.width * self._branches)
        windows = np.ix_(parents, np.array(blocks))
        rows, starts = place(self.at.instance, self.at.ticks, self.at.lags, blocks, [self._wish(i) for i in blocks],
                             (self.earliest[windows], self.latest[windows]), self.draw, stray=self._stray)
        held = fits(self.at.instance, self.at.ticks, device, blocks, starts)
        parents, starts = parents[rows[held]], starts[held]
        _, different = np.unique(np.column_stack([parents, starts]), axis=0, return_index=True)
        parents, starts = parents[different], starts[different]
        self.placed[blocks] = True
        chosen = self._niches(blocks, starts, self._longest_waits(blocks, parents, starts))[:2 * self.width]
        self._keep(blocks, parents[chosen], starts[chosen])
        return len(self.starts) > 0

    def _wish(self, i: int) -> int:
        if self.placed[i] or self.placed[self.at.before[i]].any():
            return EARLY
        return LATE if self.placed[self.at.after[i]].any() else FREE

    def _longest_waits(self, blocks: Sequence[int], parents: npt.NDArray[np.intp],
                       starts: Starts) -> npt.NDArray[np.intp]:
        """Candidates with room for a sample of the blocks to come, those first that leave them long waits.

        The root of each wait counts: what is short matters most. Blocks for which nothing waits can wait anyway.
        """
        to_come = np.array([i for i in np.flatnonzero(~self.placed) if self.at.after[i]], dtype=np.intp)
        sample = to_come[np.linspace(0, len(to_come) - 1, min(len(to_come), PARAMETERS.beam_sample)).astype(np.intp)]
        waits = self._latest(blocks, parents, starts, sample) - self._earliest(blocks, parents, starts, sample)
        alive = np.flatnonzero((waits >= 0).all(axis=1))
        score = np.sqrt(np.minimum(waits[alive], PARAMETERS.beam_long * self.at.ticks)).sum(axis=1)
        return alive[np.argsort(-score, kind="stable")]

    def _niches(self, blocks: Sequence[int], starts: Starts,
                ranked: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """The ``ranked`` candidates anew: the best of each pattern of offsets, then the second of each, and so on."""
        chained = [place for place, i in enumerate(blocks) if self.at.after[i]]
        if len(chained) < 2:
            return ranked
        offsets = (starts[ranked][:, chained[1:]] - starts[ranked, chained[0], None]) % self.at.ticks
        _, pattern = np.unique(offsets * PARAMETERS.beam_parts // self.at.ticks, axis=0, return_inverse=True)
        by_pattern = np.argsort(pattern, kind="stable")
        begins = np.searchsorted(pattern[by_pattern], pattern[by_pattern])
        rank = np.empty(len(ranked), dtype=np.intp)
        rank[by_pattern] = np.arange(len(ranked)) - begins
        return ranked[np.argsort(rank, kind="stable")]

    def _keep(self, blocks: Sequence[int], parents: npt.NDArray[np.intp], starts: Starts) -> None:
        every = np.arange(len(self.placed))
        earliest = self._earliest(blocks, parents, starts, every)
        latest = self._latest(blocks, parents, starts, every)
        alive = np.flatnonzero((earliest <= latest).all(axis=1))[:self.width]
        self.earliest, self.latest = earliest[alive], latest[alive]
        self.starts = self.starts[parents[alive]]
        self.starts[:, blocks] = starts[alive]

    def _earliest(self, blocks: Sequence[int], parents: npt.NDArray[np.intp], starts: Starts,
                  columns: npt.NDArray[np.intp]) -> Starts:
        """The begin of the windows of the blocks ``columns`` once ``blocks`` start at ``starts``."""
        earliest = self.earliest[np.ix_(parents, columns)]
        for i, start in zip(blocks, starts.T, strict=True):
            np.maximum(earliest, start[:, None] + self.at.lags[i, columns], out=earliest)
        return earliest

    def _latest(self, blocks: Sequence[int], parents: npt.NDArray[np.intp], starts: Starts,
                columns: npt.NDArray[np.intp]) -> Starts:
        latest = self.latest[np.ix_(parents, columns)]
        for i, start in zip(blocks, starts.T, strict=True):
            np.minimum(latest, start[:, None] - self.at.back[i, columns], out=latest)
        return latest

"""A search over building blocks for any memory cap, with the problem's own durations.

Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, section 4: enumerate the building block's
offsets, uniform along each way down or up the devices, repeat, squeeze and reorder each, keep the best that fits. The
paper counts in slots of equal length on a V: its stable patterns, reordered by its rules, are tried with the problem's
own durations and with their weight gradients placed anew (:mod:`weft.solver.baselines.rivals.laid_out`). With equal
durations they reach, at every memory from V-Min's to ZB-V's, the bubble that the authors expect,
3p - 1 - 3a + max(3p, p + 1 + 2 ceil(a / 2)) slots on p devices that store a stages' activations.

For every shape, and on a V besides these, an offset is a slot, or the duration and the transfer before it, plus slack.
The number of stages on a device is arbitrary, and so is the interval: if no block that keeps the devices busy fits,
longer intervals need memory for fewer micro-batches at once. Candidates that fit are tried by
:mod:`weft.solver.baselines.lib.building_block`, a spread of all of them first, then the neighbours of the best.

The work is limited by a number of operations, never by time: the same problem gives the same schedule.

The candidates of a search: offsets uniform along each way over the devices, and slack between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.baselines import v_blocks, zb_v
from weft.solver.baselines.lib.base import NotApplicable, Row, require_training
from weft.solver.baselines.lib.building_block import BuildingBlock, Built, StepChain
from weft.solver.baselines.lib.extend import ENOUGH, extended
from weft.solver.baselines.rivals.laid_out import LaidOut, LaidOutOrders
from weft.solver.baselines.rivals.weights_anew import Rule, in_order, without_micro_batches
from weft.solver.control.clock import checked
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem

NEVER = float("inf")

@dataclass(frozen=True, slots=True)
class BlockChoice:
    """A building block: ``slack`` along even and odd ways of the forwards and of the gradients, in slots, the ``gap``
    between forwards and gradients, the interval's ``stretch``; ``even`` if all durations count as one slot; ``lead``
    and ``patience`` as in the block, the former in intervals; the weight gradients placed anew by ``rule``, if any."""

    slack: tuple[float, float, float, float]
    gap: float
    stretch: float
    lead: float = 1.0
    patience: float = 0.0
    even: bool = False
    rule: Rule | None = None

    def neighbours(self) -> Iterator[BlockChoice]:
        """Choices a step away."""
        for step in (0.5, -0.5, 1.0, -1.0):
            if self.gap + step >= 0:
                yield replace(self, gap=self.gap + step)
            for k in range(4):
                if self.slack[k] + step >= 0:
                    slack = (*self.slack[:k], self.slack[k] + step, *self.slack[k + 1:])
                    yield replace(self, slack=slack)  # type: ignore[arg-type]
        for factor in (0.97, 1.03, 0.9, 1.1):
            if self.stretch * factor >= 0.9:
                yield replace(self, stretch=self.stretch * factor)
        for lead in (1.0, NEVER, 0.0):
            yield replace(self, lead=lead)
        for patience in (0.0, 1.0, 0.5):
            yield replace(self, patience=patience)
        yield replace(self, even=not self.even)


def ways(pipeline: Pipeline) -> list[int]:
    """Per stage, the number of its way along the devices, a new one when a device recurs."""
    found, way, met = [], 0, set[int]()
    for stage in pipeline.stages:
        if stage.device in met:
            way, met = way + 1, set()
        met.add(stage.device)
        found.append(way)
    return found


def shares(pipeline: Pipeline) -> npt.NDArray[np.float64]:
    """Per step, which of a choice's slacks and gap is before it."""
    way = ways(pipeline)
    count = len(way)
    found = np.zeros((2 * count, 5))
    for s in range(1, count):
        if way[s] == way[s - 1]:
            found[s, way[s] % 2] = 1
            found[2 * count - s, 2 + way[s] % 2] = 1  # from the gradient of stage s to that of stage s - 1
    found[count, 4] = 1
    return found


#: The most operations in the passes of one search, and the most passes.
WORK, PASSES = 150_000, 200
#: Slots of slack between neighbouring stages on the same way, and between the last forward and the first gradient.
_SLACKS, _GAPS = (0.0, 1.0, 2.0), (0.0, 1.0, 2.0, 3.0)
#: Lengths of the interval, in times of the busiest device's work.
_STRETCHES = (1.0, 1.05, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0, 36.0)
#: Ways to run a block, in turns: lead, patience, and whether all durations count as one slot.
_MANNERS = ((1.0, 0.0, False), (NEVER, 0.0, True), (1.0, 1.0, False), (NEVER, 0.0, False), (1.0, 0.0, True),
            (NEVER, 1.0, False))
#: The share of the work for blocks that fit before the neighbours of the best are tried.
_SPREAD = 0.5
#: The share of that for stable patterns; the cost of laying one out, in passes.
_LAID_OUT, _LAYING = 0.5, 1
#: The number of the best, by a few micro-batches, that are run with more of them: at least, at most; and the work for
#: those beyond the least, as a share of all.
_FINALISTS, _FINAL = (3, 6), 0.2
#: The share of the work for placing the weight gradients of the best blocks anew; the rules for it.
_ANEW, _RULES = 0.15, (Rule.IN_TIME, Rule.ANY_GAP, Rule.FAIR)


#: A candidate of a search.
_Candidate: TypeAlias = BlockChoice | LaidOut


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. Any training pipeline; the devices' capacities are respected.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else, or if no building block fits.
    """
    pipeline = require_training(problem)
    search = _BlockSearch(pipeline, micro_batches)
    ranked = search.ranked()
    search.spare_memory(ranked)
    for choice in ranked:
        def make(n: int, choice: _Candidate = choice) -> list[Row] | None:
            made = search.run(choice, n)
            return None if made is None else made.rows

        rows = extended(problem, micro_batches, make)
        if rows is not None:
            return rows
    raise NotApplicable("no building block that was tried fits the devices' memory")


class _BlockSearch:
    """The building blocks of one pipeline, tried on a few of its micro-batches."""

    def __init__(self, pipeline: Pipeline, micro_batches: int) -> None:
        self.pipeline = pipeline
        self.chain = chain = StepChain.of(pipeline)
        self.mine = [[i for i, device in enumerate(chain.device) if device == d] for d in range(len(chain.room))]
        self.micro_batches = micro_batches
        self.trial = min(micro_batches, 2 * len(chain.room) + 4)
        self.operations = self.trial * len(pipeline.problem.blocks)  # of a pass
        self.left = 0
        self.work = max(sum(chain.duration[i] + chain.filler_duration[i] for i in mine) for mine in self.mine)
        self.slot = self.work / max(sum(1 + (chain.filler[i] >= 0) for i in mine) for mine in self.mine)
        self.earliest = np.cumsum([0.0, *(chain.duration[i] + chain.lag[i + 1] for i in range(len(chain.steps) - 1))])
        self.shares = np.cumsum(shares(pipeline), axis=0) * self.slot
        self.room = self._room()
        self.floor = self._floor() * (1 + 1e-9)
        self.laid_out = self._laid_out_orders()
        self.tried: dict[_Candidate, float] = {}

    def _laid_out_orders(self) -> LaidOutOrders | None:
        problem = self.pipeline.problem
        if self.pipeline.shape != "v" or not self.pipeline.is_split or len(problem.devices) == 1:
            return None
        known = [partial(orders, problem) for orders in (zb_v.orders, v_blocks.half_orders, v_blocks.min_orders)]
        count = max(1, int(_SPREAD * _LAID_OUT * self._allowance() / ((1 + _LAYING) * self.operations)))
        return LaidOutOrders(self.chain, self.micro_batches, self.room, known, at_first=count)

    def _room(self) -> list[int]:
        """The devices' memory, up to twice as many micro-batches as devices take: more gains nothing."""
        chain, room = self.chain, []
        for mine, limit in zip(self.mine, chain.room, strict=True):
            enough = 2 * len(chain.room) * sum(max(chain.change[i], 0) for i in mine) + max(
                max(chain.take[i], chain.filler_take[i]) for i in mine) if mine else 0
            room.append(enough if limit is None else min(limit, enough))
        return room

    def _floor(self) -> float:
        """A makespan that no order can beat: each device's work between its earliest start and its last gradient's way
        to the end (weight gradients may come last of all)."""
        chain, end, floor = self.chain, self.earliest[-1] + self.chain.duration[-1], 0.0
        for mine in filter(None, self.mine):
            last = max(mine)
            after = 0.0 if chain.filler[last] >= 0 else end - self.earliest[last] - chain.duration[last]
            work = sum(chain.duration[i] + chain.filler_duration[i] for i in mine)
            floor = max(floor, self.earliest[min(mine)] + self.micro_batches * work + after)
        return floor

    def run(self, choice: _Candidate, micro_batches: int) -> Built | None:
        """A pass of ``choice``."""
        if isinstance(choice, LaidOut):
            assert self.laid_out is not None
            return self.laid_out.run(choice, micro_batches, self.room)
        params = np.array([*choice.slack, choice.gap])
        earliest = np.arange(len(self.chain.steps)) * self.slot if choice.even else self.earliest
        offsets = tuple(float(x) for x in earliest + self.shares @ params)
        block = BuildingBlock(offsets, choice.stretch * self.work, choice.lead * choice.stretch * self.work,
                              choice.patience)
        made = self.chain.run(block, micro_batches, self.room)
        if made is None or choice.rule is None:
            return made
        return in_order(self.chain, without_micro_batches(self.chain, made.rows), micro_batches, choice.rule, self.room)

    def ranked(self) -> list[_Candidate]:
        """The candidates that fit, the best first, after as many trials as the work allows."""
        self._lay_out()
        fitting = self._fitting() if min(self.tried.values(), default=NEVER) > self.floor else []
        self.left = self._allowance()
        count = min(len(fitting), max(1, int(_SPREAD * self.left / self.operations)))
        for k in range(count):
            lead, patience, even = _MANNERS[k % len(_MANNERS)]
            choice = replace(fitting[int(len(fitting) * (k / count) ** 2)], lead=lead, patience=patience, even=even)
            if self._score(choice) <= self.floor:
                break
        self._climb(BlockChoice)
        self._place_weights_anew()
        ranked = sorted((choice for choice, score in self.tried.items() if score < NEVER),
                        key=lambda choice: self.tried[choice])
        full = min(self.micro_batches, ENOUGH)
        if full <= self.trial:
            return ranked
        work = full * len(self.pipeline.problem.blocks)
        count = min(_FINALISTS[1], max(_FINALISTS[0], int(_FINAL * self._allowance() / work)))
        finalists = {choice: made.makespan for choice in self._distinct(ranked, count)
                     if (made := self.run(choice, full)) is not None}
        return [*sorted(finalists, key=lambda choice: finalists[choice]), *ranked]

    def _distinct(self, ranked: Sequence[_Candidate], count: int) -> list[_Candidate]:
        """The first of each score, ``count`` at most: candidates of one score are mostly the same schedule."""
        first: dict[float, _Candidate] = {}
        for choice in ranked:
            first.setdefault(self.tried[choice], choice)
        return list(first.values())[:count]

    def _allowance(self) -> int:
        """Operations that the passes may run."""
        return min(WORK, PASSES * self.operations)

    def _lay_out(self) -> None:
        """Try published orders and stable patterns, those with the most memory first, with one rule; then the
        neighbours of the best."""
        if self.laid_out is None:
            return
        self.left = int(_LAID_OUT * self._allowance())
        for choice in self.laid_out.first():
            if self._score(choice) <= self.floor:
                return
        self._climb(LaidOut)

    def _place_weights_anew(self) -> None:
        """Try the best blocks with other rules for their weight gradients."""
        if not self.pipeline.is_split or min(self.tried.values(), default=NEVER) <= self.floor:
            return
        blocks = [choice for choice, score in self.tried.items() if score < NEVER and isinstance(choice, BlockChoice)]
        count = int(_ANEW * self._allowance() / (2 * len(_RULES) * self.operations))  # a pass, and the rule's own
        for choice in self._distinct(sorted(blocks, key=lambda choice: self.tried[choice]), count):
            for rule in _RULES:
                self._score(replace(choice, rule=rule))

    def spare_memory(self, ranked: list[_Candidate]) -> None:
        """Of memory without a limit, take no more than the best needs for its makespan."""
        unlimited = [limit is None for limit in self.chain.room]
        if not ranked or not any(unlimited):
            return
        count = min(self.micro_batches, ENOUGH)
        best, whole = self.run(ranked[0], count), self.room
        for share in (0.75, 0.5, 0.4):
            before = self.room
            self.room = [int(amount * share) if free else amount for amount, free in zip(whole, unlimited, strict=True)]
            made = self.run(ranked[0], count)
            if best is None or made is None or made.makespan > best.makespan:
                self.room = before
                return

    def _climb(self, kind: type[_Candidate]) -> None:
        """Try the neighbours of the best of ``kind``, then those of the first that is better, and so on while work is
        left."""
        looked_at: set[_Candidate] = set()
        while others := [choice for choice, score in self.tried.items()
                         if score < NEVER and isinstance(choice, kind) and choice not in looked_at]:
            best = min(others, key=lambda choice: self.tried[choice])
            goal = min(score for choice, score in self.tried.items() if isinstance(choice, kind))
            for neighbour in self._neighbours(best):
                if self.left <= 0 or goal <= self.floor:
                    return
                if self._score(neighbour) < goal:
                    break
            else:
                looked_at.add(best)

    def _neighbours(self, choice: _Candidate) -> Iterator[_Candidate]:
        if isinstance(choice, LaidOut):
            assert self.laid_out is not None
            return choice.neighbours(self.laid_out.count)
        return choice.neighbours()

    def _score(self, choice: _Candidate) -> float:
        """The makespan of all micro-batches, by a pass of a few and the pace of its second half."""
        if choice in self.tried:
            return self.tried[choice]
        if self.laid_out is not None and isinstance(choice, LaidOut) and not self.laid_out.is_laid(choice, self.trial):
            self.left -= _LAYING * self.operations
        made = self.run(choice, self.trial)
        self.left -= self.operations
        score = NEVER
        if made is not None:
            score = made.makespan + (self.micro_batches - self.trial) * max(self.work, made.pace)
        self.tried[choice] = score
        return score

    def _fitting(self) -> list[BlockChoice]:
        """The choices whose repeated block fits, shorter intervals first; within one interval, those with the most
        memory."""
        bends = len(set(ways(self.pipeline))) > 1
        grid = [(slack, gap) for slack in product(_SLACKS, repeat=4) for gap in _GAPS
                if bends or (slack[1], slack[3]) == (0.0, 0.0)]
        offsets = self.earliest + np.array([[*slack, gap] for slack, gap in grid]) @ self.shares.T
        found: list[BlockChoice] = []
        for stretch in _STRETCHES:
            held = self._held(offsets, stretch * self.work)
            fitting = [k for k in np.argsort(-held, kind="stable") if held[k] >= 0]
            found += [BlockChoice(grid[k][0], grid[k][1], stretch) for k in fitting]
            if len(found) >= len(grid):
                break
        return found

    def _held(self, offsets: npt.NDArray[np.float64], interval: float) -> npt.NDArray[np.float64]:
        """Per row of ``offsets``, the memory of the block repeated forever, as a share of the room summed over the
        devices; minus infinity if it does not fit."""
        chain, total = self.chain, np.zeros(len(offsets))
        for mine, room in zip(checked(self.mine), self.room, strict=True):
            own = offsets[:, mine]
            change = np.array([chain.change[i] + (chain.filler_change[i] if chain.filler[i] >= 0 else 0) for i in mine],
                              dtype=np.float64)  # amounts may be too large for whole numbers
            started = np.floor((own[:, :, None] - own[:, None, :]) / interval + 1e-9) + 1  # of the last axis, by then
            level = started @ change
            need = level - change + np.array([max(chain.take[i], chain.change[i] + chain.filler_take[i]) for i in mine],
                                            dtype=np.float64)
            peak = need.max(axis=1, initial=0)
            total += peak / max(room, 1)
            total[peak > room] = -np.inf
        return total

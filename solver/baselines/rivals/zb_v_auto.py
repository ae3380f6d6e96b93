"""The cost-aware scheduler for a V under a memory limit: every device's own times, eight settings, the best taken.

The program that the authors of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6, run in place of the
fixed ZB-V (sail-sg/zero-bubble-pipeline-parallelism, ``scheduler/zbv.py``), here with every stage's own durations and
transfers and every device's own memory:

* *warm-up*: the first micro-batch down and up; while it comes up, a device with enough memory runs further forwards of
  its first stage; then forwards of both stages in turn, until every device has run more of its second stage than the
  one before it;
* *rounds*: a gradient on every device, that of its first stage in the chain of gradients unless the other one has
  arrived; then a forward, of its second stage if that has arrived;
* *weight gradients* make room if memory is short and fill gaps; one that ends after its gap is run if the gap would
  make the device the one that was idle longest. Whether this applies before forwards, and before the gradients that go
  down, are the settings;
* each setting is run again with the idle times of the run before as the allowed ones, while that helps.

The program plans with the same durations for all stages; here each setting is tried with these and with the stages'
own. It assumes memory for p micro-batches. With less, the warm-up here ends early, and forwards wait for room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean

from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.baselines.lib.building_block import StepChain
from weft.solver.baselines.lib.choosing import best_of
from weft.solver.baselines.lib.extend import extended
from weft.solver.baselines.rivals.placing import NoRoom, Placing
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem

#: The most runs of a setting, each with the idle times of the run before: the program has no limit, two or three are
#: common; and the total number of operations that may be placed for more than one run each.
_RUNS, _WORK = 8, 1_200_000


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A pipeline with split backwards in a V: stage s of 2p on device s or 2p - 1 - s; the devices'
    capacities are respected.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else, or if no setting fits.
    """
    pipeline = require_training(problem, "v", split=True)
    chain = StepChain.of(pipeline)
    chains = dict.fromkeys((chain, _averaged(chain)))
    settings = product(chains, product((True, False), (True, False)))
    return best_of(problem, micro_batches, [
        partial(extended, problem, make=partial(_run, costs, setting)) for costs, setting in settings])


def _averaged(chain: StepChain) -> StepChain:
    """``chain`` with one duration for all forwards, one for all gradients, and so on, as in the program."""
    half = len(chain.steps) // 2
    backs = [time for time, filler in zip(chain.filler_duration, chain.filler, strict=True) if filler >= 0]
    sent = [chain.lag[i] for i in range(1, len(chain.steps)) if chain.device[i] != chain.device[i - 1]]
    forward, gradient, weight = fmean(chain.duration[:half]), fmean(chain.duration[half:]), fmean(backs)
    return replace(
        chain, duration=(forward,) * half + (gradient,) * half,
        filler_duration=tuple(weight if filler >= 0 else 0.0 for filler in chain.filler),
        lag=tuple(fmean(sent) if i and device != chain.device[i - 1] else 0.0 for i, device in enumerate(chain.device)))


def _run(chain: StepChain, setting: tuple[bool, bool], micro_batches: int) -> list[Row] | None:
    """The orders of one setting, run again while the longest idle time falls."""
    best: list[Row] | None = None
    allowed: list[float] | None = None
    for _ in range(max(1, min(_RUNS, _WORK // (8 * micro_batches * 6 * len(chain.room))))):
        scheduler = _VScheduler(chain, micro_batches, *setting, allowed)
        try:
            rows = scheduler.run()
        except NoRoom:
            return best
        if allowed is not None and max(scheduler.placing.idle) >= max(allowed):
            return best
        best, allowed = rows, scheduler.placing.idle
    return best


class _VScheduler:
    """One run of one setting; see the module.

    Device d of p runs four steps of the chain: its forwards d and 2p - 1 - d, its gradients 2p + d and 4p - 1 - d; the
    first of each pair comes on the way down the devices, the second on the way up.
    """

    def __init__(self, chain: StepChain, micro_batches: int, before_forwards: bool, before_gradients: bool,
                 allowed: Sequence[float] | None) -> None:
        self.chain, self.n, self.p = chain, micro_batches, len(chain.room)
        self.before_forwards, self.before_gradients = before_forwards, before_gradients
        self.allowed = allowed
        self.placing = Placing(chain, micro_batches)

    def run(self) -> list[Row]:
        """Per-device orders. Raises :class:`NoRoom`."""
        self._warm_up()
        left = 4 * self.p * self.n - sum(map(len, self.placing.ends))
        while left:
            checkpoint()
            self._gradients()
            self._forwards()
            before, left = left, 4 * self.p * self.n - sum(map(len, self.placing.ends))
            if left == before:
                raise NoRoom
        return self.placing.finish()

    def _forward(self, d: int, way: int) -> int:
        return 2 * self.p - 1 - d if way else d

    def _gradient(self, d: int, way: int) -> int:
        return 4 * self.p - 1 - d if way else 2 * self.p + d

    # -- warm-up -------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        placing, p = self.placing, self.p
        for d in range(p):
            placing.put(d)
        for d in reversed(range(p)):
            up = self._forward(d, 1)
            while self._has_time_and_room(d, placing.arrival(up)):
                for earlier in range(d + 1):
                    placing.put(earlier)
            placing.put(up)
        way = 0
        for d in range(1, p):
            while self._is_behind(d) and (self._further(d, way) or self._further(d, 1 - way)):
                way = 1 - way

    def _further(self, first: int, way: int) -> bool:
        """Place a forward of one way on the devices from ``first`` on if all have room; whether any ran."""
        placing, any_ran = self.placing, False
        steps = [self._forward(d, way) for d in reversed(range(first, self.p))]
        if not all(placing.count(step) == self.n or placing.fits(step) for step in steps):
            return False
        for step in steps:
            if placing.is_open(step):
                placing.put(step)
                any_ran = True
        return any_ran

    def _has_time_and_room(self, d: int, until: float) -> bool:
        """Whether device ``d`` has time for a further forward before ``until`` and will have room for the rest of the
        warm-up there: a forward of both stages for itself and for every device before it."""
        placing, chain = self.placing, self.chain
        both = chain.take[d] + chain.take[self._forward(d, 1)]
        return (placing.count(d) < self.n and placing.level[d] + (d + 1) * both <= placing.room[d]
                and placing.now[d] + chain.duration[d] <= until
                and all(placing.fits(earlier) and placing.count(earlier) < self.n for earlier in range(d)))

    def _is_behind(self, d: int) -> bool:
        """Whether device ``d`` has run fewer forwards than the one before, or no more of its second stage."""
        before, here = ([self.placing.count(self._forward(x, way)) for way in (0, 1)] for x in (d - 1, d))
        return sum(here) < sum(before) or here[1] <= before[1] < self.n

    # -- rounds --------------------------------------------------------------------------------------------------

    def _gradients(self) -> None:
        placing = self.placing
        ways = [self._way_of_gradient(d) for d in range(self.p)]
        for d in reversed(range(self.p)):
            if ways[d] == 1:
                self._put(d, self._gradient(d, 1), is_urgent=True)
        for d in range(self.p):
            if ways[d] == 0 and placing.is_open(self._gradient(d, 0)):
                self._put(d, self._gradient(d, 0), is_urgent=self.before_gradients)

    def _way_of_gradient(self, d: int) -> int | None:
        """Down unless the one that goes up has arrived; None if neither has."""
        placing, (down, up) = self.placing, (self._gradient(d, 0), self._gradient(d, 1))
        if placing.is_open(up):
            return 1
        if placing.count(down) < self.n:
            return 0  # the one that comes down may be placed earlier in this round
        return 1 if placing.count(up) < placing.count(down) and d + 1 < self.p else None

    def _forwards(self) -> None:
        placing = self.placing
        for d in range(self.p):
            down, up = self._forward(d, 0), self._forward(d, 1)
            step = up if placing.is_open(up) else down if placing.is_open(down) else None
            if step is None:
                continue
            while not self._may_run(d, step) and placing.waiting(d):
                placing.put_weight(d)
            if self._may_run(d, step):
                self._put(d, step, is_urgent=self.before_forwards)

    def _may_run(self, d: int, forward: int) -> bool:
        """Whether ``forward`` fits and leaves no micro-batch stuck.

        Forwards of the first stage could take all the room that the second stage needs for them to end. So they leave
        room for one of these, unless a micro-batch on the device has run both: its gradients give room back, and by
        induction over the micro-batches in flight, oldest first, it gets there.
        """
        placing, up = self.placing, self._forward(d, 1)
        if not placing.fits(forward):
            return False
        if forward == up or placing.count(up) > placing.count(self._gradient(d, 1)):
            return True
        return placing.level[d] + self.chain.change[forward] + self.chain.take[up] <= placing.room[d]

    def _put(self, d: int, step: int, is_urgent: bool) -> None:
        """Place ``step``, weight gradients in the gap before it; one beyond the gap only if ``is_urgent``."""
        placing = self.placing
        if not placing.is_open(step):
            return
        while not placing.fits(step):
            placing.put_weight(d)
        arrival = placing.arrival(step)
        placing.fill(d, arrival)
        if is_urgent:
            placing.fill_beyond(d, arrival, self._allowance(d))
        placing.put(step)

    def _allowance(self, d: int) -> float:
        """The further idle time of device ``d`` with which it is not yet the one that is idle longest."""
        longest = max(self.placing.idle)
        if self.allowed is not None:
            longest = max(longest, max(self.allowed) - self.allowed[d])
        return longest - self.placing.idle[d]

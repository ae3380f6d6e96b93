"""The automatic zero-bubble scheduler: one stage a device, any costs, a memory limit; the best of eight settings.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3 (the heuristic), and the authors' program
(sail-sg/zero-bubble-pipeline-parallelism, ``scheduler/zb.py``). Micro-batch after micro-batch, every device runs a
forward and an input gradient; weight gradients fill gaps and make room. The settings:

* *forwards before the first gradient*: as many as fit the memory and end before the gradient arrives, or one more,
  which delays it and leaves no gap;
* *gradients first*: a forward waits if the next device is far behind with its forwards and would send its next gradient
  in the meantime;
* *no gap*: a weight gradient also fills a gap that is shorter than itself, although other devices have been idle for
  longer (otherwise only if the gap would make this device the one that is idle longest).

The memory is the problem's own, device by device, and so are durations and transfers; the settings are compared by
their makespan. With ample memory and equal costs it is ZB-H2, with the memory of 1F1B it is ZB-H1.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.baselines.lib.building_block import StepChain
from weft.solver.baselines.lib.choosing import best_of
from weft.solver.baselines.lib.extend import extended
from weft.solver.baselines.rivals.placing import NoRoom, Placing
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A pipeline with split backwards and one stage on each device, in device order; the devices'
    capacities are respected.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else, or if no setting fits.
    """
    pipeline = require_training(problem, "chain", split=True)
    chain = StepChain.of(pipeline)
    settings = product((True, False), (True, False), (True, False))
    return best_of(problem, micro_batches, [
        partial(extended, problem, make=partial(_run, chain, setting)) for setting in settings])


def _run(chain: StepChain, setting: tuple[bool, bool, bool], micro_batches: int) -> list[Row] | None:
    try:
        return _ChainScheduler(chain, micro_batches, *setting).run()
    except NoRoom:
        return None


class _ChainScheduler:
    """One setting of the heuristic; see the module."""

    def __init__(self, chain: StepChain, micro_batches: int, in_time: bool, gradients_first: bool,
                 no_gap: bool) -> None:
        self.chain, self.n = chain, micro_batches
        self.in_time, self.gradients_first, self.no_gap = in_time, gradients_first, no_gap
        self.stages = len(chain.room)
        self.placing = Placing(chain, micro_batches)

    def run(self) -> list[Row]:
        """Per-device orders. Raises :class:`NoRoom`."""
        self._warm_up()
        for _ in range(1, self.n):
            for s in self._wanted_forwards():
                self._put(s, s)
            for s in reversed(range(self.stages)):
                if s == 0 and self.placing.count(0) == self.n:
                    while self.placing.waiting(0):  # the last device in the chain of gradients has no dependents
                        self.placing.put_weight(0)
                self._put(s, self._gradient(s))
        return self.placing.finish()

    def _gradient(self, s: int) -> int:
        """The step in which stage ``s`` runs its gradient."""
        return 2 * self.stages - 1 - s

    def _put(self, s: int, step: int) -> None:
        """Place ``step`` on device ``s``, weight gradients in the gap before it."""
        placing = self.placing
        while not placing.fits(step):
            placing.put_weight(s)
        arrival = placing.arrival(step)
        placing.fill(s, arrival)
        allowance = 0.0 if self.no_gap else max(placing.idle) - placing.idle[s]
        placing.fill_beyond(s, arrival, allowance)
        placing.put(step)

    def _warm_up(self) -> None:
        """The first forward of all, further ones before the first gradient, and that."""
        placing = self.placing
        for s in range(self.stages):
            placing.put(s)
        more = self._further_forwards()
        for s in range(self.stages):
            for _ in range(more[s]):
                placing.put(s)
        for s in reversed(range(self.stages)):
            placing.put(self._gradient(s))

    def _further_forwards(self) -> list[int]:
        """The number of forwards that each device runs between its first one and its first gradient.

        They fill the time until the gradient arrives; every device runs more of them than the next one, unless all
        micro-batches have started.
        """
        chain, more = self.chain, [0] * self.stages
        last = self.stages - 1
        sent = self.placing.now[last] + chain.duration[self._gradient(last)]
        for s in reversed(range(last)):
            arrival = sent + chain.lag[self._gradient(s)]
            level, time = self.placing.level[s], self.placing.now[s]
            while 1 + more[s] < self.n and level + chain.take[s] <= self.placing.room[s]:
                if time >= arrival or (self.in_time and time + chain.duration[s] > arrival):
                    break
                level += chain.change[s]
                time += chain.duration[s]
                more[s] += 1
            sent = max(time, arrival) + chain.duration[self._gradient(s)]
        for s in range(1, self.stages):
            while more[s] and more[s] >= more[s - 1] and 1 + more[s] < self.n:
                more[s] -= 1
            more[s] = min(more[s], more[s - 1])
        return more

    def _wanted_forwards(self) -> list[int]:
        """The devices that run a forward now: those that are due for one, if all after them are as well."""
        wanted = [self.placing.count(s) < self.n and not self._holds_back(s) for s in range(self.stages)]
        for s in reversed(range(self.stages - 1)):
            wanted[s] = wanted[s] and wanted[s + 1]
        return [s for s, is_wanted in enumerate(wanted) if is_wanted]

    def _holds_back(self, s: int) -> bool:
        """Whether device ``s`` waits with its forward for the gradient that the next device is about to send."""
        placing, chain = self.placing, self.chain
        if not self.gradients_first or s + 1 == self.stages or placing.count(s) < placing.count(s + 1) + 2:
            return False
        gradient = self._gradient(s + 1)
        sent = placing.now[s + 1] + chain.duration[s + 1] + chain.duration[gradient] + chain.lag[gradient + 1]
        if placing.now[s] >= sent:
            return True
        time = placing.now[s] + placing.weights_before(s)
        if time + chain.duration[s] <= sent:
            return False
        return sent - placing.now[s] <= max(placing.idle) - placing.idle[s]

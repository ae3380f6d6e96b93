"""Memory plans of a chain, one after another, until what stages are measured to hold fits.

A plan counts what operators keep, but not what passes need meanwhile, nor messages, and some things twice: so the next
one is made for as many bytes less than there are, or more, as the last one was measured to hold beyond what it says.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.solver.placement.memory.plan import MemoryPlan, Mode
from weft.solver.placement.memory.plan_memory import NoMemoryPlan

__all__ = ["MemoryRounds"]

#: Plans that are tried at most; the share of memory that may stay free; and how much more a plan is made for where
#: there is none, as plans count some things twice.
ROUNDS, SPARE, MORE = 5, 0.04, 1.2


class MemoryRounds:
    """``plan`` makes a memory plan for so many bytes, ``memory`` is what there is. :meth:`following` is the next plan
    to measure, then :meth:`learn` hears the bytes that its fullest stage held; ``reason`` is why there is none."""

    def __init__(self, plan: Callable[[int], MemoryPlan], memory: int) -> None:
        self.plan, self.memory, self.budget = plan, memory, memory
        self.reason: NoMemoryPlan | None = None
        self.tried: list[tuple[tuple[int, ...], tuple[Mode, ...]]] = []
        self._made, self._needs, self._fits, self._done = 0, 0, False, False

    def following(self) -> MemoryPlan | None:
        """The next plan; ``None`` if that is enough, or there is none."""
        while self._made < ROUNDS and not self._done and self.budget > 0:
            self._made += 1
            try:
                found = self.plan(self.budget)
            except NoMemoryPlan as error:
                self.reason = self.reason or error
                if self.tried:
                    return None
                self.budget = int(self.budget * MORE)
                continue
            if (found.cuts, found.modes) in self.tried:
                if self._fits:
                    return None
                self.budget = min(self.budget, self._needs) - max(1, self.memory // 50)
                continue
            self.tried.append((found.cuts, found.modes))
            self._needs = max(stage.memory for stage in found.stages)
            return found
        return None

    def learn(self, peak: int) -> None:
        """The fullest stage of the last plan held ``peak`` bytes."""
        free = self.memory - peak
        if free >= 0:
            self._fits = True
            self._done = free <= SPARE * self.memory or all(mode == "keep" for mode in self.tried[-1][1])
        self.budget = self._needs + free - self.memory // 200

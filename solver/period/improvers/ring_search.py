"""Local search over the rings of the devices: two neighbouring runs of a ring change places.

The order of a device determines which block it runs after which in a period, and of which micro-batch; the least period
of such orders is the largest ratio of a cycle of waits (:func:`weft.solver.period.periodic.in_order`), and the memory
levels follow from them. The moves, and the annealing, are those of whole schedules
(:mod:`weft.solver.orders.local_search`): mostly where the critical cycle goes from one operation to the next of a
device. The begin of a period is arbitrary, so an operation that leaves it at one end enters at the other, for the next
micro-batch or the one before.
"""

from __future__ import annotations

from math import ceil
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.orders.local_search import LocalSearch
from weft.solver.period.bracket import Bracket
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, in_order
from weft.solver.period.technique import Improver, Task
from weft.solver.ticks import TickProblem


class RingSearch(Improver):
    """A few rounds from the best; the next run continues with other random moves."""

    name: ClassVar[str] = "ring-search"

    def __init__(self, instance: TickProblem) -> None:
        self._instance = instance
        self._known: Periodic | None = None
        self._search: LocalSearch | None = None

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None if lanes share a memory: its level hangs on times."""
        return None if bracket.instance.mixed_pools else cls(bracket.instance)

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Takes some of the time left, more for more blocks; rounds without success end it."""
        search = self._begun(bracket, time.budget)
        now = time.budget.slice(min(time.left * PARAMETERS.improvers,
                                    len(bracket.best.starts) * PARAMETERS.ring_block))
        search.idle = 0
        while not now.spent and search.idle < PARAMETERS.ring_idle and (
                bracket.refuted < ceil(bracket.best.period) - 1):
            if search.round(now):
                found = in_order(self._instance, search.orders(), bracket.best.micro_batches_per_period)
                if found is not None:
                    bracket.offer(found, self.name)
        self._known = bracket.best

    def _begun(self, bracket: Bracket, budget: Budget) -> LocalSearch:
        """The search, from the best period."""
        if self._search is None:
            self._search = LocalSearch(self._instance, 1, budget, "period")
        if bracket.best is not self._known:
            self._search.begin(bracket.best.rings)
        return self._search

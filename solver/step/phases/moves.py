"""Local search of the whole schedule: single operations and runs moved along the critical path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.solver.orders.local_search import LocalSearch
from weft.solver.step.state import State

#: Up to so many operations. A longer schedule is improved through its period and its ends.
_MOST_OPERATIONS = 200_000
#: The same for spans, which are found anew for every move.
_MOST_FOR_SPANS = 20_000


@dataclass(frozen=True)
class Moves:
    """``at_most`` deterministic seconds, and no more than ``share`` of what is left; by default as long as there is
    time. Rounds without success end it after ``idle`` of them."""

    name: ClassVar[str] = "local search"
    vital: ClassVar[bool] = False

    at_most: float = float("inf")
    share: float | None = None
    idle: float = float("inf")

    def due(self, state: State) -> bool:
        """Where a shorter makespan or span is possible; spans where no lanes share a memory that hangs on times."""
        most = {"makespan": _MOST_OPERATIONS, "span": 0 if state.instance.mixed_pools else _MOST_FOR_SPANS}
        return (not state.done and state.incumbent.best is not None
                and state.operations <= most.get(state.incumbent.goal.name, 0))

    def steps(self, state: State) -> Iterator[None]:
        """One step for every round."""
        incumbent = state.incumbent
        time = state.budget.slice(self.at_most, share=self.share)
        search, known = LocalSearch(state.instance, state.micro_batches, state.budget,
                                    state.incumbent.goal.name), None
        while not state.done and search.idle < self.idle:
            if incumbent.orders is not known:
                known = incumbent.orders
                if not search.begin(known):
                    return
            before = search.makespan
            with state.budget.limited():
                search.round(time)
            if search.makespan < before and incumbent.offer(search.orders(), "weft"):
                known = incumbent.orders
            yield
            if time.spent:
                return

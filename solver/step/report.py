"""The report of a step's search: progress for a listener, faults that it survived, and the final ``solver`` entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from weft.solver.control.counts import Counts, History
from weft.solver.control.version import VERSION
from weft.solver.cpsat.budget import Budget
from weft.solver.period.bracket import Bracket
from weft.solver.schedule import Schedule
from weft.solver.step.goals import StepGoal
from weft.solver.step.proven import Proven


@dataclass(frozen=True)
class Progress:
    """Where a search stands: the best schedule so far, the proven bound on its makespan, and what it is doing."""

    best: Schedule
    elapsed: float
    phase: str


class SearchReport:
    """What is said of one search. ``stopped``: which phases ended by which faults; ``unheard``: what the listener
    raised; ``techniques``: calls, successes and seconds of those of the period search."""

    def __init__(self, budget: Budget, on_progress: Callable[[Progress], None]) -> None:
        self.budget = budget
        self.on_progress = on_progress
        self.history = History()
        self.stopped: list[str] = []
        self.techniques = Counts()
        self.unheard: Exception | None = None

    def tell(self, best: Schedule, phase: str) -> None:
        """Tell the listener where the search stands."""
        progress = Progress(best, self.budget.elapsed, phase)
        try:
            self.on_progress(progress)
        except Exception as fault:
            self.unheard = fault
            raise

    def note(self, phase: str, fault: Exception) -> None:
        """Remember a fault that the search survives."""
        self.stopped.append(f"{phase}: {type(fault).__name__}: {fault}")

    def summed_up(self, best: Schedule, proven: Proven, periods: Bracket | None, goal: StepGoal) -> Schedule:
        """``best`` with all that has been proven, and in its ``solver`` entry how the search went."""
        bound = min(best.makespan, proven.makespan)
        value_bound = min(best.value, proven.of(goal.name))
        if isfinite(best.value):
            self.history.record(self.budget.elapsed, best.value, value_bound)
        period_bound = None
        if periods is not None and best.period is not None:
            copies = 1 if best.repetend is None else best.repetend.micro_batches
            period_bound = min(best.period, proven.rate(proven.rate_bounds[copies]))
        return Schedule(best.problem, best.micro_batches, best.operations, bound, best.period, period_bound,
                        best.repetend, solver={
                            **best.solver, **self._run(), "steady_bound": proven.rate(proven.steady_bound),
                            **goal.stated(best.value, value_bound), "history": self.history.to_json(),
                            **_of_period(proven, periods),
                            **({} if periods is None else {"techniques": self.techniques.to_json()})})

    def _run(self) -> dict[str, object]:
        """The settings and the outcome of the search."""
        return {
            "seconds": round(self.budget.elapsed, 3),
            "seed": self.budget.seed,
            "version": VERSION,
            "workers": self.budget.workers,
            "deterministic_seconds": round(self.budget.deterministic_used, 3),
            **({"interrupted": True} if self.budget.interrupted else {}),
            **({"stopped": "; ".join(self.stopped)} if self.stopped else {}),
        }


def _of_period(proven: Proven, periods: Bracket | None) -> dict[str, object]:
    """The results of the search for periods of one micro-batch, if there was one."""
    if periods is None:
        return {}
    period = proven.instance.time(periods.best.period)
    return {"repetend_period": period, "repetend_period_bound": min(period, proven.rate(periods.refuted)),
            "repetend_proven": periods.proven}

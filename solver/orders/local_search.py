"""Local search of whole schedules, in rounds: each starts from the best orders and cools down once.

A round is a number of moves (:mod:`weft.solver.orders.twin` says which). Rounds that find nothing are followed by
longer ones; hot rounds, which forget where they began, take turns with cool ones, which do not. For a seed and a number
of rounds the answer is always the same.
"""

from __future__ import annotations

import warnings
from functools import cache

from weft.solver.control import compiled
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.orders.native import NativeKernel
from weft.solver.orders.tables import Tables
from weft.solver.orders.timed_rows import NEVER
from weft.solver.orders.twin import TwinKernel
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

#: Moves of the first round, and how often that may double. Rounds of 50,000 do as well as longer ones after the same
#: time on the generated suite, and a short first one finds most of the gain.
_FIRST_ROUND, _DOUBLINGS = 12_500, 4
#: Where rounds begin and end, in mean durations of a block: from a known schedule of the demo's model 1 ends at 875 to
#: 894 ms within 0.2 s, 0.1 at 915 to 932. Periods want it hotter: 3 ends at 648 on 16 devices in a V, 1 at 667.
_HOT = {"makespan": (1.0, 0.3), "span": (1.0, 0.3), "period": (3.0, 1.0)}
_COLD = {"makespan": 0.03, "span": 0.03, "period": 0.1}
#: Ticks that a unit of memory too much is charged, in mean durations for the largest amount that a block takes.
_PENALTY = 10.0
#: CPU seconds of a move: for itself, and for each operation of the schedule (for the few of a pipeline that it changes
#: and the critical path); where lanes share a memory all operations are timed anew.
_PER_MOVE, _PER_OPERATION, _PER_TIMED = 1.0e-6, 3e-9, 5e-8
#: The same where cycles are looked for, for each operation of a row.
_PER_CYCLE = 8e-8
#: Ticks are so many times finer for a span or a period, which are counted in whole ones: those are fractions, mostly
#: with small denominators.
_FINER = 60
#: How many times as long the twin takes.
_TWIN = 60
#: Deterministic seconds of a CPU second where CP-SAT's count alone: one of CP-SAT's takes about three, models of
#: schedules built and loaded.
_DETERMINISTIC = 1 / 3
#: Between two looks at the clock pass about so many CPU seconds.
_BETWEEN = 0.01


@cache
def _notice(why: str) -> None:
    """Say once that there is no binary."""
    warnings.warn(f"the compiled kernel is not used, as {why}; local search runs in Python, a hundred times slower",
                  RuntimeWarning, stacklevel=3)


def kernel_of(tables: Tables) -> NativeKernel | TwinKernel:
    """The compiled kernel, or where there is none its twin in Python."""
    why = compiled.why_not()
    if why is None:
        return NativeKernel(tables)
    _notice(why)
    return TwinKernel(tables)


class LocalSearch:
    """The local search of one problem. ``idle``: rounds since the last better schedule."""

    def __init__(self, instance: TickProblem, micro_batches: int, budget: Budget, objective: str = "makespan") -> None:
        self.budget = budget
        instance = instance if objective == "makespan" else instance.refined(_FINER)
        self.tables = Tables(instance, micro_batches, objective)
        self.kernel = kernel_of(self.tables)
        self.mean = sum(instance.durations) / len(instance.durations)
        self.idle = 0
        self._rounds, self._hot, self._cold = 0, _HOT[objective], _COLD[objective]
        operations = micro_batches * len(instance.durations)
        if objective != "makespan":
            self._seconds = _PER_MOVE + micro_batches * int(self.tables.row_begin[-1]) * _PER_CYCLE
        else:
            self._seconds = _PER_MOVE + operations * (_PER_TIMED if instance.mixed_pools else _PER_OPERATION)
        if isinstance(self.kernel, TwinKernel):
            self._seconds *= _TWIN
        self._charged = _DETERMINISTIC * budget.pace.second * self._seconds
        largest = max([1, *(max(take.values(), default=0) for take in instance.take)])
        self._penalty = _PENALTY * self.mean / largest

    def begin(self, orders: Orders) -> bool:
        """Go on from ``orders``; whether they can be run."""
        return self.kernel.set(self.tables.flat(orders))

    @property
    def makespan(self) -> int:
        """The least makespan found of orders that fit, in ticks."""
        return self.kernel.best

    @property
    def cost(self) -> float:
        """What moves are to lower: the makespan of the orders at hand, in the problem's time unit, and what is charged
        for memory that they lack."""
        return float(self.tables.instance.tick) * (self.kernel.makespan + self._penalty * self.kernel.overflow)

    def orders(self) -> Orders:
        """The best orders that fit, with waits where lanes share a memory."""
        if self.makespan == NEVER:
            raise ValueError("no orders that fit are known")
        self.kernel.back_to_best()
        return self.tables.with_waits(self.kernel.best_rows, self.kernel.starts)

    @property
    def fits(self) -> bool:
        """Whether there are orders yet that fit."""
        return self.kernel.best < NEVER

    def round(self, time: Slice, moves: int | None = None) -> bool:
        """One round of so many ``moves`` within ``time``; whether it found better orders. By default rounds get longer
        as long as they find nothing."""
        if moves is None:
            moves = _FIRST_ROUND << min(self.idle // len(self._hot), _DOUBLINGS)
        moves = max(_FIRST_ROUND // 10, int(min(moves, time.left / self._charged)))
        hot, cold = self.mean * self._hot[self._rounds % len(self._hot)], self.mean * self._cold
        few = max(16, int(_BETWEEN / self._seconds))
        before, seed = self.kernel.best, self.budget.seed * 1_000_003 + self._rounds
        self._rounds += 1
        for done in range(0, moves, few):
            if self.budget.spent:
                break
            now = min(few, moves - done)
            start, end = (hot * (cold / hot) ** (at / moves) for at in (done, done + now))
            self.kernel.anneal(now, start, end, self._penalty, seed * 1_000_003 + done)
            self.budget.deterministic_used += now * self._charged
        self.kernel.back_to_best()
        better = self.kernel.best < before
        self.idle = 0 if better else self.idle + 1
        return better

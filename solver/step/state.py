"""All that the phases of a step's search share: the problem, the budget, the bounds, the best schedule, the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from math import ceil

from weft.solver.control.clock import unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.period.bracket import Bracket
from weft.solver.problem import Problem
from weft.solver.relations.implied_order import Order
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.schedule import Schedule
from weft.solver.step.goals import goal_of
from weft.solver.step.incumbent import Incumbent
from weft.solver.step.proven import Proven
from weft.solver.step.report import Progress, SearchReport
from weft.solver.ticks import TickProblem

#: Schedules with more operations than this are refused: unroll a smaller one instead.
MAX_OPERATIONS = 2_000_000

#: From so many operations (each counted on all its devices), or blocks, on a first schedule is offered before anything
#: else is looked at.
_MANY_OPERATIONS, _MANY_BLOCKS = 10_000, 500
#: The share of the time left that the bounds may take of a search of many operations.
_BOUND_SHARE = 0.2


def is_large(problem: Problem, micro_batches: int) -> bool:
    """Whether bounds and known schedules take so long that a first schedule is offered before them."""
    places = sum(len(block.devices) for block in problem.blocks)
    return micro_batches * places > _MANY_OPERATIONS or len(problem.blocks) > _MANY_BLOCKS


class State:
    """What a search of ``micro_batches`` micro-batches knows, and what it may spend.

    ``periods``: what is known of periods of one micro-batch, once they are looked for. ``phase``: what is under way.
    Raises ``ValueError`` for a number of micro-batches out of range, and for an objective that means nothing here.
    """

    def __init__(self, problem: Problem, micro_batches: int, budget: Budget,
                 on_progress: Callable[[Progress], None] = lambda _: None, start: Schedule | None = None,
                 objective: str = "makespan") -> None:
        goal = goal_of(objective)
        if micro_batches < 1:
            raise ValueError(f"micro_batches is {micro_batches}, it must be at least 1")
        if micro_batches * len(problem.blocks) > MAX_OPERATIONS:
            raise ValueError(f"{micro_batches} micro-batches of {len(problem.blocks)} blocks are more than "
                             f"{MAX_OPERATIONS} operations; solve for fewer and stretch the schedule with weft.unroll")
        self.problem = problem
        self.micro_batches = micro_batches
        self.budget = budget
        self.instance = TickProblem.of(problem)
        with unwatched():  # this much is done in any case
            if objective == "rate" and not self.repeats:
                raise ValueError(f"{problem.name}: the objective 'rate' means nothing here: a micro-batch does not "
                                 "give back what it takes, or gives before it takes, so there is no steady state")
        self.report = SearchReport(budget, on_progress)
        self.proven = Proven(self.instance, micro_batches)
        self.objective = objective
        self.phase = "bound"
        if not self.is_large:
            self.raise_bounds()
        self.phase = "baselines"
        self.periods: Bracket | None = None
        given = start is not None and (objective != "makespan" or start.objective != "makespan")
        self.incumbent = Incumbent(self.proven, budget, self.tell, None if given else start, goal)
        if start is not None and given:  # it was timed for something else
            self.incumbent.offer([[operation[:2] for operation in row] for row in start.device_orders], "weft")

    @property
    def repeats(self) -> bool:
        """Whether there can be a steady state: micro-batches give back what they take, and take it first."""
        return self.instance.balanced and takes_before_giving(self.instance)

    @property
    def least(self) -> int | Fraction:
        """The proven bound on the objective of a stretch that is ordered anew, in ticks."""
        return self.proven.span_bound if self.objective == "span" else ceil(self.proven.bound)

    @property
    def implied(self) -> Order:
        """Operations that precede others in every schedule."""
        return self.proven.implied

    @property
    def operations(self) -> int:
        """How many operations a schedule has."""
        return self.micro_batches * len(self.problem.blocks)

    @property
    def is_large(self) -> bool:
        """See :func:`is_large`."""
        return is_large(self.problem, self.micro_batches)

    @property
    def done(self) -> bool:
        """Whether the best is proven optimal, or time is over."""
        return self.incumbent.optimal or self.budget.spent

    @property
    def settled(self) -> bool:
        """Whether no steady state is left to look for: a proven optimum without one may be matched by one with."""
        best = self.incumbent.best
        return self.budget.spent or (self.done and best is not None and best.period is not None)

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """A fault in what is done inside is noted and no more: it is no reason to lose the best. What the listener
        raises is for the caller who gave it."""
        try:
            yield
        except Exception as fault:
            if fault is self.report.unheard:
                raise
            self.note(fault)

    def note(self, fault: Exception) -> None:
        """Remember a fault that the search survives."""
        self.report.note(self.phase, fault)

    def raise_bounds(self) -> None:
        """Raise the bounds by all arguments, or as many as there is time for."""
        with self.budget.limited(_BOUND_SHARE), self.surviving():
            self.proven.raise_by_all(self.objective)

    def raise_bound(self, bound: int | Fraction) -> None:
        """Take over a bound on the objective, in ticks, and tell the listener of a better one."""
        if self.proven.raise_to(bound, self.objective):
            self.tell()

    def tell(self) -> None:
        """Tell the listener where the search stands."""
        self.report.tell(self.result(), self.phase)

    def result(self) -> Schedule:
        """The best schedule, with all that has been proven. Raises
        :class:`~weft.solver.feasibility.infeasible.NoneFound` where there is none."""
        if self.incumbent.best is None:
            raise self.none_found()
        return self.report.summed_up(self.incumbent.best, self.proven, self.periods, self.incumbent.goal)

    def none_found(self) -> NoneFound:
        """The error for no schedule, and no proof that there is none."""
        return NoneFound(f"{self.problem.name}: no schedule of {self.micro_batches} micro-batches that fits the "
                         "devices' memory was found within the limit, and it is not proven that there is none; give it "
                         "more time or memory")

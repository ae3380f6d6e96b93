"""Objectives of a step: how its orders are timed, their value, and which of two is better.

* *makespan*: the latest end; each operation as early as its order allows.
* *span*: how soon the next step can begin (:mod:`weft.solver.relations.spans`); of equals, the shorter makespan.
* *rate*: the time per micro-batch of the steady state in it; of equals, the shorter makespan.

To add one: a class like these, a line in :data:`GOALS`, a bound in :class:`~weft.solver.step.proven.Proven`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.solver.judge.spans import span_of
from weft.solver.problem import Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.pool_pass import fits_pools
from weft.solver.relations.spans import Spans
from weft.solver.schedule import OBJECTIVES, Operation, Schedule, latest_end
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

if TYPE_CHECKING:
    from weft.solver.step.order_model import Improvement


class StepGoal:
    """The least makespan. ``polishes``: whether any stretch is ordered anew, or warm-up and cool-down alone."""

    name = "makespan"
    polishes = True

    def reorder(self, *stretch: Any, **limits: Any) -> Improvement:
        """A stretch ordered anew: :func:`weft.solver.step.order_model.reorder`, with its arguments."""
        from weft.solver.step.order_model import reorder

        return reorder(*stretch, **limits)

    def timed(self, instance: TickProblem, micro_batches: int, orders: Orders) -> Sequence[Operation]:
        """The times of all operations under ``orders``."""
        return time_orders(instance.problem, micro_batches, orders)

    def value(self, problem: Problem, micro_batches: int, operations: Sequence[Operation],
              period: float | None) -> float:
        """Their value, in the problem's time unit; ``period`` is that of their steady state, if any."""
        return latest_end(operations)

    def stated(self, value: float, bound: float) -> dict[str, Any]:
        """The entries of a schedule's ``solver`` for its value, and for the bound on it."""
        return {}


class Span(StepGoal):
    """The least span. Where lanes share a memory that its times do not fit, orders keep those of the least makespan."""

    name = "span"

    def reorder(self, *stretch: Any, **limits: Any) -> Improvement:
        from weft.solver.step.span_model import reorder_for_span

        limits.pop("relaxation", None)  # its models ask for constants: CP-SAT is left to itself
        return reorder_for_span(*stretch, **limits)

    def timed(self, instance: TickProblem, micro_batches: int, orders: Orders) -> Sequence[Operation]:
        spans = Spans(FixedOrder(instance, micro_batches, orders))
        span = spans.least()
        if instance.mixed_pools and not fits_pools(instance, spans.starts(span)):
            return super().timed(instance, micro_batches, orders)
        return time_orders(instance.problem, micro_batches, orders, spans.times(span))

    def value(self, problem: Problem, micro_batches: int, operations: Sequence[Operation],
              period: float | None) -> float:
        return span_of(Schedule(problem, micro_batches, tuple(operations), 0.0))[0]

    def stated(self, value: float, bound: float) -> dict[str, Any]:
        return {"objective": self.name, "span": value, "span_bound": bound}


class Rate(StepGoal):
    """The least time per micro-batch of the steady state; infinity without one."""

    name = "rate"
    polishes = False

    def value(self, problem: Problem, micro_batches: int, operations: Sequence[Operation],
              period: float | None) -> float:
        return float("inf") if period is None else period

    def stated(self, value: float, bound: float) -> dict[str, Any]:
        return {"objective": self.name, "steady_bound": bound}


#: By name.
GOALS: Mapping[str, StepGoal] = {goal.name: goal for goal in (StepGoal(), Span(), Rate())}


def goal_of(objective: str) -> StepGoal:
    """The goal of that name. Raises ``ValueError`` for an objective that no step has."""
    if objective not in GOALS:
        raise ValueError(f"objective is {objective!r}, it must be one of {', '.join(GOALS)}" + (
            "; a latency is searched for by weft.latency or weft.solve" if objective in OBJECTIVES else ""))
    return GOALS[objective]


def timed_for(schedule: Schedule, objective: str) -> Schedule:
    """``schedule`` with its operations timed for ``objective`` under the orders that they have, and its value stated;
    nothing is proven of that. Raises ``ValueError`` as :func:`goal_of`."""
    goal, instance = goal_of(objective), TickProblem.of(schedule.problem)
    operations = goal.timed(instance, schedule.micro_batches, schedule.orders)
    value = goal.value(schedule.problem, schedule.micro_batches, operations, schedule.period)
    return schedule.with_operations(operations).with_solver(**goal.stated(value, 0.0))

"""The best schedule of a step so far: an offered schedule is timed, judged, and kept if it is better."""

from __future__ import annotations

from collections.abc import Callable

from weft.solver.control.clock import unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import InvalidSchedule, validate
from weft.solver.period.periodic import Periodic, repeat
from weft.solver.pools import peak_of
from weft.solver.relations.pool_pass import paced
from weft.solver.schedule import RELATIVE_TOLERANCE, Repetend, Schedule, latest_end
from weft.solver.step.goals import GOALS, StepGoal
from weft.solver.step.proven import Proven
from weft.solver.timing import Orders

#: What follows a search (summing up, writing) takes at most so many times as long as making, timing and judging a
#: schedule (0.6 times for two million operations), and is left at most this share of the time.
_AFTERWARDS, _MOST_AFTERWARDS = 1.5, 0.4


class Incumbent:
    """The best schedule so far: ``best`` (``None`` before the first) and its device orders, ``orders``.

    What is better is said by ``goal``. ``on_better`` is called whenever there is a better one. ``pace``: the seconds
    that timing and judging a schedule take, where that is long.
    """

    def __init__(self, proven: Proven, budget: Budget, on_better: Callable[[], None],
                 start: Schedule | None = None, goal: StepGoal = GOALS["makespan"]) -> None:
        self.proven = proven
        self.goal = goal
        self.instance = proven.instance
        self.micro_batches = proven.micro_batches
        self.budget = budget
        self.on_better = on_better
        self.pace = 0.0
        self.best = start
        self.orders: Orders = () if start is None else start.orders

    @property
    def optimal(self) -> bool:
        """Whether the best meets the bound. (``best`` itself carries the bound of the moment when it was found.) One of
        the best rate must meet that on the makespan as well: only then is nothing left to look for."""
        best, proven = self.best, self.proven
        return (best is not None and best.value <= proven.of(self.goal.name) * (1 + RELATIVE_TOLERANCE)
                and (self.goal.name != "rate" or best.makespan <= proven.makespan * (1 + RELATIVE_TOLERANCE)))

    @property
    def name(self) -> str | None:
        """The name of the technique that made the best; ``None`` without a best."""
        return None if self.best is None else str(self.best.solver.get("name"))

    def fits(self, orders: Orders) -> bool:
        """Whether every device's memory holds what it runs in this order, paced for its lanes where it has any."""
        of = self.instance
        devices = zip(orders, of.take, of.change, of.capacity, strict=True)
        return all(capacity is None or peak_of(row, take, change) <= capacity for row, take, change, capacity in devices
                   ) and paced(self.instance, self.micro_batches, orders) is not None

    def offer_repeated(self, found: Periodic) -> None:
        """Offer ``found`` repeated, if there are enough micro-batches for a whole period."""
        if self.micro_batches // found.micro_batches_per_period > found.depth:
            self.offer_repetend(repeat(found, self.micro_batches), found)

    def offer_repetend(self, orders: Orders, found: Periodic, edge: int = 0) -> None:
        """Offer a schedule with ``found`` in its middle, ``edge`` periods at either end excepted."""
        first = found.depth + edge
        count = self.micro_batches // found.micro_batches_per_period - edge - first
        self.offer(orders, "weft", Repetend(first, count, found.micro_batches_per_period), found)

    def offer(self, orders: Orders, name: str, repetend: Repetend | None = None, found: Periodic | None = None) -> bool:
        """Time, judge and keep a schedule if it is the best so far and fits; of equals, one with a steady state. Where
        there is no time left for that, a first one only. Whether it was kept."""
        if self.best is not None and self.pace and self.budget.left < self.pace:
            return False
        with unwatched():  # the budget keeps time free for it
            return self._offer(orders, name, repetend, found)

    def _offer(self, orders: Orders, name: str, repetend: Repetend | None, found: Periodic | None) -> bool:
        problem, goal = self.instance.problem, self.goal
        slower = paced(self.instance, self.micro_batches, orders)
        if slower is None:  # lanes share a memory that this order leaves no way to keep
            return False
        orders = slower
        operations = goal.timed(self.instance, self.micro_batches, orders)
        makespan = latest_end(operations)
        period = None if found is None else self.instance.time(found.rate)
        value = goal.value(problem, self.micro_batches, operations, period)
        if self.best is not None and not self._is_better(value, makespan, found is not None):
            return False
        schedule = Schedule(
            problem, self.micro_batches, operations,
            makespan_bound=min(makespan, self.proven.makespan),
            period=period,
            repetend=repetend,
            solver={"name": name, **goal.stated(value, min(value, self.proven.of(goal.name)))},
        )
        try:
            validate(schedule)
        except InvalidSchedule:
            if name == "weft" and not self.instance.mixed_pools:
                raise
            return False  # a published schedule that does not fit, or one that does in rounded ticks alone
        self.best, self.orders = schedule, orders
        self.on_better()
        return True

    def _is_better(self, value: float, makespan: float, is_steady: bool) -> bool:
        """Whether to keep it over the best: by value, then by makespan, then for its steady state."""
        assert self.best is not None
        for mine, best in ((value, self.best.value), (makespan, self.best.makespan)):
            if mine < best * (1 - RELATIVE_TOLERANCE):
                return True
            if mine > best * (1 + RELATIVE_TOLERANCE):
                return False
        return is_steady and self.best.period is None

    def keep_time_afterwards(self, seconds: float) -> None:
        """Keep time free for what follows the search, as timing and judging one schedule takes ``seconds``."""
        self.pace = seconds
        self.budget.reserve = max(self.budget.reserve,
                                  min(_AFTERWARDS * seconds, _MOST_AFTERWARDS * self.budget.seconds))

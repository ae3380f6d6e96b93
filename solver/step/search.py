"""The search: baselines first, then the repetend, its completion and, while time is left, the whole schedule.

Every schedule that improves on the best so far is timed, judged and reported before the search goes on, so whoever
stops it (a time limit, Ctrl-C) has a valid schedule with a proven bound. Nor does a fault in one of the phases take
that away: the phase ends, the others go on, and the result says so (``solver["stopped"]``).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from operator import itemgetter

from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.baselines.lib.sequential import in_sequence
from weft.solver.bounds import makespan_bound, steady_bound
from weft.solver.bounds.load import exact_load, exact_load_bound, work_bound
from weft.solver.bounds.windows import rolling_bounds
from weft.solver.control.clock import checkpoint, unwatched
from weft.solver.control.history import History
from weft.solver.control.stopping import STOP, breakable
from weft.solver.cpsat.solve import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound, require_room
from weft.solver.feasibility.memory_order import device_rows
from weft.solver.period.bracket import Bracket
from weft.solver.period.counts import Counts
from weft.solver.period.improvers.starts import STARTS, one_at_a_time
from weft.solver.period.periodic import Periodic, repeat
from weft.solver.period.reductions.multi_batch import in_copies, repeat_copies
from weft.solver.period.search import find_period
from weft.solver.period.shorten import shorten_latency
from weft.solver.problem import Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import Order, implied_order
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.schedule import RELATIVE_TOLERANCE, Repetend, Schedule
from weft.solver.step.edges import complete
from weft.solver.step.order_model import reorder
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders
from weft.solver.validate import InvalidSchedule, validate

__all__ = ["MAX_OPERATIONS", "Infeasible", "NoneFound", "Progress", "Search", "is_large", "solve"]

#: Schedules with more operations than this are refused: unroll a smaller one instead.
MAX_OPERATIONS = 2_000_000

#: Up to so many operations a problem is solved whole from the start, to proof.
_SMALL = 24
#: Up to so many operations that is tried for a moment; and, once there is a steady state to start from, for longer.
_MEDIUM, _LARGE = 110, 400
#: Numbers of micro-batches per period that are tried where one is not rate-optimal, in this order.
_COPIES = (2, 3, 4)
#: Up to so many blocks, copies counted, such periods are tried.
_MOST_COPIES = 160
#: Up to so many operations the whole schedule is polished while time is left.
_POLISHED = 1500
#: Deterministic seconds of the first try at a schedule where no known one fits, and of the last one; every later try
#: may take so many times as long.
_FIRST_TRY, _LAST_TRY, _LONGER = 1.0, 256.0, 4
#: From so many operations (each counted on all its devices), or blocks, on a first schedule is offered before anything
#: else is looked at.
_MANY_OPERATIONS, _MANY_BLOCKS = 10_000, 500
#: Up to so many blocks a period is searched: its matrices have a row and a column a block.
_MOST_PERIODIC = 2048
#: Shares of the time left that the bound, and all known schedules, may take of a search of many operations.
_BOUND_SHARE, _KNOWN_SHARE = 0.2, 0.6
#: What follows a search (summing up, writing) takes at most so many times as long as making, timing and judging a
#: schedule (0.6 times for two million operations), and is left at most this share of the time.
_AFTERWARDS, _MOST_AFTERWARDS = 1.5, 0.4


@dataclass(frozen=True)
class Progress:
    """Where a search stands: the best schedule so far, the proven bound on its makespan, and what it is doing."""

    best: Schedule
    elapsed: float
    phase: str


def solve(
    problem: Problem,
    micro_batches: int,
    *,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    start: Schedule | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Schedule:
    """The best schedule found for ``micro_batches`` micro-batches of ``problem``, with a proven lower bound.

    ``time_limit`` is wall time in seconds. ``effort`` limits CP-SAT's deterministic time (about seconds) instead of
    leaving it to the clock: with it, a ``seed`` and one worker a run repeats exactly, as long as the time limit is not
    reached. Ctrl-C ends the search as the time limit does (and says ``interrupted`` in the result's ``solver``).
    ``start`` is a known valid schedule of the same problem to improve on. ``on_progress`` hears of every improvement.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if it is proven that no schedule fits the devices'
    memory, its subclass
    ``NoneFound`` if that is open and none was found within the limit, and ``ValueError`` for numbers out of range.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    search: Search | None = None
    try:
        with budget.limited(), breakable():
            search = Search(problem, micro_batches, budget, on_progress, start)
            for _ in search.steps():
                pass
    except KeyboardInterrupt:
        budget.interrupted = True
        if search is None or search.best is None:
            raise
    assert search is not None  # what it starts with has no checkpoints
    return search.result()


#: What a phase gives that has no further step.
_ENDED = object()


def is_large(problem: Problem, micro_batches: int) -> bool:
    """Whether bounds and known schedules take so long that a first schedule is offered before them."""
    places = sum(len(block.devices) for block in problem.blocks)
    return micro_batches * places > _MANY_OPERATIONS or len(problem.blocks) > _MANY_BLOCKS


class Search:
    """One problem's search, a step at a time, so that several can share a :class:`~weft.solver.cpsat.solve.Budget`.

    ``best`` is the best schedule so far, None before the first step. Arguments and errors are those of :func:`solve`.
    """

    def __init__(self, problem: Problem, micro_batches: int, budget: Budget,
                 on_progress: Callable[[Progress], None] = lambda _: None, start: Schedule | None = None) -> None:
        if micro_batches < 1:
            raise ValueError(f"micro_batches is {micro_batches}, it must be at least 1")
        if micro_batches * len(problem.blocks) > MAX_OPERATIONS:
            raise ValueError(f"{micro_batches} micro-batches of {len(problem.blocks)} blocks are more than "
                             f"{MAX_OPERATIONS} operations; solve for fewer and stretch the schedule with weft.unroll")
        self.problem = problem
        self.micro_batches = micro_batches
        self.budget = budget
        self.on_progress = on_progress
        self.instance = TickProblem.of(problem)
        self.stopped: list[str] = []  # by which faults, phases
        self.unheard: Exception | None = None  # what the listener raised
        self.phase = "bound"
        self.pace = 0.0  # seconds that timing and judging a schedule takes, where that is long
        # What ticks are too coarse for.
        self.exact = float(exact_load_bound(problem, micro_batches)) if self.instance.loss else 0.0
        self.bound = Fraction(work_bound(self.instance, micro_batches))
        self.steady_bound = Fraction(self.instance.heaviest_load)  # of any steady state, per micro-batch, in ticks
        if not self.is_large:
            self._raise_bounds()
        self.best = start
        self.orders: Orders = () if start is None else _orders(start)
        self.periods: Bracket | None = None
        self.techniques = Counts()  # of the period search
        self.rate_bounds: dict[int, Fraction] = {}  # by micro-batches per period, in ticks per micro-batch
        self.phase = "baselines"
        self.history = History()

    @property
    def makespan_bound(self) -> float:
        """The proven lower bound on the makespan so far, in the problem's time unit."""
        return max(self.exact, self.instance.bound(self.bound, self.micro_batches))

    def _rate(self, bound: Fraction) -> float:
        """A proven bound on the time per micro-batch of a steady state, in ticks, in the problem's time unit."""
        return max(self._exact_load, self.instance.bound(bound, 1))

    @cached_property
    def _exact_load(self) -> float:
        return float(exact_load(self.problem)) if self.instance.loss else 0.0

    def _share(self, most: float, part: float) -> float:
        """A deterministic limit: ``most``, or less where that is more than ``part`` of what is left of the budget."""
        left = self.budget.left if self.budget.deterministic is None else self.budget.deterministic_left
        return min(most, part * left)

    @cached_property
    def implied(self) -> Order:
        """What must precede what in every schedule."""
        return implied_order(self.instance, graph_of(self.instance), self.micro_batches)

    # -- the phases ---------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[None]:
        """The search; whoever iterates may stop after any step. Ends when the best is proven or ideas run out."""
        if self.is_large:
            yield from self._begin_large()
        yield from self._find_first()
        if self.operations <= _SMALL and not self.done:
            yield from self._kept(self._solve_whole(deterministic=20.0))
        elif self.operations <= _MEDIUM and not self.done:
            yield from self._kept(self._solve_whole(deterministic=self._share(0.1, 0.1)))
        yield from self._kept(self._find_repetend())
        if not self.settled:
            yield from self._kept(self._complete())
        if self.operations <= _LARGE and not self.done:
            yield from self._kept(self._solve_whole(deterministic=self._share(2.0, 0.2)))
        if not self.settled:
            yield from self._kept(self._find_longer_periods())
        if not self.done:
            yield from self._in_turn((self._kept(self._polish()), 4), (self._kept(self._tighten()), 1))

    def _kept(self, phase: Iterator[None]) -> Iterator[None]:
        """The steps of ``phase``, up to a fault in it."""
        ended = False
        while not ended:
            ended = True
            with self._at_most_noted():
                ended = next(phase, _ENDED) is _ENDED
            if not ended:
                yield

    @contextmanager
    def _at_most_noted(self) -> Iterator[None]:
        """A fault in what is done here is no reason to lose the best: it is noted and no more. What the listener raises
        is for whoever gave it."""
        try:
            yield
        except Exception as fault:
            if fault is self.unheard:
                raise
            self.note(fault)

    def note(self, fault: Exception) -> None:
        """Remember a fault that the search survives."""
        self.stopped.append(f"{self.phase}: {type(fault).__name__}: {fault}")

    def _in_turn(self, *phases: tuple[Iterator[None], int]) -> Iterator[None]:
        """So many steps of each, again and again: better schedules and better bounds come side by side."""
        running = list(phases)
        while running:
            for phase, steps in list(running):
                for _ in range(steps):
                    if next(phase, _ENDED) is _ENDED:
                        running.remove((phase, steps))
                        break
                    yield
                    if self.done:
                        return

    @property
    def operations(self) -> int:
        return self.micro_batches * len(self.problem.blocks)

    @property
    def proven(self) -> bool:
        """Whether the best meets the bound. (``best`` itself carries the bound of the moment when it was found.)"""
        return self.best is not None and self.best.makespan <= self.makespan_bound * (1 + RELATIVE_TOLERANCE)

    @property
    def done(self) -> bool:
        return self.proven or self.budget.spent

    @property
    def settled(self) -> bool:
        """Whether no steady state is left to look for: a proven optimum without one may be matched by one with."""
        return self.budget.spent or (self.done and self.best is not None and self.best.period is not None)

    @property
    def is_large(self) -> bool:
        """See :func:`is_large`."""
        return is_large(self.problem, self.micro_batches)

    def _begin_large(self) -> Iterator[None]:
        """What is found at once, then the bounds."""
        if self.best is None:
            with unwatched():
                began = self.budget.now()
                self._offer_at_once()
                self._keep_time_afterwards(self.budget.now() - began)
            yield
        self._raise_bounds()
        yield

    def _offer_at_once(self) -> None:
        """1F1B where the problem is a chain of stages that holds it, else one micro-batch after the other."""
        with suppress(NotApplicable):
            orders = BASELINES["1f1b"].orders(self.problem, self.micro_batches)
            if self._fits(orders) and self.offer(orders, "1f1b"):
                return
        in_turn = in_sequence(self.problem, self.micro_batches)
        if in_turn is not None:
            self.offer(in_turn, "sequential")

    def _fits(self, orders: Orders) -> bool:
        """Whether every device's memory holds what it runs in this order."""
        for row, take, change, capacity in zip(orders, self.instance.take, self.instance.change,
                                               self.instance.capacity, strict=True):
            level = peak = 0
            for block, _ in row:
                peak = max(peak, level + take[block])
                level += change[block]
            if capacity is not None and peak > capacity:
                return False
        return True

    def _keep_time_afterwards(self, seconds: float) -> None:
        """Keep time free for what follows the search, as timing and judging one schedule takes ``seconds``."""
        self.pace = seconds
        self.budget.reserve = max(self.budget.reserve,
                                  min(_AFTERWARDS * seconds, _MOST_AFTERWARDS * self.budget.seconds))

    def _raise_bounds(self) -> None:
        """Raise the bounds by all arguments, or as many as there is time for."""
        with self.budget.limited(_BOUND_SHARE * self.budget.left), self._at_most_noted():
            self.bound = max(self.bound, makespan_bound(self.instance, self.micro_batches, self.implied))
            self.steady_bound = steady_bound(self.instance, self.implied)

    def _offer_known(self) -> None:
        """Known schedules, as many as there is time for; where none is there yet, each gets its time."""
        with self.budget.limited(_KNOWN_SHARE * self.budget.left):
            for name, orders in STARTS.items():
                if self.best is not None and STOP.requested:
                    return
                at_leisure = unwatched() if self.best is None and not self.is_large else nullcontext()
                with at_leisure, self._at_most_noted(), suppress(NotApplicable):
                    found = orders(self.problem, self.micro_batches)
                    checkpoint()
                    self.offer(found, name)

    def _find_first(self) -> Iterator[None]:
        """Known schedules; where none fits, any order of operations that does, or a proof that there is none."""
        self._offer_known()
        effort = _FIRST_TRY
        while self.best is None:
            self.phase = "first schedule"
            order = None
            with self.budget.limited():
                order = require_room(self.instance, self.micro_batches, self.budget, effort)
            if order is not None:
                self.offer(device_rows(self.instance, order), "weft")
            elif self.budget.spent or effort >= _LAST_TRY:
                raise self._none_found()
            else:
                effort *= _LONGER
                yield
        yield

    def _none_found(self) -> NoneFound:
        return NoneFound(f"{self.problem.name}: no schedule of {self.micro_batches} micro-batches that fits the "
                         "devices' memory was found within the limit, and it is not proven that there is none; give it "
                         "more time or memory")

    def _find_repetend(self) -> Iterator[None]:
        self.phase = "repetend"
        # Without balance there is no steady state; and where a block gives back what another micro-batch takes, a
        # repeated schedule may not fit while there is no micro-batch before.
        if len(self.problem.blocks) > _MOST_PERIODIC:
            return
        if not self.instance.balanced or not takes_before_giving(self.instance):
            return
        try:
            start = one_at_a_time(self.instance)
        except NotApplicable:  # all micro-batches fit, but no order of one was found
            return

        def changed(search: Bracket) -> None:
            self.periods = search
            self.rate_bounds[1] = search.refuted

        effort = 1.0 if self.done else 30.0  # what is proven already only gains a steady state to unroll
        with self.budget.limited():
            self.periods = find_period(self.instance, start, self.budget, changed, deterministic=effort,
                                       published=None if self.best is None else str(self.best.solver.get("name")))
        if self.periods is not None:
            self.techniques.add(self.periods.counts)
            self.offer_repeated(self.periods.best)
        yield

    def _complete(self) -> Iterator[None]:
        self.phase = "completion"
        if self.periods is not None:
            yield from self._complete_around(self.periods.best)

    def _complete_around(self, found: Periodic) -> Iterator[None]:
        shorter = found
        with self.budget.limited():
            shorter = shorten_latency(found, self.budget, deterministic=self._share(0.2 if self.done else 2.0, 0.1))
        for candidate in (found,) if shorter is found else (shorter, found):
            self.offer_repeated(candidate)
            for edge in (0, 1, 2, 4):
                if self.settled:
                    return
                completion = None
                with self.budget.limited():
                    completion = complete(self.instance, candidate, self.micro_batches, self.budget, edge=edge,
                                          deterministic=self._share(1.0, 0.1))
                if completion is None:
                    break
                self.offer_repetend(completion.unrolled(self.micro_batches), candidate, edge)
                yield

    def _find_longer_periods(self) -> Iterator[None]:
        """Periods of several micro-batches, where the steady state could still be faster than the best known."""
        if self.periods is None:
            return
        best = self.periods.best
        for copies in _COPIES:
            blocks = copies * len(self.problem.blocks)
            short = self.micro_batches < 8 * copies  # too few for such a period to repeat
            if self.settled or short or blocks > _MOST_COPIES or best.rate <= self.steady_bound:
                return
            self.phase = f"repetend of {copies}"
            start = repeat_copies(self.periods.best, in_copies(self.instance, copies), copies)
            search = find_period(start.instance, start, self.budget, deterministic=self._share(6.0, 0.2), each=1.0)
            self.rate_bounds[copies] = search.refuted / copies
            self.techniques.add(search.counts)
            yield
            if search.best.rate < best.rate:
                best = search.best
                yield from self._complete_around(search.best)

    def _tighten(self) -> Iterator[None]:
        """Raise the bound by windows of micro-batches."""
        effort = self._share(3.0, 0.2)
        for bound in rolling_bounds(self.instance, self.micro_batches, self.budget, deterministic=effort):
            self.phase = "bound"
            if bound > self.bound:
                self.bound = Fraction(bound)
                self.report()
            yield

    def _polish(self) -> Iterator[None]:
        """Order stretches of the whole schedule anew, wider and wider, until all is one stretch."""
        size = min(72, max(24, self.operations // 6))
        while self.operations <= _POLISHED:
            improved = False
            for first in range(0, self.operations, size // 2):
                self.phase = "whole schedule"
                improved |= self._reorder_stretch(first, first + size)
                yield
            if size >= self.operations:
                return
            if not improved:
                size *= 2

    def _solve_whole(self, deterministic: float) -> Iterator[None]:
        self.phase = "whole schedule"
        result = reorder(self.instance, self.micro_batches, self.orders, [(0, len(row)) for row in self.orders],
                         self.budget, bound=ceil(self.bound), deterministic=deterministic, implied=self.implied)
        self.bound = max(self.bound, Fraction(result.bound))
        if result.orders is not None:
            self.offer(result.orders, "weft")
        else:
            self.report()
        yield

    def _reorder_stretch(self, first: int, last: int) -> bool:
        """Free the operations number ``first`` to ``last`` in order of start."""
        fixed = FixedOrder(self.instance, self.micro_batches, self.orders)
        ranked = sorted(fixed.start, key=lambda op: (fixed.start[op], op))
        begin = fixed.start[ranked[first]]
        end = fixed.start[ranked[last]] if last < len(ranked) else None
        stretch = [(sum(fixed.start[op] < begin for op in row),
                    len(row) if end is None else sum(fixed.start[op] < end for op in row)) for row in self.orders]
        whole = begin == 0 and end is None
        result = reorder(self.instance, self.micro_batches, self.orders, stretch, self.budget, bound=ceil(self.bound),
                         deterministic=0.02 * (last - first) if not whole else 20.0, implied=self.implied)
        if whole and result.bound > self.bound:
            self.bound = Fraction(result.bound)
            self.report()
        return result.orders is not None and self.offer(result.orders, "weft")

    # -- what is known so far -------------------------------------------------------------------------------------

    def offer_repeated(self, found: Periodic) -> None:
        """Offer ``found`` repeated, if there are enough micro-batches for a whole period."""
        if self.micro_batches // found.copies > found.depth:
            self.offer_repetend(repeat(found, self.micro_batches), found)

    def offer_repetend(self, orders: Orders, found: Periodic, edge: int = 0) -> None:
        """Offer a schedule with ``found`` in its middle, ``edge`` periods at either end excepted."""
        first = found.depth + edge
        count = self.micro_batches // found.copies - edge - first
        self.offer(orders, "weft", Repetend(first, count, found.copies), found)

    def offer(self, orders: Orders, name: str, repetend: Repetend | None = None, found: Periodic | None = None) -> bool:
        """Time, judge and keep a schedule if it is the best so far and fits; of equals, one with a steady state. Where
        there is no time left for that, a first one only."""
        if self.best is not None and self.pace and self.budget.left < self.pace:
            return False
        with unwatched():  # the budget keeps time free for it
            return self._offer(orders, name, repetend, found)

    def _offer(self, orders: Orders, name: str, repetend: Repetend | None, found: Periodic | None) -> bool:
        operations = time_orders(self.problem, self.micro_batches, orders)
        makespan = max(map(itemgetter(3), operations))
        if self.best is not None:
            shorter = makespan < self.best.makespan * (1 - RELATIVE_TOLERANCE)
            as_short = makespan <= self.best.makespan * (1 + RELATIVE_TOLERANCE)
            if not (shorter or (as_short and found is not None and self.best.period is None)):
                return False
        schedule = Schedule(
            self.problem, self.micro_batches, operations,
            makespan_bound=min(makespan, self.makespan_bound),
            period=None if found is None else self.instance.time(found.rate),
            repetend=repetend,
            solver={"name": name},
        )
        try:
            validate(schedule)
        except InvalidSchedule:
            if name == "weft":
                raise
            return False  # a published schedule that does not fit
        self.best, self.orders = schedule, orders
        self.report()
        return True

    def report(self) -> None:
        """Tell the listener where the search stands."""
        progress = Progress(self.result(), self.budget.elapsed, self.phase)
        try:
            self.on_progress(progress)
        except Exception as fault:
            self.unheard = fault
            raise

    def result(self) -> Schedule:
        """The best schedule, with all that has been proven."""
        if self.best is None:
            raise self._none_found()
        best = self.best
        bound = min(best.makespan, self.makespan_bound)
        self.history.record(self.budget.elapsed, best.makespan, bound)
        period_bound = None
        entries: dict[str, object] = {}
        if self.periods is not None:
            entries["repetend_period"] = self.instance.time(self.periods.best.period)
            entries["repetend_period_bound"] = min(self.instance.time(self.periods.best.period),
                                                   self._rate(self.periods.refuted))
            entries["repetend_proven"] = self.periods.proven
            entries["techniques"] = self.techniques.to_json()
            if best.period is not None:
                copies = 1 if best.repetend is None else best.repetend.micro_batches
                period_bound = min(best.period, self._rate(self.rate_bounds[copies]))
        return Schedule(
            best.problem, best.micro_batches, best.operations, bound, best.period, period_bound, best.repetend,
            solver={
                **best.solver,
                "seconds": round(self.budget.elapsed, 3),
                "seed": self.budget.seed,
                "version": _version(),
                "workers": self.budget.workers,
                "deterministic_seconds": round(self.budget.deterministic_used, 3),
                **({"interrupted": True} if self.budget.interrupted else {}),
                **({"stopped": "; ".join(self.stopped)} if self.stopped else {}),
                "steady_bound": self._rate(self.steady_bound),
                "history": self.history.to_json(),
                **entries,
            })


def _orders(schedule: Schedule) -> Orders:
    return [[(operation.block, operation.micro_batch) for operation in row] for row in schedule.device_orders]


def _version() -> str:
    try:
        return importlib.metadata.version("weft")
    except importlib.metadata.PackageNotFoundError:
        return "uninstalled"

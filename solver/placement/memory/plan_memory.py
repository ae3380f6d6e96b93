"""The best memory plan of a chain: cuts at any operator, and for each operator keep, recompute or offload, to proof.

The answer is found by asking, for one limit T after another: is there a plan whose busiest resource takes no more than
T? A question about one stage from one cut to another is a small knapsack
(:mod:`weft.solver.placement.memory.stage_oracle`). What makes few such questions enough:

* Dropping the last operator of a stage never hurts it, so from a start the ends that fit are all up to a furthest one,
  found by bisection.
* Of two starts, the later one that receives no more reaches at least as far: its stage, less some operators and with a
  smaller input, fits wherever the other does. So the furthest ends of a stage come from few starts, those after
  which every start receives more (a residual network has a handful of sizes). If the last stage cannot reach the end
  this way, no plan within T exists.
* Otherwise the cuts are found from the end back, and every stage of them is a fit that was shown.

No window between compute- and memory-balanced cuts is assumed: the best cut can lie outside it once memory is decided
together with the cuts (the tests have planners that keep them apart).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import inf

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.memory.classes import modes_of
from weft.solver.placement.memory.layer_rule import whole_layers
from weft.solver.placement.memory.plan import MemoryPlan, MemoryProblem, Mode, NoMemoryPlan
from weft.solver.placement.memory.stage_oracle import StageOracle
from weft.solver.placement.params import PARAMS

__all__ = ["LimitSearch", "MemoryPlanNotFound", "NoMemoryPlan", "least_bottleneck", "plan_memory"]

#: What the rule of :mod:`~weft.solver.placement.memory.layer_rule` may take of a limited time.
_RULE = 0.15


class MemoryPlanNotFound(NoMemoryPlan):
    """No plan was found within the limit; none is proven impossible."""


def plan_memory(problem: MemoryProblem, *, gap: float = 1e-4, time_limit: float = inf, seed: int = 0,
                at_least: int = 0, budget: Budget | None = None) -> MemoryPlan:
    """The plan of least bottleneck, and the bound that proves it; among those, least recomputed time, stage by stage.

    With ``strict`` buffers and classes of several operators plans and bound are of those that size a stage's recompute
    buffer by class (:mod:`weft.solver.placement.memory.stage_oracle`). Where none of them fits, plans whose operators
    are all chosen by themselves are tried too.

    ``gap``: how far from the optimum the answer may be, as a share of it; the plan's ``bound`` says how far it is.
    ``time_limit``: seconds, after which the best plan so far is returned. ``at_least``: nanoseconds that no plan is
    known to be below, such as the bound of a problem that asks for less. Where time is limited, no answer is worse than
    the plan of whole layers by a rule (:mod:`weft.solver.placement.memory.layer_rule`). ``budget``: in place of
    ``time_limit`` and ``seed``; it says afterwards whether Ctrl-C came, on which the best plan so far is returned.
    Raises :class:`NoMemoryPlan` where it is proven that none fits, :class:`MemoryPlanNotFound` where none was found,
    and ``KeyboardInterrupt`` where none was until then.
    """
    budget = budget or Budget(seconds=time_limit, seed=seed)
    search = LimitSearch(problem, budget)
    start = _by_rule(problem, budget)
    lower, cuts = search.narrow(gap, at_least)
    plan = None if cuts is None else search.plan(cuts)
    if plan is None and search.ruled and not search.fits_nothing():
        alone = replace(problem, operators=tuple(replace(op, kind="") for op in problem.operators))
        search = LimitSearch(alone, budget)
        lower, cuts = search.narrow(gap, at_least)
        plan = None if cuts is None else replace(search.plan(cuts), problem=problem)
    best = min((one for one in (plan, start) if one is not None), key=lambda one: one.time, default=None)
    if best is not None:
        return replace(best, bound=min(lower, best.time))
    if budget.interrupted:
        raise KeyboardInterrupt
    if lower <= search.slowest and not search.fits_nothing():
        raise MemoryPlanNotFound(search.open_question())
    raise NoMemoryPlan(search.refusal())


def _by_rule(problem: MemoryProblem, budget: Budget) -> MemoryPlan | None:
    """The plan of whole layers, where time is limited and suffices for it, and its cuts are allowed."""
    found: MemoryPlan | None = None
    if budget.left == inf:
        return None  # the search goes on until it has its proof
    with budget.limited(_RULE), suppress(NoMemoryPlan):
        found = whole_layers(problem)
    if found is None or not found.fits:
        return None
    allowed = problem.windows is None or all(cut in window for cut, window in zip(
        found.cuts[1:-1], problem.windows, strict=True))
    return found if allowed else None


def least_bottleneck(problem: MemoryProblem, *, gap: float = 1e-3, time_limit: float = inf, seed: int = 0) -> float:
    """Nanoseconds a micro-batch that no plan can go below in any schedule, however few micro-batches it has in flight;
    infinite where no plan fits even so.

    Any schedule of a plan has at some moment all of what a stage keeps and offloads for one micro-batch on its device,
    beside one recomputed operator: so it needs what the plan would need with one micro-batch in flight and what is
    offloaded kept, as published planners count. The least bottleneck of such plans is the bound; counts of a class lose
    nothing there (see :class:`~weft.solver.placement.memory.stage_oracle.StageOracle`).
    """
    least = replace(problem, rules="published", micro_batches=1, modes=problem.modes - {"offload"})
    search = LimitSearch(least, Budget(seconds=time_limit, seed=seed))
    bound, cuts = search.narrow(gap)
    return inf if cuts is None and bound > search.slowest else bound


class LimitSearch:
    """Plans of one problem within one limit after another; what is shown of single stages serves all limits."""

    def __init__(self, problem: MemoryProblem, budget: Budget) -> None:
        self.problem = problem
        self.budget = budget
        self.oracle = StageOracle(problem, budget)
        self.count = len(problem.operators)
        self.stages = problem.stages
        every = range(1, self.count)
        self.starts = [[0], *(sorted(k for k in every if problem.windows is None or k in problem.windows[s])
                              for s in range(self.stages - 1))]
        #: The limit of the best cuts so far, and one that no plan needs more than.
        self.limit, self.slowest = 0, 0
        #: (stage, start) -> ends with the limit at which they were shown to fit, or not to.
        self._fits: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._fails: dict[tuple[int, int], list[tuple[int, int]]] = {}

    # -- the limit -------------------------------------------------------------------------------------------------

    def narrow(self, gap: float, at_least: int = 0) -> tuple[int, tuple[int, ...] | None]:
        """A lower bound of the least limit, and cuts within a limit close to it, if there are any."""
        total, kept = self.problem.totals[0][-1], self.problem.totals[1][-1]
        single = max(op.forward + op.backward for op in self.problem.operators)
        bound = failed = max(-(-total // self.stages), single, at_least) - 1
        links = max((self.problem.link_time(k) for k in range(1, self.count)), default=0)
        most = max(total + sum(op.forward for op in self.problem.operators), links, bound + 1,
                   self.problem.copy_time(kept + max(op.output for op in self.problem.operators)))
        self.slowest = most
        best: tuple[int, ...] | None = None
        step, limit = PARAMS.first_step, bound + 1
        while not self.budget.spent and limit <= most:
            try:
                found, proven = self.cuts(limit)
            except KeyboardInterrupt:  # what was found stays
                self.budget.interrupted = True
                break
            if found is not None:
                best, self.limit = found, limit
            elif not self.budget.spent:
                failed = limit
                bound = limit if proven else bound
            if best is None:
                if failed >= most:
                    break
                limit, step = min(most, int(limit * (1 + step)) + 1), 2 * step
            elif self.limit - failed <= max(1, gap * failed):
                break
            else:
                limit = (failed + self.limit) // 2
        return bound + 1, best

    @property
    def ruled(self) -> bool:
        """Whether a class of several operators has a recompute buffer by rule, which some plan may do without."""
        return (self.problem.rules == "strict" and "recompute" in self.problem.modes
                and len(self.oracle.classes.kept) < self.count)

    def fits_nothing(self) -> bool:
        """Whether it is proven that no plan fits, however its buffers are sized: not even with those of the published
        rules, which are no larger for any plan."""
        relaxed = LimitSearch(replace(self.problem, rules="published"), self.budget)
        cuts, proven = relaxed.cuts(self.slowest)
        return cuts is None and proven and not self.budget.spent

    def open_question(self) -> str:
        """Why it is not known whether there is a plan, a sentence."""
        if self.budget.spent:
            return "no memory plan was found in the time given, and no proof that there is none; give more time"
        return (f"found no plan of {self.count} operators in {self.stages} stages that fits into {self.problem.memory} "
                "bytes, and no proof that there is none; use smaller micro-batches, more stages or more memory")

    def refusal(self) -> str:
        """Why there is no plan, in a sentence."""
        problem = self.problem
        least = max(op.resident for op in problem.operators)
        allowed = " and ".join(sorted(problem.modes)) or "nothing but keeping"
        return (f"no plan of {self.count} operators in {self.stages} stages fits into {problem.memory} bytes with "
                f"{allowed}: all weights with their state are {problem.totals[2][-1]} bytes, the largest of one "
                f"operator {least}; use smaller micro-batches, more stages or more memory")

    # -- one limit -------------------------------------------------------------------------------------------------

    def cuts(self, limit: int) -> tuple[tuple[int, ...] | None, bool]:
        """Cuts of a plan within ``limit``; or ``None``, and whether it is proven that there is none."""
        open_before = self.oracle.unknown
        reach: list[int] = []
        for stage in range(self.stages):
            furthest = max((self._furthest(stage, start, limit) for start in self._leaders(stage, reach, limit)),
                           default=0)
            if furthest <= stage or self.budget.spent:
                return None, self.oracle.unknown == open_before
            reach.append(furthest)
        if reach[-1] < self.count:
            return None, self.oracle.unknown == open_before
        found = self._back(self.stages - 1, self.count, reach, limit, set())
        return found, self.oracle.unknown == open_before

    def _leaders(self, stage: int, reach: list[int], limit: int) -> list[int]:
        """Starts of ``stage`` within reach of which no later one receives as little."""
        if not stage:
            return [0]
        starts, leaders, least = self.starts[stage], [], inf
        behind = self.stages - stage
        for start in reversed(starts[:bisect_right(starts, min(reach[-1], self.count - behind))]):
            received = self.problem.input_bytes(start)
            if received < least and start >= stage and self.problem.link_time(start) <= limit:
                leaders.append(start)
                least = received
        return leaders

    def _furthest(self, stage: int, start: int, limit: int) -> int:
        """The last end up to which operators from ``start`` on fit as ``stage``; ``start`` if none does."""
        low, high = start, self.count - (self.stages - 1 - stage)
        for end, at in self._fits.get((stage, start), ()):
            if at <= limit:
                low = max(low, end)
        for end, at in self._fails.get((stage, start), ()):
            if at >= limit:
                high = min(high, end - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(stage, start, middle, limit):
                low = middle
            else:
                high = middle - 1
        return low

    def fits(self, stage: int, start: int, end: int, limit: int) -> bool:
        """Whether the stage fits, remembered."""
        if any(e >= end and at <= limit for e, at in self._fits.get((stage, start), ())):
            return True
        if any(e <= end and at >= limit for e, at in self._fails.get((stage, start), ())):
            return False
        open_before = self.oracle.unknown
        answer = self.oracle.fits(stage, start, end, limit)
        if self.oracle.unknown == open_before and not self.budget.spent:
            (self._fits if answer else self._fails).setdefault((stage, start), []).append((end, limit))
        return answer

    def _back(self, stage: int, end: int, reach: list[int], limit: int,
              dead: set[tuple[int, int]]) -> tuple[int, ...] | None:
        """Cuts up to ``end`` with ``stage`` the last; starts from the latest on, without those that cannot help."""
        if stage == 0:
            return (0, end) if self.fits(0, 0, end, limit) else None
        if (stage, end) in dead:
            return None
        starts, failed = self.starts[stage], inf
        for start in reversed(starts[:bisect_right(starts, min(reach[stage - 1], end - 1))]):
            received = self.problem.input_bytes(start)
            # A later start with no more to receive did not fit, for want of memory or time and not for its link's.
            if received >= failed or self.problem.link_time(start) > limit:
                continue
            if not self.fits(stage, start, end, limit):
                failed = received
                continue
            before = self._back(stage - 1, start, reach, limit, dead)
            if before is not None:
                return (*before, end)
        dead.add((stage, end))
        return None

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(self, cuts: tuple[int, ...]) -> MemoryPlan:
        """The cuts with the modes of least work within the limit that they were found for."""
        modes: list[Mode] = []
        for stage, (first, last) in enumerate(pairwise(cuts)):
            choice = self.oracle.lightest(stage, first, last, self.limit)
            modes += modes_of(self.oracle.classes, first, last, choice)
        return MemoryPlan(self.problem, cuts, tuple(modes))

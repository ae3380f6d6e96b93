"""From a placement problem at several sizes of micro-batch to the schedule of one step.

Five phases, each with what the ones before it have found:

1. the fronts of load and depth at each size, and of the problem in which every operator is as fast as at its best size,
   with memory by depth and with memory for one micro-batch: their graphs are the *cuts*. 1F1B at one size for all
   stages gives first schedules, and what a load rules out is no cut;
2. graphs that allow a short step by load and way (:mod:`weft.solver.placement.dag.levels.least_step`) as further cuts;
3. of the best cuts better neighbours: one stage at another size, one group of operators in another stage;
4. the sizes of all cuts, by rising bound (:mod:`weft.solver.placement.joint.size_search`), each with 1F1B; and a bound
   on the step of any graph of stages at any sizes, in any order (:mod:`weft.solver.placement.joint.any_bound`);
5. the orders of the choices that no bound rules out, by the search of whole steps, in slices of the time left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from weft.solver.control.clock import unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.front import front
from weft.solver.placement.dag.graph_bracket import IMPOSSIBLE
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.least_step import least_step
from weft.solver.placement.groups import Groups, groups_of, nodes_of
from weft.solver.placement.joint import sized_judge
from weft.solver.placement.joint.answer import Considered, PlacedStep
from weft.solver.placement.joint.any_bound import any_bound
from weft.solver.placement.joint.candidates import Sizes, candidate_of, other_cuts, other_sizes
from weft.solver.placement.joint.cuts import SizedCut, cut_of
from weft.solver.placement.joint.size_search import SizeSearch
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.joint.step_bound import open_sizes, stage_bounds
from weft.solver.placement.params import PARAMS
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.refusals import NoPlacement
from weft.solver.portfolio import Candidate, Portfolio
from weft.solver.step.search import Progress

#: The most time for judging the answer, in times of making one 1F1B; and the largest share of the total reserved for
#: it.
_AFTERWARDS, _MOST_AFTERWARDS = 1.5, 0.4


def place_step(sized: SizedProblem, *, one_size: bool = False, time_limit: float = 60.0, effort: float | None = None,
               seed: int = 0, workers: int = 1, on_progress: Callable[[Progress], None] = lambda _: None) -> PlacedStep:
    """The graph of stages, the size of every stage's micro-batches and the order with the shortest step that was found.

    ``one_size``: all stages have the same size, as the executor runs them. Other arguments are those of
    :func:`weft.solver.step.search.solve`; a search cut short by time or Ctrl-C returns the best so far. ``time_limit``
    includes judging the answer: only the time to make one graph's 1F1B may exceed it.

    Raises :class:`~weft.solver.placement.refusals.NoPlacement` if it is proven that nothing fits, and ``NoneFound`` if
    that is open.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    search = _JointSearch(sized, budget, on_progress, one_size=one_size)
    with budget.kept(lambda: search.best is not None):
        search.run()
    return search.answer()


class _JointSearch:
    def __init__(self, sized: SizedProblem, budget: Budget, on_progress: Callable[[Progress], None],
                 *, one_size: bool) -> None:
        self.sized, self.budget = sized, budget
        self.alike = one_size or len(sized.sizes) == 1
        self.cuts: list[SizedCut] = []
        self.known: dict[tuple[SizedCut, tuple[int, ...]], Candidate[Sizes]] = {}
        self.best: Candidate[Sizes] | None = None
        self.at_one_size: Candidate[Sizes] | None = None
        self.choices: SizeSearch | None = None
        self.on_progress = on_progress
        self.orders: Portfolio[Sizes] = Portfolio(budget, on_progress=on_progress, in_any_case=True)
        self.floor = self._least(sized.fastest)
        self.any_bound = 0.0
        self.settled = False  # every cut was tried at every one size that its bound does not rule out
        self.impossible = True
        self.listed = False  # the fronts were looked at
        self.whole = True

    def run(self) -> None:
        """All phases."""
        with self.budget.part(PARAMS.front_share) as part:
            self._fronts(part)
        self.listed = True
        with self.budget.part(PARAMS.shortest_share) as part:
            self._shortest(part)
        if not self.cuts:
            raise self._nothing()
        with self.budget.limited(PARAMS.choice_share):
            self._descend()
            self._choose()
        with self.budget.part(PARAMS.any_share) as part:
            self.any_bound = any_bound(self.sized, part, self.makespan)
        if self.choices is not None:
            self.choices.drop(self.makespan)
        self.orders.search_all(self._open(), PARAMS.finalists, PARAMS.first_slice)

    @property
    def makespan(self) -> float:
        """Of the best 1F1B."""
        return math.inf if self.best is None else self.best.value

    # -- 1. cuts ----------------------------------------------------------------------------------------------------

    def _fronts(self, budget: Budget) -> None:
        problems: list[tuple[int | None, PlacementProblem]] = sorted(
            self.sized.by_size.items(), key=lambda entry: self._likely(entry[1]))
        if not self.alike:
            problems.append((None, self.sized.fastest))
        if any(kind.memory is not None for kind in self.sized.any.kinds):
            problems.append((None, self.sized.roomiest))
        for first in (True, False):  # a first step says which loads are of interest
            for size, problem in problems:
                if budget.spent and self.cuts:
                    self.whole = False
                    return
                if not first or size is not None:
                    self._front_of(problem, size, budget, first=first)

    def _likely(self, problem: PlacementProblem) -> float:
        """About the step of stages in a row, half as many as there are devices: a good size comes first."""
        return simple_bound(groups_of(problem)) * ((problem.micro_batches or 1) + problem.devices / 2)

    def _least(self, problem: PlacementProblem) -> float:
        """A bound on the step."""
        return simple_bound(groups_of(problem)) * (problem.micro_batches or 1)

    def _front_of(self, problem: PlacementProblem, size: int | None, budget: Budget, *, first: bool) -> None:
        """The cuts of one front, or the first of them; 1F1B at ``size``, or at every size that all stages may have."""
        most = self.makespan / (problem.micro_batches or 1) * (PARAMS.first_reach_of_load if first else 1.0)
        found = front(problem, budget, most, first=first)
        self.whole &= first or found.whole
        if found.points or not (found.whole and self.makespan == math.inf):
            self.impossible = False
        for point in (*found.points, *found.ties):
            self._add(cut_of(self.sized, point.parts, point.devices), [size] if size else self.sized.sizes)

    def _add(self, cut: SizedCut, sizes: Sequence[int]) -> None:
        """A further cut, and 1F1B on it with each of ``sizes`` for all stages."""
        if cut not in self.cuts:
            self.cuts.append(cut)
        for each in sizes:
            if all(each in costs for costs in cut.costs):
                self._try(cut, (each,) * len(cut.parts))

    def _try(self, cut: SizedCut, sizes: tuple[int, ...], bound: float | None = None) -> Candidate[Sizes] | None:
        """1F1B of a choice; ``None`` if its bound rules it out."""
        if (cut, sizes) in self.known:
            return self.known[cut, sizes]
        if bound is None:
            bound = max(min(by_size.values()) for by_size in stage_bounds(cut, tuple((size,) for size in sizes)))
        if bound >= self.makespan:
            return None
        with unwatched():  # it stays known that it was tried
            began = self.budget.now()
            candidate = candidate_of(cut, sizes, bound)
            self._keep_time_afterwards(self.budget.now() - began)
        self.known[cut, sizes] = candidate
        if candidate.value < self.makespan:
            self.best = candidate
            if cut not in self.cuts:
                self.cuts.append(cut)
            if candidate.start is not None:
                self.on_progress(Progress(replace(candidate.start, makespan_bound=min(
                    candidate.value, self.floor)), self.budget.elapsed, "placing"))
        if len(set(sizes)) == 1 and candidate.start is not None and (
                self.at_one_size is None or candidate.value < self.at_one_size.value):
            self.at_one_size = candidate
        return candidate

    def _keep_time_afterwards(self, seconds: float) -> None:
        """Keep time free to judge the answer, as making one 1F1B takes ``seconds``."""
        self.budget.reserve = max(self.budget.reserve, min(_AFTERWARDS * seconds,
                                                           _MOST_AFTERWARDS * self.budget.seconds))

    # -- 2. short steps ---------------------------------------------------------------------------------------------

    def _shortest(self, budget: Budget) -> None:
        """Cuts that allow a short step by load and way, at each size and at the best sizes, as further cuts: they are
        on no front if another graph has less load at the same depth, or as little."""
        problems: list[tuple[int | None, PlacementProblem]] = [*self.sized.by_size.items()]
        for size, problem in [*problems, *([] if self.alike else [(None, self.sized.fastest)])]:
            groups, least = groups_of(problem), self._least(problem)
            if budget.spent or least >= self.makespan:
                continue
            with suppress(TooWide):
                found = least_step(groups, budget, least=least / (problem.micro_batches or 1), most=self.makespan,
                                   params=replace(PARAMS, step_gap=PARAMS.short_gap))
                for stages in dict.fromkeys(found.stages):
                    self._add(cut_of(self.sized, nodes_of(groups, stages), stages.devices),
                              [size] if size else self.sized.sizes)

    # -- 3. and 4. sizes --------------------------------------------------------------------------------------------

    def _descend(self) -> None:
        """From the best choice of each of the best cuts to its neighbours, as long as 1F1B gets shorter. The last one
        is a cut too."""
        by_cut: dict[SizedCut, Candidate[Sizes]] = {}
        for candidate in sorted(self.known.values(), key=lambda candidate: candidate.value):
            if candidate.start is not None:
                by_cut.setdefault(candidate.of.cut, candidate)
        groups = groups_of(self.sized.any)
        for candidate in [*by_cut.values()][:PARAMS.descents]:
            better: Candidate[Sizes] | None = candidate
            while better is not None:
                candidate, better = better, next((
                    found for cut, sizes in self._neighbours(better, groups)
                    if (found := self._try(cut, sizes)) is not None and found.value < better.value), None)
            if candidate.of.cut not in self.cuts:
                self.cuts.append(candidate.of.cut)
        for cut, sizes in [*self.known]:  # other cuts on the way are not searched further
            if cut not in self.cuts:
                del self.known[cut, sizes]

    def _neighbours(self, candidate: Candidate[Sizes], groups: Groups) -> Iterator[tuple[SizedCut, tuple[int, ...]]]:
        if not self.alike:
            yield from ((candidate.of.cut, sizes) for sizes in other_sizes(*candidate.of))
        yield from other_cuts(*candidate.of, groups)

    def _choose(self) -> None:
        if self.alike:
            for cut in self.cuts:
                for size in self.sized.sizes:
                    if all(size in costs for costs in cut.costs):
                        self._try(cut, (size,) * len(cut.parts))
            self.settled = True
            return
        self.choices = SizeSearch(self.cuts)
        while self.choices.bound < self.makespan and self.choices.steps < PARAMS.most_steps:
            for choice in self.choices.below(self.makespan, PARAMS.choice_steps):
                self._try(self.cuts[choice.cut], choice.sizes, choice.bound)

    # -- 5. orders --------------------------------------------------------------------------------------------------

    def _open(self) -> list[Candidate[Sizes]]:
        """The choices that no bound rules out, the most promising first."""
        found = [candidate for candidate in self.known.values() if candidate.bound < self.makespan
                 or candidate is self.best]
        return sorted(found, key=lambda c: (c is not self.best, c.value, c.bound))

    def answer(self) -> PlacedStep:
        """The best step, judged. Raises if there is none."""
        winner = self.orders.leader or self.best
        schedule = None if winner is None else winner.best if winner.search is None else winner.search.result()
        if winner is None or schedule is None:
            raise self._nothing()
        cut, sizes = winner.of
        schedule = replace(schedule, makespan_bound=min(schedule.makespan, max(
            schedule.makespan_bound, winner.bound)))
        faults = sized_judge.faults(self.sized, cut.parts, cut.devices, sizes, schedule)
        if faults:
            raise sized_judge.InvalidStep("; ".join(faults))
        makespan = schedule.makespan
        faulty = [entry.fault for entry in self.orders.entries if entry.fault is not None]
        considered = [replace(self._considered(number, other, makespan), chosen=other == cut)
                      for number, other in enumerate(self.cuts)]
        bound = max(min([makespan, *(row.bound for row in considered)]), min(self.any_bound, makespan))
        return PlacedStep(self.sized, cut, sizes, schedule, bound,
                          min(self.any_bound, makespan), tuple(considered), self.whole,
                          None if self.at_one_size is None or self.at_one_size.start is None else
                          self.at_one_size.start.makespan,
                          self.alike, {"seconds": round(self.budget.elapsed, 3), "choices": len(self.known),
                           "sets_of_sizes": 0 if self.choices is None else self.choices.steps,
                           "orders_searched": len(self.orders.entries), **({"stopped": "; ".join(
                               f"{type(fault).__name__}: {fault}" for fault in faulty)} if faulty else {})})

    def _considered(self, number: int, cut: SizedCut, makespan: float) -> Considered:
        """The state of one cut: no choice, tried or untried, is shorter than its bound."""
        tried = [candidate for candidate in self.known.values() if candidate.of.cut == cut]
        bounds = [candidate.bound for candidate in tried]
        if self.settled:
            rest = math.inf
        elif self.choices is None:
            rest = max(min(by_size.values()) for by_size in stage_bounds(cut, open_sizes(cut)))
        else:
            rest = self.choices.bound_of(number)
        best = min((candidate.value for candidate in tried), default=math.inf)
        return Considered(len(cut.parts), cut.depth, min([rest, makespan, *bounds]),
                          best if best < math.inf else None, len(tried))

    def _nothing(self) -> Exception:
        if self.listed and self.impossible and self.whole:
            return NoPlacement(IMPOSSIBLE)
        for entry in self.orders.entries:
            if entry.fault is not None:
                return entry.fault
            if entry.ruled_out and not self.budget.spent:
                return Infeasible(str(entry.refusal))
        return NoneFound(f"{self.sized.any.name}: found no graph of stages that fits the devices' memory in "
                         f"{self.budget.elapsed:.0f} s, and no proof that there is none; give more time, more memory "
                         "or more devices")


"""One stage of a memory plan: whether some operators from one to another fit a device within a time.

The decision is how many operators of each class (:mod:`weft.solver.placement.memory.classes`) are recomputed and how
many offloaded: integers, not one choice an operator. Three answers, the cheapest first: an upper bound on what can be
saved (no), a greedy choice (yes), and CP-SAT.

With ``strict`` buffers a stage's recompute buffer is sized for the classes that are recomputed at all: as if all their
operators in the stage were. Where every operator is a class of its own this is the largest run itself; otherwise it
is a rule of the plan, not a limit of the device: a stage does one and the same with a class's backward.

One stage of a memory plan as an integer programme: how many operators of each class are recomputed and offloaded.

A knapsack with two resources, time for second forwards and bytes for the copy engine, and buffers that grow with what
is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model
from weft.solver.placement.memory.classes import ClassCounts, Classes, Ints
from weft.solver.placement.memory.plan import MemoryProblem
from weft.solver.placement.params import PARAMS


class StageOracle:
    """Answers for all stages of one problem. ``unknown`` counts questions that CP-SAT left open."""

    def __init__(self, problem: MemoryProblem, budget: Budget) -> None:
        self.problem = problem
        self.budget = budget
        self.classes = Classes.make(problem)
        self.unknown = 0
        #: (stage, start) -> ends and limits that a choice was found for.
        self._shown: dict[tuple[int, int], list[tuple[int, int, ClassCounts]]] = {}
        self.solved = 0
        c = self.classes
        with np.errstate(divide="ignore"):
            density = np.where(c.kept > 0, c.kept / np.maximum(c.forward, 1e-9), -1.0)
        self._by_density = np.argsort(-density, kind="stable")
        self._by_size = np.argsort(-c.kept, kind="stable")
        sizes = np.unique(c.kept)
        if len(sizes) > PARAMS.buffer_levels:
            sizes = sizes[np.linspace(0, len(sizes) - 1, PARAMS.buffer_levels).round().astype(int)]
        self._levels = sizes
        self._recomputes = "recompute" in problem.modes
        self._offloads = "offload" in problem.modes

    # -- amounts ---------------------------------------------------------------------------------------------------

    def spare_time(self, first: int, last: int, limit: int) -> int:
        """Nanoseconds left for second forwards; negative where the stage does not fit ``limit`` at all."""
        if self.problem.link_time(first) > limit:
            return -1
        total = self.problem.totals[0]
        return limit - (total[last] - total[first])

    def excess(self, stage: int, first: int, last: int) -> int:
        """Bytes that must be saved: what the stage holds if everything is kept, less the memory."""
        _, kept, resident = self.problem.totals
        count = self.problem.in_flight(stage)
        return (resident[last] - resident[first] - self.problem.memory
                + count * (kept[last] - kept[first] + self.problem.input_bytes(first)))

    # -- the question ----------------------------------------------------------------------------------------------

    def fits(self, stage: int, first: int, last: int, limit: int) -> bool:
        """Whether operators ``first`` to ``last - 1`` fit as ``stage`` within ``limit`` nanoseconds."""
        quick = self.quick(stage, first, last, limit)
        if quick is not None:
            return quick
        choice = self.choose(stage, first, last, limit)
        return choice is not None and self._remember(stage, first, last, limit, choice)

    def quick(self, stage: int, first: int, last: int, limit: int) -> bool | None:
        """Yes, no, or not known without a search."""
        spare, excess = self.spare_time(first, last, limit), self.excess(stage, first, last)
        if spare < 0:
            return False
        if excess <= 0:
            return True
        if not self.problem.modes or self._most_saved(stage, first, last, spare, limit) < excess:
            return False
        choice = self._greedy(stage, first, last, spare, limit, excess)
        return None if choice is None else self._remember(stage, first, last, limit, choice)

    def _remember(self, stage: int, first: int, last: int, limit: int, choice: ClassCounts) -> bool:
        self._shown.setdefault((stage, first), []).append((last, limit, choice))
        return True

    def _recalled(self, stage: int, first: int, last: int, limit: int) -> ClassCounts:
        """The choice by which this stage, or a longer one from the same start, was shown to fit."""
        there = self.classes.before[last] - self.classes.before[first]
        for end, at, choice in self._shown.get((stage, first), ()):
            if end >= last and at <= limit:
                recompute = np.minimum(choice.recompute, there)
                return ClassCounts(recompute, np.minimum(choice.offload, there - recompute))
        raise AssertionError("a stage that fits was shown to")

    def _offload_gain(self, stage: int) -> int:
        """Bytes saved by each offloaded byte, buffers of whole micro-batches taken off."""
        return self.problem.in_flight(stage) - (self.problem.copy_buffers if self.problem.rules == "strict" else 0)

    def _most_saved(self, stage: int, first: int, last: int, spare: int, limit: int) -> int:
        """No choice saves more.

        For each level of the largest recomputed operator: the fractional knapsack over operators up to it, by bytes
        per nanosecond, less a buffer of the level below. Likewise for copies, where every byte saves as much as every
        other one, so the copy engine's bytes are the bound. The two may count an operator twice, which only adds.
        """
        c, count = self.classes, self.problem.in_flight(stage)
        there = c.before[last] - c.before[first]
        best_recompute = 0.0
        if self._recomputes:
            order = self._by_density
            number = np.where(c.kept[order] > 0, there[order], 0)
            for level, size in enumerate(self._levels):
                taken = np.where(c.kept[order] <= size, number, 0)
                times = np.cumsum(taken * c.forward[order])
                values = np.cumsum(taken * c.kept[order])
                at = int(np.searchsorted(times, spare, side="right"))
                value = float(values[at - 1]) if at else 0.0
                if at < len(order):
                    left = spare - (int(times[at - 1]) if at else 0)
                    value += left * float(c.kept[order[at]] / max(1, c.forward[order[at]]))
                below = int(self._levels[level - 1]) if level else 0
                best_recompute = max(best_recompute, count * value - below)
        best_offload = 0
        gain = self._offload_gain(stage)
        if self._offloads and gain > 0:
            limit_bytes = self.problem.copy_bytes(limit)
            for level, size in enumerate(self._levels):
                there_bytes = int((there * c.kept)[c.kept <= size].sum())
                below = int(self._levels[level - 1]) if level and self.problem.rules == "published" else 0
                buffers = self.problem.copy_buffers * below
                best_offload = max(best_offload, gain * min(limit_bytes, there_bytes) - buffers)
        return int(best_recompute) + 1 + best_offload

    def _greedy(self, stage: int, first: int, last: int, spare: int, limit: int, excess: int) -> ClassCounts | None:
        """A choice that fits: recompute what saves most per nanosecond up to a size, then offload the largest."""
        there = self.classes.before[last] - self.classes.before[first]
        for size in (*self._levels[::-1], -1) if self._recomputes else (-1,):
            recompute = self._recomputed(there, spare, int(size))
            offloads = self._levels[::-1] if self._offloads and self._offload_gain(stage) > 0 else (-1,)
            for largest in offloads[:4]:
                choice = self._offloaded(there - recompute, recompute, limit, int(largest))
                if self.saved(stage, first, last, choice) >= excess:
                    return choice
            if size < 0:
                break
        return None

    def _recomputed(self, there: Ints, spare: int, size: int) -> Ints:
        c = self.classes
        taken = np.zeros_like(there)
        for k in self._by_density:
            if c.kept[k] <= 0:
                break
            if there[k] and c.kept[k] <= size:
                taken[k] = min(int(there[k]), spare // max(1, int(c.forward[k])))
                spare -= int(taken[k] * c.forward[k])
        return taken

    def _offloaded(self, there: Ints, recompute: Ints, limit: int, largest: int) -> ClassCounts:
        c, left = self.classes, self.problem.copy_bytes(limit) if largest >= 0 else 0
        taken = np.zeros_like(there)
        for k in self._by_size:
            size = int(c.kept[k])
            if there[k] and 0 < size <= largest and size <= left:
                taken[k] = min(int(there[k]), left // size)
                left -= int(taken[k]) * size
        return ClassCounts(recompute, taken)

    def saved(self, stage: int, first: int, last: int, choice: ClassCounts) -> int:
        """Bytes that ``choice`` saves against keeping everything, buffers taken off."""
        c, problem = self.classes, self.problem
        offloaded = int((choice.offload * c.kept).sum())
        dropped = int((choice.recompute * c.kept).sum()) - self._staying(first, last, choice.recompute)
        saved = problem.in_flight(stage) * (dropped + offloaded)
        used = choice.recompute > 0
        if problem.rules == "published":
            copied = c.kept[choice.offload > 0].max(initial=0)
            return int(saved - c.kept[used].max(initial=0) - problem.copy_buffers * copied)
        longest = acc = 0
        for k in c.of[first:last].tolist():
            acc = acc + int(c.kept[k]) if used[k] else 0
            longest = max(longest, acc)
        return saved - longest - problem.copy_buffers * offloaded

    def _staying(self, first: int, last: int, recompute: Ints) -> int:
        """Bytes that stay at the beginnings of runs, if of each class the first operators are recomputed.

        Operators of a class and those of the class before it stand in pairs; with the first ones of both recomputed,
        only as many runs begin with the class as it has recomputed operators more.
        """
        c, staying = self.classes, 0
        for k in np.flatnonzero((recompute > 0) & (c.passing > 0)).tolist():
            begins, alone = c.unpaired(k, first, last)
            p = int(c.follows[k])
            paired = max(0, int(recompute[p]) - alone) if p >= 0 else 0
            staying += int(c.passing[k]) * max(0, int(recompute[k]) - begins - paired)
        return staying

    # -- CP-SAT ----------------------------------------------------------------------------------------------------

    def choose(self, stage: int, first: int, last: int, limit: int) -> ClassCounts | None:
        """A choice that fits, from CP-SAT; ``None``: there is none, or (then ``unknown`` counts it) the effort was not
        enough to say."""
        spare, excess = self.spare_time(first, last, limit), self.excess(stage, first, last)
        return None if spare < 0 else self._run(self._model(stage, first, last, limit, spare, excess))

    def lightest(self, stage: int, first: int, last: int, limit: int) -> ClassCounts:
        """For a stage that fits: a choice of least recomputed time, and of those one of least copied bytes."""
        spare, excess = self.spare_time(first, last, limit), self.excess(stage, first, last)
        nothing = np.zeros_like(self.classes.kept)
        if excess <= 0:
            return ClassCounts(nothing, nothing)
        model = self._model(stage, first, last, limit, spare, excess)
        model.model.minimize(model.recomputing)
        found = self._run(model)
        if found is None:  # time is up
            return self._recalled(stage, first, last, limit)
        spare = int((found.recompute * self.classes.forward).sum())
        model = self._model(stage, first, last, limit, spare, excess)
        model.model.minimize(model.copying)
        return self._run(model) or found

    def _model(self, stage: int, first: int, last: int, limit: int, spare: int, excess: int) -> StageModel:
        return StageModel(self.problem, self.classes, stage, first, last, spare=spare,
                          copy_bytes=self.problem.copy_bytes(limit), excess=excess)

    def _run(self, model: StageModel) -> ClassCounts | None:
        self.solved += 1
        outcome = run(model.model, self.budget, deterministic=PARAMS.stage_effort, presolve=True)
        if not outcome.found:
            self.unknown += not outcome.infeasible
            return None
        return model.choice(outcome.solver)


#: What CP-SAT's numbers hold: no sum of times or sizes is above it, a limit may be.
_MOST = 2**62


class StageModel:
    """The integer programme of one stage: within ``spare`` nanoseconds for second forwards and ``copy_bytes`` for the
    copy engine, ``excess`` bytes are saved. ``recomputing`` and ``copying`` are what it takes of the two."""

    def __init__(self, problem: MemoryProblem, classes: Classes, stage: int, first: int, last: int, *, spare: int,
                 copy_bytes: int, excess: int) -> None:
        c = classes
        there = c.before[last] - c.before[first]
        self.size = len(there)
        self.present = [int(k) for k in np.flatnonzero(there)]
        self.model = model = cp_model.CpModel()
        self.recompute: dict[int, cp_model.IntVar] = {}
        self.offload: dict[int, cp_model.IntVar] = {}
        for k in self.present:
            number = int(there[k])
            self.recompute[k] = model.new_int_var(0, number if "recompute" in problem.modes else 0, f"recompute {k}")
            self.offload[k] = model.new_int_var(0, number if "offload" in problem.modes else 0, f"offload {k}")
            model.add(self.recompute[k] + self.offload[k] <= number)
        self.recomputing = _sum((int(c.forward[k]), self.recompute[k]) for k in self.present)
        copied = [(int(c.kept[k]), self.offload[k]) for k in self.present]
        self.copying = _sum(copied)
        model.add(self.recomputing <= min(spare, _MOST))
        model.add(self.copying <= min(copy_bytes, _MOST))
        held = [(int(c.kept[k]), chosen[k]) for chosen in (self.recompute, self.offload) for k in self.present]
        held += [(-size, starts) for size, starts in self._staying(c, first, last)]
        held = [(problem.in_flight(stage) * size, number) for size, number in held]
        buffer = model.new_int_var(0, int((there * c.kept).sum()), "recompute buffer")
        used = {k: model.new_bool_var(f"recomputes {k}") for k in self.present}
        for k in self.present:
            model.add(self.recompute[k] <= int(there[k]) * used[k])
        if problem.rules == "published":
            copies = model.new_int_var(0, max(int(c.kept[k]) for k in self.present), "copy buffer")
            for k in self.present:
                model.add(buffer >= int(c.kept[k]) * used[k])
                has = model.new_bool_var(f"offloads {k}")
                model.add(self.offload[k] <= int(there[k]) * has)
                model.add(copies >= int(c.kept[k]) * has)
            model.add(_sum([*held, (-1, buffer), (-problem.copy_buffers, copies)]) >= excess)
            return
        self._add_runs(c.of[first:last].tolist(), c.kept, used, buffer)
        buffers = [(-problem.copy_buffers * size, number) for size, number in copied]
        model.add(_sum([*held, (-1, buffer), *buffers]) >= excess)

    def _staying(self, c: Classes, first: int, last: int) -> list[tuple[int, cp_model.IntVar]]:
        """Bytes that stay at the beginnings of runs, and how many runs begin so: what the stage's quick answers count
        for a given choice, as rows of the model."""
        terms: list[tuple[int, cp_model.IntVar]] = []
        for k in self.present:
            if not c.passing[k]:
                continue
            begins, alone = c.unpaired(k, first, last)
            starts = self.model.new_int_var(0, int(c.before[last, k] - c.before[first, k]), f"runs from {k}")
            p = int(c.follows[k])
            if p not in self.recompute:
                self.model.add(starts >= self.recompute[k] - begins)
            elif not alone:
                self.model.add(starts >= self.recompute[k] - begins - self.recompute[p])
            else:
                some = self.model.new_bool_var(f"pairs of {k}")
                self.model.add(starts >= self.recompute[k] - begins).only_enforce_if(~some)
                self.model.add(starts >= self.recompute[k] - begins - self.recompute[p] + alone).only_enforce_if(some)
                self.model.add(self.recompute[p] >= alone).only_enforce_if(some)
            terms.append((int(c.passing[k]), starts))
        return terms

    def _add_runs(self, order: Sequence[int], kept: Ints, used: dict[int, cp_model.IntVar],
                  buffer: cp_model.IntVar) -> None:
        """``buffer`` holds every run of operators whose classes are recomputed."""
        before: cp_model.LinearExprT = 0
        most = int(sum(kept[k] for k in order))
        for at, k in enumerate(order):
            level = self.model.new_int_var(0, most, f"run {at}")
            self.model.add(level >= before + int(kept[k])).only_enforce_if(used[k])
            self.model.add(buffer >= level)
            before = level

    def choice(self, solver: cp_model.CpSolver) -> ClassCounts:
        """The choice of a solution."""
        recompute, offload = np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=np.int64)
        for k in self.present:
            recompute[k], offload[k] = solver.value(self.recompute[k]), solver.value(self.offload[k])
        return ClassCounts(recompute, offload)


def _sum(terms: Iterable[tuple[int, cp_model.IntVar]]) -> cp_model.LinearExprT:
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for _, variable in pairs], [factor for factor, _ in pairs])

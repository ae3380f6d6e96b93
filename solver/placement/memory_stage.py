"""One stage of a memory plan: whether some operators from one to another fit a device within a time.

Operators of one class (equal kind and costs) are interchangeable, so the decision is how many of each class are
recomputed and how many offloaded: integers, not one choice an operator. The rows are a knapsack with two resources,
time for second forwards and bytes for the copy engine.

Three answers, the cheapest first: an upper bound on what can be saved (no), a greedy choice (yes), and CP-SAT. With
``strict`` buffers a stage's recompute buffer is sized for the classes that are recomputed at all: as if all their
operators in the stage were. Where every operator is a class of its own this is the largest run itself; otherwise it
is a rule of the plan, not a limit of the device: a stage does one and the same with a class's backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from solver.cpsat import Budget, run
from solver.placement.memory import MemoryProblem, Mode

__all__ = ["Choice", "Classes", "StageOracle", "modes_of"]

_Ints = npt.NDArray[np.int64]
#: Thresholds of buffer sizes that the quick bound tells apart.
_LEVELS = 12
#: CP-SAT's deterministic seconds for one question about one stage.
_EFFORT = 2.0


@dataclass(frozen=True)
class Classes:
    """The operators of a problem by class: ``of`` says which, ``before`` counts the first operators by class, the
    other arrays have one entry a class.

    ``passing``: bytes that stay where a run begins with an operator of the class. ``follows``: the class that stands
    before every operator of it, -1 where there are several.
    """

    of: _Ints
    before: _Ints
    forward: _Ints
    kept: _Ints
    passing: _Ints
    follows: _Ints

    @classmethod
    def make(cls, problem: MemoryProblem) -> Classes:
        """The classes of ``problem``."""
        index: dict[tuple[object, ...], int] = {}
        of = []
        for k, op in enumerate(problem.operators):
            key = (op.kind or ("alone", k), op.forward, op.kept, problem.passing_bytes(k))
            of.append(index.setdefault(key, len(index)))
        rows = list(index)
        before = np.zeros((len(of) + 1, len(rows)), dtype=np.int64)
        follows = np.full(len(rows), -2, dtype=np.int64)
        for k, c in enumerate(of):
            before[k + 1] = before[k]
            before[k + 1, c] += 1
            if k:
                follows[c] = of[k - 1] if follows[c] in (-2, of[k - 1]) else -1
        forward, kept, passing = (np.array([row[field] for row in rows], dtype=np.int64) for field in (1, 2, 3))
        return cls(np.array(of), before, forward, kept, passing, np.maximum(follows, -1))

    def unpaired(self, k: int, first: int, last: int) -> tuple[int, int]:
        """For class ``k`` in a stage: its operators that begin the stage, and operators of the class it follows that
        stand before none of it (the last of the stage apart)."""
        begins = int(self.of[first] == k)
        p = int(self.follows[k])
        if p < 0:
            return begins, 0
        there = self.before[last] - self.before[first]
        return begins, int(there[p]) - (int(there[k]) - begins) - int(self.of[last - 1] == p)


@dataclass(frozen=True)
class Choice:
    """How many operators of each class are recomputed and offloaded, and whether what is received is offloaded."""

    recompute: _Ints
    offload: _Ints
    input_offloaded: bool


class StageOracle:
    """Answers for all stages of one problem. ``unknown`` counts questions that CP-SAT left open."""

    def __init__(self, problem: MemoryProblem, budget: Budget) -> None:
        self.problem = problem
        self.budget = budget
        self.classes = Classes.make(problem)
        self.unknown = 0
        #: (stage, start) -> ends and limits that a choice was found for.
        self._shown: dict[tuple[int, int], list[tuple[int, int, Choice]]] = {}
        self.solved = 0
        c = self.classes
        with np.errstate(divide="ignore"):
            density = np.where(c.kept > 0, c.kept / np.maximum(c.forward, 1e-9), -1.0)
        self._by_density = np.argsort(-density, kind="stable")
        self._by_size = np.argsort(-c.kept, kind="stable")
        sizes = np.unique(c.kept)
        if len(sizes) > _LEVELS:
            sizes = sizes[np.linspace(0, len(sizes) - 1, _LEVELS).round().astype(int)]
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
        _, kept, resident, weights = self.problem.totals
        count = self.problem.in_flight(stage)
        versions = (count - 1) * (weights[last] - weights[first]) if self.problem.versions else 0
        return (resident[last] - resident[first] + versions - self.problem.memory
                + count * (kept[last] - kept[first] + self.problem.input_bytes(first)))

    def copy_bytes(self, limit: int) -> int:
        """Bytes that the copy engine can take away and bring back within ``limit``."""
        size = int(self.problem.copy_bandwidth * limit / 2e9)
        while self.problem.copy_time(size) > limit:
            size -= 1
        return max(0, size)

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

    def _remember(self, stage: int, first: int, last: int, limit: int, choice: Choice) -> bool:
        self._shown.setdefault((stage, first), []).append((last, limit, choice))
        return True

    def _recalled(self, stage: int, first: int, last: int, limit: int) -> Choice:
        """The choice by which this stage, or a longer one from the same start, was shown to fit."""
        there = self.classes.before[last] - self.classes.before[first]
        for end, at, choice in self._shown.get((stage, first), ()):
            if end >= last and at <= limit:
                recompute = np.minimum(choice.recompute, there)
                return Choice(recompute, np.minimum(choice.offload, there - recompute), choice.input_offloaded)
        raise AssertionError("a stage that fits was shown to")

    def _offload_gain(self, stage: int) -> int:
        """Bytes saved by each offloaded byte, buffers of whole micro-batches taken off."""
        return self.problem.in_flight(stage) - (2 if self.problem.rules == "strict" else 0)

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
            received = self.problem.movable_input_bytes(first)
            limit_bytes = self.copy_bytes(limit)
            for level, size in enumerate(self._levels):
                there_bytes = int((there * c.kept)[c.kept <= size].sum()) + received
                below = int(self._levels[level - 1]) if level and self.problem.rules == "published" else 0
                best_offload = max(best_offload, gain * min(limit_bytes, there_bytes) - 2 * below)
        return int(best_recompute) + 1 + best_offload

    def _greedy(self, stage: int, first: int, last: int, spare: int, limit: int, excess: int) -> Choice | None:
        """A choice that fits: recompute what saves most per nanosecond up to a size, then offload the largest."""
        there = self.classes.before[last] - self.classes.before[first]
        for size in (*self._levels[::-1], -1) if self._recomputes else (-1,):
            recompute = self._recomputed(there, spare, int(size))
            offloads = self._levels[::-1] if self._offloads and self._offload_gain(stage) > 0 else (-1,)
            for largest in offloads[:4]:
                choice = self._offloaded(first, there - recompute, recompute, limit, int(largest))
                if self.saved(stage, first, last, choice) >= excess:
                    return choice
            if size < 0:
                break
        return None

    def _recomputed(self, there: _Ints, spare: int, size: int) -> _Ints:
        c = self.classes
        taken = np.zeros_like(there)
        for k in self._by_density:
            if c.kept[k] <= 0:
                break
            if there[k] and c.kept[k] <= size:
                taken[k] = min(int(there[k]), spare // max(1, int(c.forward[k])))
                spare -= int(taken[k] * c.forward[k])
        return taken

    def _offloaded(self, first: int, there: _Ints, recompute: _Ints, limit: int, largest: int) -> Choice:
        c, left = self.classes, self.copy_bytes(limit) if largest >= 0 else 0
        received = self.problem.movable_input_bytes(first)
        with_input = 0 < received <= min(left, largest)
        left -= received if with_input else 0
        taken = np.zeros_like(there)
        for k in self._by_size:
            size = int(c.kept[k])
            if there[k] and 0 < size <= largest and size <= left:
                taken[k] = min(int(there[k]), left // size)
                left -= int(taken[k]) * size
        return Choice(recompute, taken, with_input)

    def saved(self, stage: int, first: int, last: int, choice: Choice) -> int:
        """Bytes that ``choice`` saves against keeping everything, buffers taken off."""
        c, problem = self.classes, self.problem
        received = problem.input_bytes(first) if choice.input_offloaded else 0
        offloaded = int((choice.offload * c.kept).sum()) + received
        dropped = int((choice.recompute * c.kept).sum()) - self._staying(first, last, choice.recompute)
        saved = problem.in_flight(stage) * (dropped + offloaded)
        used = choice.recompute > 0
        if problem.rules == "published":
            copied = max([received, *c.kept[choice.offload > 0].tolist()])
            return int(saved - c.kept[used].max(initial=0) - 2 * copied)
        longest = acc = 0
        for k in c.of[first:last].tolist():
            acc = acc + int(c.kept[k]) if used[k] else 0
            longest = max(longest, acc)
        return saved - longest - 2 * offloaded

    def _staying(self, first: int, last: int, recompute: _Ints) -> int:
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

    def choose(self, stage: int, first: int, last: int, limit: int) -> Choice | None:
        """A choice that fits, from CP-SAT; ``None``: there is none, or (then ``unknown`` counts it) the effort was not
        enough to say."""
        spare, excess = self.spare_time(first, last, limit), self.excess(stage, first, last)
        return None if spare < 0 else self._run(_StageModel(self, stage, first, last, spare, limit, excess))

    def lightest(self, stage: int, first: int, last: int, limit: int) -> Choice:
        """For a stage that fits: a choice of least recomputed time, and of those one of least copied bytes."""
        spare, excess = self.spare_time(first, last, limit), self.excess(stage, first, last)
        nothing = np.zeros_like(self.classes.kept)
        if excess <= 0:
            return Choice(nothing, nothing, False)
        model = _StageModel(self, stage, first, last, spare, limit, excess)
        model.model.minimize(model.recomputing)
        found = self._run(model)
        if found is None:  # time is up
            return self._recalled(stage, first, last, limit)
        spare = int((found.recompute * self.classes.forward).sum())
        model = _StageModel(self, stage, first, last, spare, limit, excess)
        model.model.minimize(model.copying)
        return self._run(model) or found

    def _run(self, model: _StageModel) -> Choice | None:
        self.solved += 1
        outcome = run(model.model, self.budget, deterministic=_EFFORT, presolve=True)
        if not outcome.found:
            self.unknown += not outcome.infeasible
            return None
        return model.choice(outcome.solver)


class _StageModel:
    """The integer programme of one stage, sizes in bytes and times in nanoseconds."""

    def __init__(self, oracle: StageOracle, stage: int, first: int, last: int, spare: int, limit: int,
                 excess: int) -> None:
        problem, c = oracle.problem, oracle.classes
        there = c.before[last] - c.before[first]
        self.size = len(there)
        self.present = [int(k) for k in np.flatnonzero(there)]
        self.model = model = cp_model.CpModel()
        self.recompute: dict[int, cp_model.IntVar] = {}
        self.offload: dict[int, cp_model.IntVar] = {}
        received = problem.movable_input_bytes(first)
        self.input = model.new_bool_var("input offloaded")
        if not received:
            model.add(self.input == 0)
        for k in self.present:
            number = int(there[k])
            self.recompute[k] = model.new_int_var(0, number if "recompute" in problem.modes else 0, f"recompute {k}")
            self.offload[k] = model.new_int_var(0, number if "offload" in problem.modes else 0, f"offload {k}")
            model.add(self.recompute[k] + self.offload[k] <= number)
        self.recomputing = _sum((int(c.forward[k]), self.recompute[k]) for k in self.present)
        copied = [*((int(c.kept[k]), self.offload[k]) for k in self.present), (received, self.input)]
        self.copying = _sum(copied)
        model.add(self.recomputing <= spare)
        model.add(self.copying <= oracle.copy_bytes(limit))
        held = [(int(c.kept[k]), chosen[k]) for chosen in (self.recompute, self.offload) for k in self.present]
        held += [(received, self.input), *((-size, starts) for size, starts in self._staying(c, first, last))]
        held = [(problem.in_flight(stage) * size, number) for size, number in held]
        buffer = model.new_int_var(0, int((there * c.kept).sum()), "recompute buffer")
        used = {k: model.new_bool_var(f"recomputes {k}") for k in self.present}
        for k in self.present:
            model.add(self.recompute[k] <= int(there[k]) * used[k])
        if problem.rules == "published":
            copies = model.new_int_var(0, max([received, *(int(c.kept[k]) for k in self.present)]), "copy buffer")
            model.add(copies >= received * self.input)
            for k in self.present:
                model.add(buffer >= int(c.kept[k]) * used[k])
                has = model.new_bool_var(f"offloads {k}")
                model.add(self.offload[k] <= int(there[k]) * has)
                model.add(copies >= int(c.kept[k]) * has)
            model.add(_sum([*held, (-1, buffer), (-2, copies)]) >= excess)
            return
        self._add_runs(c.of[first:last].tolist(), c.kept, used, buffer)
        model.add(_sum([*held, (-1, buffer), *((-2 * size, number) for size, number in copied)]) >= excess)

    def _staying(self, c: Classes, first: int, last: int) -> list[tuple[int, cp_model.IntVar]]:
        """As :meth:`StageOracle._staying`, in rows: bytes, and how many runs begin so."""
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

    def _add_runs(self, order: Sequence[int], kept: _Ints, used: dict[int, cp_model.IntVar],
                  buffer: cp_model.IntVar) -> None:
        """``buffer`` holds every run of operators whose classes are recomputed."""
        before: cp_model.LinearExprT = 0
        most = int(sum(kept[k] for k in order))
        for at, k in enumerate(order):
            level = self.model.new_int_var(0, most, f"run {at}")
            self.model.add(level >= before + int(kept[k])).only_enforce_if(used[k])
            self.model.add(buffer >= level)
            before = level

    def choice(self, solver: cp_model.CpSolver) -> Choice:
        recompute, offload = np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=np.int64)
        for k in self.present:
            recompute[k], offload[k] = solver.value(self.recompute[k]), solver.value(self.offload[k])
        return Choice(recompute, offload, bool(solver.value(self.input)))


def _sum(terms: Iterable[tuple[int, cp_model.IntVar]]) -> cp_model.LinearExprT:
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for _, variable in pairs], [factor for factor, _ in pairs])


def modes_of(oracle: StageOracle, first: int, last: int, choice: Choice) -> list[Mode]:
    """A mode for each operator of the stage: the first ones of a class are recomputed, the next offloaded."""
    recompute, offload = choice.recompute.tolist(), choice.offload.tolist()
    modes: list[Mode] = []
    for k in oracle.classes.of[first:last].tolist():
        if recompute[k]:
            recompute[k] -= 1
            modes.append("recompute")
        elif offload[k]:
            offload[k] -= 1
            modes.append("offload")
        else:
            modes.append("keep")
    return modes

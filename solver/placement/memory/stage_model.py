"""One stage of a memory plan as an integer programme: how many operators of each class are recomputed and offloaded.

A knapsack with two resources, time for second forwards and bytes for the copy engine, and buffers that grow with what
is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from weft.solver.late import cp_model
from weft.solver.placement.memory.classes import ClassCounts, Classes, Ints
from weft.solver.placement.memory.plan import MemoryProblem

__all__ = ["StageModel"]

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
        model.add(self.recomputing <= min(spare, _MOST))
        model.add(self.copying <= min(copy_bytes, _MOST))
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
        """What a solution chooses."""
        recompute, offload = np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=np.int64)
        for k in self.present:
            recompute[k], offload[k] = solver.value(self.recompute[k]), solver.value(self.offload[k])
        return ClassCounts(recompute, offload, bool(solver.value(self.input)))


def _sum(terms: Iterable[tuple[int, cp_model.IntVar]]) -> cp_model.LinearExprT:
    pairs = list(terms)
    return cp_model.LinearExpr.weighted_sum([variable for _, variable in pairs], [factor for factor, _ in pairs])

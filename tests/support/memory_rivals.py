"""What the memory planner is compared with, on the same chain, the same devices and the same counting of memory.

None of these is the published program; each is its rule, solved as well as it can be. Every one cuts between layers
except :func:`within_windows`.

* :func:`balanced`: the cuts that divide the work best, everything kept, memory not looked at.
* :func:`keeping`: everything kept, the best cuts that fit; with ``versions`` a stage also holds a version of its
  weights for every micro-batch in flight, as PipeDream does (Narayanan et al., SOSP 2019).
* :func:`~weft.solver.placement.memory.layer_rule.whole_layers`: as vPipe plans, with the best cuts for its rule.
* :func:`within_windows`: each cut between where it would balance the work and where it would balance the memory, as
  DawnPiper restricts its cuts; within these windows to the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from weft.solver.placement.memory.layer_rule import layer_starts
from weft.solver.placement.memory.plan import MemoryPlan, MemoryProblem, Mode, NoMemoryPlan
from weft.solver.placement.memory.plan_memory import plan_memory

_NOTHING: frozenset[Mode] = frozenset()


def between_layers(problem: MemoryProblem) -> MemoryProblem:
    """The same problem with cuts between layers only."""
    return replace(problem, windows=(layer_starts(problem.operators),) * (problem.stages - 1))


def keeping(problem: MemoryProblem, *, versions: bool = False) -> MemoryPlan:
    """The best cuts between layers that fit with everything kept. Raises :class:`NoMemoryPlan`."""
    return plan_memory(replace(between_layers(problem), modes=_NOTHING, versions=versions))


def balanced(problem: MemoryProblem) -> MemoryPlan:
    """The cuts between layers that divide the work best. Raises :class:`NoMemoryPlan` if a stage lacks memory."""
    endless = sum(op.kept + op.output + op.resident for op in problem.operators) * (problem.stages + 1)
    cuts = keeping(replace(problem, memory=endless))
    plan = replace(cuts, problem=replace(problem, modes=_NOTHING))
    if not plan.fits:
        raise NoMemoryPlan("a stage of the split that divides the work best lacks memory")
    return plan


def balance_windows(problem: MemoryProblem) -> tuple[frozenset[int], ...]:
    """For each cut, the operators from where it balances the work to where it balances the memory."""
    count, stages = len(problem.operators), problem.stages
    work = [op.forward + op.backward for op in problem.operators]
    totals = list(accumulate(work, initial=0))
    even = [min(range(1, count), key=lambda k: abs(totals[k] * stages - s * totals[-1])) for s in range(1, stages)]
    level = _memory_cuts(problem)
    return tuple(frozenset(range(min(a, b), max(a, b) + 1)) for a, b in zip(even, level, strict=True))


def _memory_cuts(problem: MemoryProblem) -> list[int]:
    """The cuts that make the largest need least with everything kept: stages filled up to a limit, by bisection."""
    ops, stages = problem.operators, problem.stages

    def fill(limit: int) -> list[int] | None:
        cuts, at = [], 0
        for stage in range(stages):
            need, flight = 0, problem.in_flight(stage)
            last = len(ops) - (stages - 1 - stage)
            begin = at
            while at < last:
                need += ops[at].resident + flight * ops[at].kept
                if need > limit and at > begin:
                    break
                at += 1
            cuts.append(at)
        return cuts[:-1] if cuts[-1] == len(ops) and _largest(cuts) <= limit else None

    def _largest(ends: Sequence[int]) -> int:
        begins = [0, *ends[:-1]]
        return max(sum(op.resident + problem.in_flight(s) * op.kept for op in ops[a:b])
                   for s, (a, b) in enumerate(zip(begins, ends, strict=True)))

    low, high = 0, sum(op.resident + stages * op.kept for op in ops)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fill(middle) is not None else (middle + 1, high)
    found = fill(low)
    assert found is not None
    return found


def within_windows(problem: MemoryProblem) -> MemoryPlan:
    """The optimum within :func:`balance_windows`. Raises :class:`NoMemoryPlan`."""
    return plan_memory(replace(problem, windows=balance_windows(problem)))

"""What the memory planner is compared with, on the same chain, the same devices and the same counting of memory.

None of these is the published program; each is its rule, solved as well as it can be. Every one cuts between layers
except :func:`within_windows`.

* :func:`balanced`: the cuts that divide the work best, everything kept, memory not looked at.
* :func:`keeping`: everything kept, the best cuts that fit; with ``versions`` a stage also holds a version of its
  weights for every micro-batch in flight, as PipeDream does (Narayanan et al., SOSP 2019).
* :func:`whole_layers`: as vPipe plans (Zhao et al., TPDS 2022): a stage that lacks memory swaps whole layers while
  that hides behind the computation, then recomputes whole layers, those first that free most for their time. The cuts
  are the best for this rule, where vPipe improves them step by step.
* :func:`within_windows`: each cut between where it would balance the work and where it would balance the memory, as
  DawnPiper restricts its cuts; within these windows to the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem, Mode, measure
from weft.solver.placement.memory.plan_memory import NoMemoryPlan, plan_memory

__all__ = ["balance_windows", "balanced", "between_layers", "keeping", "layer_starts", "whole_layers", "within_windows"]

_NOTHING: frozenset[Mode] = frozenset()


def layer_starts(operators: Sequence[ChainOperator]) -> frozenset[int]:
    """Where a layer begins, the first one apart."""
    return frozenset(k for k in range(1, len(operators))
                     if not operators[k].layer or operators[k].layer != operators[k - 1].layer)


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


def whole_layers(problem: MemoryProblem) -> MemoryPlan:
    """The best cuts where every stage swaps and recomputes whole layers by vPipe's rule. Raises
    :class:`NoMemoryPlan`."""
    starts = [0, *sorted(layer_starts(problem.operators)), len(problem.operators)]
    count, stages = len(starts) - 1, problem.stages
    if count < stages:
        raise NoMemoryPlan(f"{count} layers cannot fill {stages} stages")
    best: list[dict[int, tuple[int, tuple[int, ...]]]] = [{0: (0, (0,))}]
    for stage in range(stages):
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (time, cuts) in best[-1].items():
            ends = range(start + 1, count - (stages - 1 - stage) + 1) if stage < stages - 1 else (count,)
            for end in ends:
                found = _swapped(problem, stage, starts[start:end + 1])
                if found is None:
                    break  # longer stages need more memory still
                slowest = max(time, found[0])
                if end not in reached or slowest < reached[end][0]:
                    reached[end] = slowest, (*cuts, starts[end])
        best.append(reached)
    if count not in best[-1]:
        raise NoMemoryPlan("no cuts between layers fit with whole layers swapped and recomputed")
    cuts = best[-1][count][1]
    modes: list[Mode] = []
    for stage in range(stages):
        found = _swapped(problem, stage, [k for k in starts if cuts[stage] <= k <= cuts[stage + 1]])
        assert found is not None
        modes += found[1]
    kept: list[Mode] = ["keep"] * stages
    return MemoryPlan(problem, cuts, tuple(modes), tuple(kept))


def _swapped(problem: MemoryProblem, stage: int, starts: Sequence[int]) -> tuple[int, list[Mode]] | None:
    """The time of a stage of the layers that begin at ``starts`` (its end behind them), and its modes.

    Swaps first, the largest layers first, while the copies take no longer than the stage computes; then layers are
    recomputed, by bytes freed for each nanosecond. A recomputed layer's last operator is kept: the next layer needs
    it.
    """
    ops, first, last = problem.operators, starts[0], starts[-1]
    layers = list(pairwise(starts))
    work = sum(op.forward + op.backward for op in ops[first:last])
    held = {layer: sum(op.kept for op in ops[slice(*layer)]) for layer in layers}
    modes: list[Mode] = ["keep"] * (last - first)

    def measured() -> tuple[int, int]:
        return _stage_time_memory(problem, stage, first, last, modes)

    if measured()[1] <= problem.memory:
        return measured()[0], modes
    copied = 0
    if "offload" in problem.modes:
        for layer in sorted(layers, key=lambda each: -held[each]):
            if problem.copy_time(copied + held[layer]) > work:
                continue
            before = measured()[1]
            trial = modes.copy()
            trial[layer[0] - first:layer[1] - first] = ["offload"] * (layer[1] - layer[0])
            modes, kept = trial, modes
            if measured()[1] > before:  # the buffers take more than the swap frees
                modes = kept
                continue
            copied += held[layer]
            if measured()[1] <= problem.memory:
                return measured()[0], modes
    if "recompute" in problem.modes:
        whole = [layer for layer in layers if layer[1] - layer[0] > 1 and modes[layer[0] - first] == "keep"]

        def worth(layer: tuple[int, int]) -> float:
            inner = ops[layer[0]:layer[1] - 1]
            return sum(op.kept for op in inner) / max(1, sum(op.forward for op in inner))

        for a, b in sorted(whole, key=worth, reverse=True):
            modes[a - first:b - 1 - first] = ["recompute"] * (b - 1 - a)
            if measured()[1] <= problem.memory:
                return measured()[0], modes
    return None


def _stage_time_memory(problem: MemoryProblem, stage: int, first: int, last: int,
                       modes: Sequence[Mode]) -> tuple[int, int]:
    """What these modes cost one stage; the rest of the plan does not matter."""
    cuts = [0] * (problem.stages + 1)
    cuts[stage], cuts[stage + 1] = first, last
    every: list[Mode] = ["keep"] * len(problem.operators)
    every[first:last] = modes
    inputs: list[Mode] = ["keep"] * problem.stages
    found = measure(MemoryPlan(problem, tuple(cuts), tuple(every), tuple(inputs)), stage)
    return found.time, found.memory


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

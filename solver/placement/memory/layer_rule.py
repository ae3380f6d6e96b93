"""Whole layers swapped and recomputed by a rule, after vPipe (Zhao et al., TPDS 2022): a start, and a rival.

A stage that lacks memory swaps whole layers to the host, the largest first, while that hides behind its computation;
then it recomputes whole layers, those first that free most for their time. The cuts are the best for this rule, where
vPipe improves them step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from weft.solver.control.clock import checkpoint
from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem, Mode, NoMemoryPlan, measure


def layer_starts(operators: Sequence[ChainOperator]) -> frozenset[int]:
    """The operators that begin a layer, without the first one."""
    return frozenset(k for k in range(1, len(operators))
                     if not operators[k].layer or operators[k].layer != operators[k - 1].layer)


def whole_layers(problem: MemoryProblem) -> MemoryPlan:
    """The best cuts between layers where every stage swaps and recomputes whole layers by the rule.

    Raises :class:`~weft.solver.placement.memory.plan.NoMemoryPlan` where none fits. Long chains have checkpoints.
    """
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
                checkpoint()
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
    return MemoryPlan(problem, cuts, tuple(modes))


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
    found = measure(MemoryPlan(problem, tuple(cuts), tuple(every)), stage)
    return found.time, found.memory

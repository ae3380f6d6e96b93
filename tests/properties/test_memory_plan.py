"""The memory planner against every plan there is, on chains small enough to try them all."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem, Mode, Rules, measure
from weft.solver.placement.memory.plan_memory import MemoryPlanNotFound, NoMemoryPlan, least_bottleneck, plan_memory


@st.composite
def _problems(draw: st.DrawFn, rules: Rules, *, kinds: bool = False) -> MemoryProblem:
    """Chains of up to six operators on up to three stages, from roomy to infeasible; ``kinds`` repeats operators."""
    def operator(name: str, kind: str) -> ChainOperator:
        output = draw(st.integers(0, 12))
        return ChainOperator(
            name, draw(st.integers(0, 20)), draw(st.integers(0, 40)), draw(st.integers(0, 30)), output,
            draw(st.integers(0, output)), resident=draw(st.integers(0, 6)), kind=kind)

    if kinds:
        layer = [operator(f"op{k}", f"kind{k}") for k in range(draw(st.integers(1, 3)))]
        ops = [replace(op, name=f"{i}.{op.name}") for i in range(3) for op in layer][draw(st.integers(0, 1)):][:7]
    else:
        ops = [operator(f"op{k}", "") for k in range(draw(st.integers(3, 6)))]
    stages = draw(st.integers(1, 3 if len(ops) > 2 else len(ops)))
    held = sum(op.kept + op.resident for op in ops)
    allowed: frozenset[Mode] = draw(st.sampled_from([
        frozenset({"recompute", "offload"}), frozenset({"recompute"}), frozenset({"offload"}), frozenset()]))
    windows = None
    if stages > 1 and draw(st.booleans()):
        windows = tuple(frozenset(draw(st.sets(st.integers(1, len(ops) - 1), min_size=1))) for _ in range(stages - 1))
    return MemoryProblem(
        tuple(ops), stages, draw(st.integers(0, held + 20)), copy_bandwidth=draw(st.sampled_from([5e8, 2e9, 1e10])),
        link_bandwidth=draw(st.sampled_from([5e8, 1e12])), rules=rules, modes=allowed,
        micro_batches=draw(st.sampled_from([None, 1, 2])), windows=windows,
        copy_buffers=draw(st.sampled_from([2, 2, 1, 3])), ahead=draw(st.sampled_from([0, 0, 1])))


def _least(problem: MemoryProblem) -> int | None:
    """The least time of any plan that fits, by trying them all; each stage's choices are its own."""
    count = len(problem.operators)
    best: int | None = None
    known: dict[tuple[int, int, int], int | None] = {}
    for inner in combinations(range(1, count), problem.stages - 1):
        if problem.windows is not None and any(k not in w for k, w in zip(inner, problem.windows, strict=True)):
            continue
        cuts = (0, *inner, count)
        times = []
        for s, (first, last) in enumerate(pairwise(cuts)):
            if (s, first, last) not in known:
                known[s, first, last] = _stage(problem, cuts, s)
            times.append(known[s, first, last])
        fitting = [time for time in times if time is not None]
        if len(fitting) == len(times):
            best = max(fitting) if best is None else min(best, max(fitting))
    return best


def _stage(problem: MemoryProblem, cuts: tuple[int, ...], stage: int) -> int | None:
    first, last, count = cuts[stage], cuts[stage + 1], len(problem.operators)
    best: int | None = None
    choices: list[Mode] = ["keep", *sorted(problem.modes)]
    for modes in product(choices, repeat=last - first):
        every: list[Mode] = ["keep"] * count
        every[first:last] = modes
        found = measure(MemoryPlan(problem, cuts, tuple(every)), stage)
        if found.memory <= problem.memory and (best is None or found.time < best):
            best = found.time
    return best


def _check(problem: MemoryProblem, *, exact: bool) -> None:
    least = _least(problem)
    if least is None:
        with pytest.raises(NoMemoryPlan):
            plan_memory(problem, gap=0)
        return
    try:
        plan = plan_memory(problem, gap=0)
    except MemoryPlanNotFound:  # says no more than that
        assert not exact
        return
    assert plan.fits and plan.bound == plan.time >= least
    assert plan_memory(problem, gap=0, at_least=plan.bound).time == plan.time
    assert not exact or plan.time == least


@for_all(_problems("strict") | _problems("published", kinds=True), tries=100)
def test_operators_are_planned_to_the_optimum(problem: MemoryProblem) -> None:
    """Strict rules: no plan fits that is faster. Counts of a class, as published planners count, lose nothing where a
    buffer is that of one operator."""
    _check(problem, exact=True)


@for_all(_problems("strict", kinds=True), st.sampled_from([None, 1, 2, 3]), tries=60)
def test_no_plan_is_below_the_bound_that_holds_for_any_number_in_flight(problem: MemoryProblem,
                                                                        micro_batches: int | None) -> None:
    bound, least = least_bottleneck(problem), _least(replace(problem, micro_batches=micro_batches))
    assert least is None or bound <= least
    assert bound >= -(-problem.totals[0][-1] // problem.stages)


@for_all(_problems("strict", kinds=True), tries=60)
def test_counts_of_a_class_never_promise_what_its_operators_cannot_hold(problem: MemoryProblem) -> None:
    """Strict rules with classes: what is planned fits operator by operator, and nothing beats the true optimum."""
    _check(problem, exact=False)

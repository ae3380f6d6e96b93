"""No step of a graph of stages is shorter than the bound."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.replicated_stages import every_row, load, problems
from tests.support.stage_graphs import step_of, work_of
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import PlacementProblem, judge
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.levels.least_step import least_step
from weft.solver.placement.dag.levels.ways import ways_of
from weft.solver.placement.dag.stage_blocks import one_f_one_b, stage_problem
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import groups_of


@for_all(problems(least=1), st.integers(1, 4), tries=60)
def test_no_step_of_a_graph_of_stages_is_shorter_than_the_bound(problem: PlacementProblem, count: int) -> None:
    """Against 1F1B on every graph of stages, and against the formula evaluated for every one of them."""
    problem = dataclasses.replace(problem, micro_batches=count)
    groups = groups_of(problem)
    ways = ways_of(groups)
    group_of = groups.spread(range(groups.count))
    allowed, steps = [], []
    for parts, on in every_row(problem):
        stages, after, _ = stages_by_depth(problem, parts, on)
        if judge.breaches(problem, stages):
            continue
        works = work_of(problem, stages)
        steps.append(step_of(one_f_one_b(stage_problem("tiny", works, after), works, after, count), stages, count))
        reached = [ways.to({group_of[node] for node in stage.nodes}) for stage in stages]
        allowed.append(max(max(ways.back), *(
            max(count * stage.load + before, count * (stage.load - stage.all_reduce) + both)
            for stage, (before, both) in zip(stages, reached, strict=True))))
        assert steps[-1] >= allowed[-1] * (1 - 1e-9)
    assume(steps)
    found = least_step(groups, Budget(), least=simple_bound(groups), most=2 * min(steps))
    assert found.bound <= min(allowed) * (1 + 1e-9)
    assert found.bound >= min(allowed) * (1 - 6e-3)
    assert found.stages
    for slicing in found.stages:
        parts = [(kind, [n for g in inside for n in groups.members[g]]) for kind, inside in slicing.stages]
        stages, _, _ = stages_by_depth(problem, parts, slicing.devices)
        assert not judge.breaches(problem, stages)
        assert load(stages) == pytest.approx(slicing.value)

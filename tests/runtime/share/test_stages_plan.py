"""A plan with jobs taken apart, and the jobs that can be emulated among others but not trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.shared_ranks import data_parallel
from tests.support.sharing import one_gpu, random_jobs
from weft.models.share.job import Job, composed, job_of
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import ProgramError, Reduce, StageWork
from weft.runtime.share.stages_plan import job_plans, orders_of
from weft.solver import Block, BlockKind, Dependency, Problem, baseline
from weft.solver.problem.rounds import Rounds, Run


def plan(*jobs: Job, steps: dict[str, int] | None = None) -> Plan:
    problem = composed(jobs)
    rounds = Rounds(problem, Run.of(problem, steps or 2))
    return plan_of(replace(baseline("greedy", rounds.problem, rounds.run.rounds), rounds=rounds))


def test_each_job_is_a_plan_of_one_rank() -> None:
    a, b = job_plans(plan(data_parallel("a", 1, 2, 3, 5), data_parallel("b", 2, 4, 2, 2), steps={"a": 4, "b": 2}))
    assert (a.name, a.batches, b.batches, a.replicas, a.ranks) == ("a", 4, 2, 2, (0, 1))
    assert a.blocks == {StageWork(0, "F", 0): ("a/F0", 0), StageWork(0, "B", 0): ("a/B0", 0)}
    assert [(entry.name, set(entry.needs)) for entry in b.sums] == [
        ("b/S1", {"b/F0", "b/F1", "b/B1"}), ("b/S0", {"b/F0", "b/F1", "b/B1", "b/B0"})]
    assert b.reduces(b.plan) == {"b/S1": [Reduce((1,))], "b/S0": [Reduce((0,))]}
    assert b.durations["b/F0"] == 2 and len(b.plan.program.ranks) == 1


def test_the_common_order_of_a_rank_is_that_of_its_device_and_its_lanes() -> None:
    made = plan(data_parallel("a", 1, 2, 3, 5), data_parallel("b", 1, 4, 2, 2))
    first, second = orders_of(made, 0), orders_of(made, 1)
    assert sorted(first) == [0, 1] and sorted(second) == [2, 3]
    assert first[0] == second[2] and first[1] == second[3]
    assert sorted(first[1]) == [("a", "a/S0", 0), ("a", "a/S0", 1), ("b", "b/S0", 0), ("b", "b/S0", 1)]


def of_blocks(name: str, change: dict[str, Block]) -> Job:
    """A data parallel job with some blocks put in place of its own."""
    whole = data_parallel(name, 1, 2, 3, 5).problem.plain()
    return job_of(name, Problem(name, whole.devices, tuple(change.get(block.name, block) for block in whole.blocks),
                                time_unit="ms"))


@pytest.mark.parametrize(("jobs", "message"), [
    ([data_parallel("a", 1, 2, 3, 5)], "has no jobs that share its ranks"),
    ([data_parallel("a", 1, 2, 3, 5), of_blocks("b", {"B0": Block("B0", BlockKind.BACKWARD, (0,), 3, after=(
        Dependency("F0"),))})], "job 'b': block 'b/B0' is on gpu0, and jobs that share ranks are trained data"),
    ([data_parallel("a", 1, 2, 3, 5), of_blocks("b", {"B0": Block("B0", BlockKind.BACKWARD, (0, 1, 2, 3), 3, after=(
        Dependency("F0"),))})], "block 'b/B0' is on gpu0, gpu0 network"),
    ([data_parallel("a", 1, 2, 3, 5), of_blocks("b", {"F0": Block("F0", BlockKind.OTHER, (0, 2), 3),
                                                      "B0": Block("B0", BlockKind.OTHER, (0, 2), 3)})],
     "job 'b': .*can be emulated, but not run"),
    ([data_parallel("a", 1, 2, 3, 5), of_blocks("b", {
        "S0": Block("S0", BlockKind.COLLECTIVE, (1, 3), 3, after=(Dependency("F0"),)),
        "B0": Block("B0", BlockKind.BACKWARD, (0, 2), 3, after=(Dependency("F0"), Dependency("S0")))})],
     "block 'b/B0' waits for 'b/S0' of the same step, a communication inside it"),
])
def test_jobs_that_can_only_be_emulated(jobs: list[Job], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        job_plans(plan(*jobs))


def test_gradients_that_no_block_sums() -> None:
    early = of_blocks("b", {"S0": Block("S0", BlockKind.COLLECTIVE, (1, 3), 3, after=(Dependency("F0"),))})
    _, found = job_plans(plan(data_parallel("a", 1, 2, 3, 5), early))
    with pytest.raises(ProgramError, match="job 'b': no block of the plan sums the gradients of b/B0"):
        found.reduces(found.plan)


def test_jobs_of_collectives_on_some_ranks_are_not_trained() -> None:
    with pytest.raises(ProgramError, match="jobs that share ranks are trained data parallel"):
        job_plans(plan(*random_jobs(1)))
    with pytest.raises(ProgramError, match="job 'a'"):
        job_plans(plan(one_gpu("a", 1, 1), one_gpu("b", 1, 1)))

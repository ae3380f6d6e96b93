"""One order of collectives for all ranks, and what is said where there is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.sharing import random_jobs
from weft.models.share.job import composed
from weft.runtime.plan.lanes import collective_rows
from weft.runtime.plan.plan import plan_of
from weft.solver.baselines import baseline
from weft.solver.judge.collective_order import collective_order_faults
from weft.solver.problem.rounds import Rounds, Run


def test_one_order_is_good_whatever_ranks_do_by_themselves() -> None:
    assert not collective_order_faults({0: ["x", "a", "b"], 1: ["a", "y", "b", "c"], 2: ["c"]})


def test_two_ranks_that_disagree() -> None:
    assert collective_order_faults({0: ["a", "b"], 1: ["b", "a"]}) == ["rank 0 comes to a where rank 1 comes to b"]


def test_a_circle_of_ranks_of_which_each_two_agree() -> None:
    [fault] = collective_order_faults({0: ["c", "a"], 1: ["a", "b"], 2: ["b", "c"]})
    assert fault.startswith("the ranks wait for each other in a circle: ") and fault.count(" before ") == 3


def test_what_a_rank_comes_to_twice() -> None:
    assert "rank 1 comes to a twice" in collective_order_faults({0: ["a"], 1: ["a", "a"]})


@pytest.mark.parametrize("seed", range(60))
def test_jobs_that_share_gpus_have_one_order_and_a_swap_is_seen(seed: int) -> None:
    problem = composed(random_jobs(seed))
    rounds = Rounds(problem, Run.of(problem, 3))
    rows = collective_rows(plan_of(replace(baseline("greedy", rounds.problem, 3), rounds=rounds)))
    assert not collective_order_faults(rows)
    jobs = {item.partition("/")[0].strip('"') for row in rows.values() for item in row}
    assert len(jobs) > 1
    draw = random.Random(seed)
    rank = draw.choice([rank for rank, row in rows.items() if len(row) > 1])
    swapped = list(rows[rank])
    at = draw.randrange(len(swapped) - 1)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    other = [r for r, row in rows.items() if r != rank and {swapped[at], swapped[at + 1]} <= set(row)]
    found = collective_order_faults({**rows, rank: swapped})
    assert bool(found) or not other

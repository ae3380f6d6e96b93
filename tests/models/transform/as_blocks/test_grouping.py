"""Plans whose micro-batches are alike are one micro-batch's problem; others stay whole."""

from __future__ import annotations

import pytest

from tests.support.programs import mlp
from weft.models.transform.as_blocks.problem import PlanBlocks, Pricing, plan_blocks
from weft.models.transform.plan import TransformPlan
from weft.plans import GivenCosts, uniform


def blocks(plan: TransformPlan, *, split: bool = True) -> PlanBlocks:
    return plan_blocks(plan.preserve(uniform(0.5, 1e12)), Pricing(GivenCosts({}, 1.0), split_backward=split))


def piped(*, update: bool = False, schedule: str = "open") -> TransformPlan:
    return TransformPlan(mlp(update=update)).pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4,
                                                      schedule=schedule)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [False, True])
def test_alike_micro_batches_are_folded(*, split: bool) -> None:
    found = blocks(piped(), split=split)
    assert found.micro_batches == 4
    assert len(found.folded.blocks) * 4 == len(found.problem.blocks)
    for k, block in enumerate(found.folded.blocks):
        for m in range(4):
            whole = found.block_of(k, m)
            assert whole.turn == (m,) and whole.devices == found.block_of(k, 0).devices
            assert whole.name.replace(f"#{m}", "#0") == block.name
    assert all(wait.distance == 0 for block in found.folded.blocks for wait in block.after)


def test_what_belongs_to_the_whole_step_is_not() -> None:
    found = blocks(piped(update=True))
    assert found.micro_batches == 1 and found.folded is found.problem
    # Micro-batches keep their order all the same: they are alike.
    later = next(block for block in found.problem.blocks if block.name.endswith("loss#1"))
    assert later.name.replace("#1", "#0") in {wait.block for wait in later.after}


def test_micro_batches_that_an_order_tells_apart_are_not() -> None:
    plan = piped().order(("act", 3), ("up", 0))
    found = blocks(plan)
    assert found.micro_batches == 1
    assert not any(wait.block == block.name.replace("#1", "#0") for block in found.problem.blocks
                   for wait in block.after if "#1" in block.name)
    assert blocks(piped(schedule="1f1b")).micro_batches == 1

"""Fewer micro-batches of a plan keep their order."""

from __future__ import annotations

from tests.support.builders import chain, pipeline
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.program import Recv, Reduce, Send
from weft.runtime.plan.shortened import shortened
from weft.solver.baselines import baseline


def test_the_first_micro_batches_run_in_the_order_that_they_had() -> None:
    plan = plan_of(baseline("1f1b", pipeline(chain(3)), 6))
    assert shortened(plan, 6) is plan
    for count in range(1, 6):
        found = shortened(plan, count)
        assert found.micro_batches == count
        for own, before in zip(found.program.ranks, plan.program.ranks, strict=True):
            assert [i for i in own if not isinstance(i, Send | Recv | Reduce)] == [
                i for i in before if not isinstance(i, Send | Recv | Reduce) and i.micro_batch < count]
            assert any(isinstance(i, Reduce) for i in own)

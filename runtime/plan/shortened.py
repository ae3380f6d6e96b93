"""A plan's order with fewer micro-batches: the first ones, in the same order.

The rest of the order keeps its dependencies, which are within a micro-batch, and uses no more memory at any moment.
"""

from __future__ import annotations

from dataclasses import replace

from weft.runtime.plan.plan import Plan, plan_of
from weft.solver.schedule import Operation, Schedule


def shortened(plan: Plan, micro_batches: int) -> Plan:
    """``plan`` with only its first ``micro_batches``, proven; it must have at least as many, and no rounds."""
    if micro_batches == plan.micro_batches:
        return plan
    work = plan.vocabulary.work
    operations = tuple(Operation(block, m, *plan.times[work(block, m)])
                       for block in range(len(plan.problem.blocks)) for m in range(micro_batches))
    found = plan_of(Schedule(plan.problem, micro_batches, operations, 0.0)).sharing(plan.shared)
    return replace(found, signatures=plan.signatures)

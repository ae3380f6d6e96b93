"""Plans of two stages on two ranks, made by hand."""

from __future__ import annotations

from weft.runtime.plan.plan import Plan, plan_of
from weft.solver import Block, BlockKind, Dependency, Device, Problem, Schedule, time_orders

#: Two stages with a split backward on the second, and its program for two micro-batches.
PIPE = Problem("pipe", (Device("0"), Device("1")), (
    Block("f0", BlockKind.FORWARD, (0,), 1),
    Block("f1", BlockKind.FORWARD, (1,), 1, after=(Dependency("f0"),)),
    Block("i1", BlockKind.INPUT_GRAD, (1,), 1, after=(Dependency("f1"),)),
    Block("w1", BlockKind.WEIGHT_GRAD, (1,), 1, after=(Dependency("i1"),)),
    Block("b0", BlockKind.BACKWARD, (0,), 2, after=(Dependency("i1"),)),
))
GOOD = (("0F0", "SEND 0F0>1", "0F1", "SEND 0F1>1", "RECV 1I0<1", "0B0", "RECV 1I1<1", "0B1"),
        ("RECV 0F0<0", "1F0", "RECV 0F1<0", "1I0", "SEND 1I0>0", "1F1", "1I1", "SEND 1I1>0", "1W0", "1W1"))


def two_stages() -> Problem:
    """F0 on device 0, F1 and B1 on device 1, B0 on device 0; each transfer takes half a second."""
    return Problem("two", (Device("left"), Device("right")), (
        Block("f0", BlockKind.FORWARD, (0,), 1),
        Block("f1", BlockKind.FORWARD, (1,), 1, after=(Dependency("f0", 0.5),)),
        Block("b1", BlockKind.BACKWARD, (1,), 2, after=(Dependency("f1"),)),
        Block("b0", BlockKind.BACKWARD, (0,), 2, after=(Dependency("b1", 0.5),)),
    ))


def plan_of_two() -> Plan:
    problem = two_stages()
    orders = [[(0, 0), (0, 1), (3, 0), (3, 1)], [(1, 0), (2, 0), (1, 1), (2, 1)]]
    return plan_of(Schedule(problem, 2, time_orders(problem, 2, orders), 0.0, solver={"name": "by hand"}))

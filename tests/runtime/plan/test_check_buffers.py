"""Message buffers beside what blocks hold."""

from __future__ import annotations

import pytest
import torch

from tests.support.threads import Tracer
from weft.runtime.plan.buffers import buffer_table
from weft.runtime.plan.check_buffers import check_memory
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.program import ProgramError, Recv, Send
from weft.runtime.transports.tensors import layout_of
from weft.solver import Block, BlockKind, Dependency, Device, Problem, baseline


def tight(capacity: int) -> Problem:
    """Two stages; the second keeps 100 bytes for each micro-batch."""
    return Problem("tight", (Device("0"), Device("1", capacity)), (
        Block("f0", BlockKind.FORWARD, (0,), 1),
        Block("f1", BlockKind.FORWARD, (1,), 1, (100,), (), (Dependency("f0"),)),
        Block("b1", BlockKind.BACKWARD, (1,), 3, (-100,), (), (Dependency("f1"),)),
        Block("b0", BlockKind.BACKWARD, (0,), 1, (), (), (Dependency("b1"),))))


def test_buffers_must_fit_beside_what_blocks_hold_and_are_not_counted_twice() -> None:
    plan = plan_of(baseline("1f1b", tight(100), 4))
    tracer = Tracer(plan, 1)
    row = plan.program.ranks[1]
    layout = layout_of({"": ((5,), torch.float64)})
    table = buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, tracer.reads, tracer.keeps)
    assert table.slots == (40, 40)  # while 1B0 runs, 0F1 arrives
    check_memory(plan.program, plan.problem, 1, table, 40)  # the other 40 are in the block's 100
    with pytest.raises(ProgramError, match=r"(?s)during 1F0, rank 1's blocks hold 100 bytes and its 2 message buffers "
                                           r"40 more, but device '1' has 100 and 39 in reserve\n.*<-- here"):
        check_memory(plan.program, plan.problem, 1, table, 39)
    check_memory(plan.program, tight(139), 1, table, 1)

"""Lowering by the end-key rule, and the proof that refuses what would hang or train wrongly."""

from __future__ import annotations

import pytest

from tests.support.plans import GOOD, PIPE
from weft.runtime.plan.lowering import LoweringError, lower
from weft.solver import Block, BlockKind, Dependency, Device, Operation, Problem, Schedule
from weft.solver.timing import Orders, time_orders

F, B, I, W, O = (BlockKind.FORWARD, BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD, BlockKind.OTHER)  # noqa: E741

GOOD_ORDERS: Orders = [[(0, 0), (0, 1), (4, 0), (4, 1)], [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0), (3, 1)]]


def schedule_of(problem: Problem, micro_batches: int, orders: Orders) -> Schedule:
    return Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0)


def test_messages_stand_where_their_producer_ends() -> None:
    # 0F1 and 1F0 both end at 2: computing comes first on ties, so rank 1 posts RECV 0F1 after 1F0 and before 1I0.
    assert lower(schedule_of(PIPE, 2, GOOD_ORDERS)).to_text() == GOOD


@pytest.mark.parametrize(("blocks", "rows", "rank", "text"), [
    ((Block("long", O, (1,), 10), Block("a", O, (0,), 3), Block("b", O, (1,), 1, after=(Dependency("a"),))),
     [[(1, 0)], [(0, 0), (2, 0)]], 1, ("RECV a[0]<0", "long[0]", "b[0]")),
    ((Block("a", O, (0,), 1), Block("b", O, (1,), 1, after=(Dependency("a", distance=1),))),
     [[(0, 0), (0, 1)], [(1, 0), (1, 1)]], 0, ("a[0]", "SEND a[0]>1", "a[1]")),
    ((Block("long", O, (0,), 1e17), Block("tiny", O, (1,), 1e-9, after=(Dependency("long"),))),
     [[(0, 0)], [(1, 0)]], 1, ("RECV long[0]<0", "tiny[0]"))],
    ids=["posted while another runs", "not sent from the last", "below the resolution of floats"])
def test_messages_around_blocks(blocks: tuple[Block, ...], rows: list[list[tuple[int, int]]], rank: int,
                                text: tuple[str, ...]) -> None:
    problem = Problem("two", (Device("0"), Device("1")), blocks)
    program = lower(schedule_of(problem, max(m for row in rows for _, m in row) + 1, rows))
    assert program.to_text()[rank] == text


def test_an_incomplete_or_contradictory_schedule_is_refused() -> None:
    good = schedule_of(PIPE, 2, GOOD_ORDERS)
    with pytest.raises(LoweringError, match="every block of micro-batches 0 to 1 once: see block 'f0'"):
        lower(good.with_operations([o for o in good.operations if (o.block, o.micro_batch) != (0, 1)]))
    swapped = [Operation(o.block, 1 - o.micro_batch, o.start, o.end) if o.block == 0 else o for o in good.operations]
    lower(good.with_operations(swapped))  # another order of forwards is late, not impossible
    reversed_rows = [Operation(o.block, o.micro_batch, 20 - o.end, 20 - o.start) for o in good.operations]
    with pytest.raises(LoweringError, match="contradicts the dependencies"):
        lower(good.with_operations(reversed_rows))

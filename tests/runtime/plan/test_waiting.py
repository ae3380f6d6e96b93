"""What waits at a sender until its receiver has room is counted."""

from __future__ import annotations

from itertools import accumulate

from tests.support.builders import chain, pipeline
from weft.runtime.plan.buffers import MessageLayout, buffer_table, waiting_bytes
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.program import Recv, Send, StageWork, Work
from weft.solver.baselines import baseline

SIZE = 64


def keeps(work: Work) -> Work:
    assert isinstance(work, StageWork)
    return StageWork(work.stage, "B", work.micro_batch)


def reads(work: Work) -> list[Work]:
    assert isinstance(work, StageWork)
    return [StageWork(work.stage - 1, "F", work.micro_batch)] if work.letter == "F" and work.stage else [
        StageWork(work.stage + 1, "B", work.micro_batch)] if work.letter == "B" and not work.stage else []


def most(changes: list[list[tuple[float, int]]]) -> tuple[int, ...]:
    return tuple(max(accumulate((change for _, change in sorted(own)), initial=0)) for own in changes)


def test_a_result_waits_while_the_slots_of_those_before_are_in_use() -> None:
    """The second stage has room for two activations, and is late: the third and the fourth wait at the first."""
    plan = plan_of(baseline("1f1b", pipeline(chain(2)), 4))
    tables = [buffer_table(own, {each: MessageLayout((), SIZE) for each in own if isinstance(each, (Send, Recv))},
                           reads, keeps) for own in plan.program.ranks]
    assert tables[1].slots == (SIZE, SIZE)
    times: dict[Work, tuple[float, float]] = {StageWork(0, "F", m): (m, m + 1) for m in range(4)}
    assert most(waiting_bytes(plan.program.ranks, tables, times)) == (0, 0)
    late: dict[Work, tuple[float, float]] = {
        StageWork(1, letter, m): (10.0 + 2 * m + (letter == "B"), 11.0 + 2 * m + (letter == "B"))
            for m in range(4) for letter in "FB"}
    assert most(waiting_bytes(plan.program.ranks, tables, {**times, **late})) == (2 * SIZE, 0)
    soon: dict[Work, tuple[float, float]] = {work: (start - 9.0, end - 9.0) for work, (start, end) in late.items()}
    assert most(waiting_bytes(plan.program.ranks, tables, {**times, **soon})) == (SIZE, 0)

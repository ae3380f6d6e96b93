"""Before the first step: all ranks' buffer tables, agreed on and proven."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from weft.runtime.plan.buffers import BufferTable, Layout, buffer_table
from weft.runtime.plan.check_buffers import check_buffers, check_memory
from weft.runtime.plan.lanes import check_pool_memory
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Instruction, ProgramError, Recv, Send, Work
from weft.runtime.transports.buffer_tensors import layout_of
from weft.runtime.transports.registry import parse_transport

if TYPE_CHECKING:
    from weft.runtime.execute.executor import Worker
    from weft.runtime.ranks.session import Session

__all__ = ["agree_on_buffers", "rank_table"]


def rank_table(plan: Plan, rank: int, worker: Worker, reads: Callable[[Work], Iterable[Work]], *,
               early: bool = True) -> BufferTable:
    """The buffer table of rank ``rank``, whose ``worker`` knows what its messages look like."""
    instructions = plan.program.ranks[rank]
    layouts: dict[Instruction, Layout] = {}
    for instruction in instructions:
        if isinstance(instruction, (Send, Recv)):
            target = instruction.peer if isinstance(instruction, Send) else rank
            layouts[instruction] = layout_of(worker.layout(instruction.what, target))
    return buffer_table(instructions, layouts, reads, worker.keeps, early=early)


def agree_on_buffers(plan: Plan, session: Session, worker: Worker,
                     reads: Callable[[Work], Iterable[Work]]) -> Sequence[BufferTable]:
    """All ranks' tables, proven. All ranks must call it together.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if a rank replays another plan or has other ideas of a
    message, and if the buffers do not fit.
    """
    from weft.runtime.ranks.session import SessionError

    mine = rank_table(plan, session.rank, worker, reads, early=parse_transport(session.transport).posts_early)
    keeps = {work: worker.keeps(work) for work in plan.program.works(session.rank)}
    found = session.exchange((plan.digest, mine, keeps), "agreeing on the messages")
    for rank, (digest, _, _) in enumerate(found):
        if digest != found[0][0]:
            raise SessionError(f"rank {rank} replays another plan than rank 0: give all ranks the same file")
    tables = [table for _, table, _ in found]
    kept = {work: until for _, _, kept_until in found for work, until in kept_until.items()}
    try:
        check_buffers(plan.program, plan.problem, tables, lambda work: kept[work], plan.rounds)
        if plan.problem.has_lanes:
            check_pool_memory(plan, session.rank, mine, session.reserve)
        else:
            check_memory(plan.program, plan.problem, session.rank, mine, session.reserve, plan.rounds)
    except ProgramError as error:
        raise SessionError(str(error)) from None
    return tables

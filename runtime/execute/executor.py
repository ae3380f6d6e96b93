"""Runs one rank's instructions of a program. It never decides: the program is the order.

Before the first step the instructions are compiled into actions (:mod:`weft.runtime.execute.compiling`), and a step
runs them one after another; where a device has lanes, each lane runs in its own thread
(:mod:`weft.runtime.execute.lanes`).

A SEND starts its transfer and returns; receives are posted at the place in the buffer table
(:mod:`weft.runtime.plan.buffers`), at their RECV or before; an instruction that computes first waits for its inputs. A
result is kept until its last reader on this rank is done and its transfers are over. Only the last few SENDs may be
unfinished: an older one is waited for, which bounds the memory and cannot deadlock, since a checked program completes
even if every SEND waits for its RECV (:mod:`weft.runtime.plan.check`).

All ranks know all buffer tables, agreed on and proven before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from torch.autograd import profiler

from weft.runtime.execute.compiling import Action, Batch, Compiling, Task, Wants
from weft.runtime.execute.lanes import InLanes
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.buffers import OPEN_SENDS, BufferTable, Landing, MessageLayout, buffer_table
from weft.runtime.plan.check_buffers import check_buffers, check_memory
from weft.runtime.plan.lanes import check_pool_memory
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import BlockWork, Instruction, ProgramError, Recv, Reduce, Send, Work
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.stopwatch import sleep_until, stopwatch
from weft.runtime.transports.interface import Parcel, Transport, TransportError
from weft.runtime.transports.registry import open_transport, parse_transport
from weft.runtime.transports.tensors import layout_of

__all__ = ["Executor", "Parcel", "Task", "Worker", "agree_on_buffers", "rank_table"]


class Worker(Protocol):
    """Computes: a model's stages, or their emulation. Results are parcels: tensors by name."""

    def reads(self, work: Work) -> Sequence[Work]:
        """The work whose results ``work`` reads, among the work it waits for."""

    def keeps(self, work: Work) -> Work:
        """The last instruction of this rank, ``work`` or a later one, that may access the inputs of ``work``."""
        return work

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """The tensors of the result of ``what`` as sent to rank ``target``: at least one. Called on both ends, before
        the first step."""

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        """A function from the result of ``what`` to the message for rank ``target``, in :meth:`layout`; called before
        the first step, like :meth:`task`."""
        return lambda result: result

    def task(self, work: Work) -> Task:
        """A function that does ``work``: from results, among them all that ``work`` reads, to its result, which may be
        empty."""

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        """A function that waits for inputs of ``work`` beside messages, if there are any; not counted as part of it."""
        return None


def rank_table(plan: Plan, rank: int, worker: Worker, reads: Callable[[Work], Iterable[Work]], *,
               early: bool = True) -> BufferTable:
    """The buffer table of rank ``rank``, whose ``worker`` gives the layouts of its messages."""
    instructions = plan.program.ranks[rank]
    layouts: dict[Instruction, MessageLayout] = {}
    for instruction in instructions:
        if isinstance(instruction, (Send, Recv)):
            target = instruction.peer if isinstance(instruction, Send) else rank
            layouts[instruction] = layout_of(worker.layout(instruction.what, target))
    return buffer_table(instructions, layouts, reads, worker.keeps, early=early)


def agree_on_buffers(plan: Plan, session: Session, worker: Worker,
                     reads: Callable[[Work], Iterable[Work]]) -> Sequence[BufferTable]:
    """All ranks' tables, proven. All ranks must call it together.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if a rank replays another plan or disagrees on a message,
    and if the buffers do not fit.
    """
    mine = rank_table(plan, session.rank, worker, reads, early=parse_transport(session.transport)[0].posts_early)
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


class Executor:
    """Runs rank ``session.rank`` of ``plan`` with ``worker``, any number of times, until it is closed.

    All ranks must make theirs together: they agree on their buffers, prove them, and connect. Raises
    :class:`~weft.runtime.ranks.session.SessionError` where that fails. ``reduce`` sums gradients; without it they are
    not summed. ``connect`` and ``agree`` are for ranks that are not separate processes: threads, or a single rank.
    """

    def __init__(self, plan: Plan, session: Session, worker: Worker,
                 connect: Callable[[Session, Sequence[BufferTable]], Transport] = open_transport,
                 agree: Callable[[Plan, Session, Worker, Callable[[Work], Iterable[Work]]],
                                 Sequence[BufferTable]] = agree_on_buffers,
                 reduce: Callable[[Reduce], None] | None = None) -> None:
        self.plan, self.session, self.worker = plan, session, worker
        self.instructions = plan.program.ranks[session.rank]
        session.add_groups(plan.groups)
        session.add_meetings(plan.meetings)
        self.wants = {work: self._wants(work) for work in plan.program.works(session.rank)}
        tables = agree(plan, session, worker, lambda work: {*self.wants[work].awaits, *self.wants[work].reads})
        self.tables, self.table = tables, tables[session.rank]
        try:
            self.transport = connect(session, tables)
        except TransportError as error:
            raise SessionError(str(error)) from None
        self.slots = {landing: self.transport.slot(landing) for landing in self.table.receives}
        self.lanes = InLanes(self) if plan.problem.has_lanes else None
        self.actions = () if self.lanes is not None else tuple(_Compiler(self, reduce).actions())
        self._finishing = session.activity("finishing the batch")
        self._names = {work: work.block if isinstance(work, BlockWork) else
                       plan.problem.blocks[plan.vocabulary.known(work)[0]].name for work in self.wants}
        self.begun = 0.0  # when they last began together, on the clock of all ranks

    def close(self) -> None:
        """Release the buffers."""
        self.actions, self.lanes = (), None
        self.slots.clear()
        self.transport.close()

    def run(self, *, together: bool = True) -> list[Measured]:
        """Run all instructions once; returns when each block ran, on the clock of all ranks.

        ``together``: all ranks begin at one moment, as the first run must and a run whose times are compared with the
        plan should. Otherwise each rank begins at once and waits only for messages, which saves the cost of meeting,
        some milliseconds. All ranks must pass the same value. Raises ``ConnectionError`` if another rank is gone, the
        worker's exceptions, and :class:`~weft.runtime.ranks.session.SessionError` where a message cannot be carried.
        """
        try:
            return self._run(together)
        except TransportError as error:
            raise SessionError(str(error)) from None

    def begin(self) -> None:
        """Wait for the moment at which all ranks begin."""
        self.begun = self.session.common_start()
        sleep_until(self.begun, self.session.now)

    def _run(self, together: bool) -> list[Measured]:
        batch = Batch(stopwatch(self.session))
        if together:
            self.begin()
        if self.lanes is None:
            batch.stopwatch.begin()
            for action in self.actions:
                action.run(batch)
            laps = batch.stopwatch.laps
        else:
            laps = self.lanes.run()
        self.session.watch.at(self._finishing)
        return [Measured(self._names[work], work.micro_batch, self.session.rank, start, end)
                for work, start, end in laps()]

    def _wants(self, work: Work) -> Wants:
        vocabulary = self.plan.vocabulary
        return Wants(self.plan.awaits(work), tuple(self.worker.reads(work)),
                     vocabulary.ranks.of_block(vocabulary.known(work)[0]))


class _Compiler(Compiling):
    """Walks through the instructions once, like a run, and makes its actions."""

    def __init__(self, executor: Executor, reduce: Callable[[Reduce], None] | None) -> None:
        super().__init__(executor)
        self.reduce = reduce
        self.last_read = {what: step for step, instruction in enumerate(self.instructions)
                          for what in self.reads(instruction)}
        self.arriving: dict[Work, Landing] = {}
        self.leaving: list[tuple[int, Send]] = []

    def actions(self) -> Iterator[Action]:
        for step, instruction in enumerate(self.instructions):
            for landing in self.table.postings.get(step, ()):
                self.arriving[landing.what] = landing
                yield self.post(landing)
            if isinstance(instruction, Send):
                if len(self.leaving) >= OPEN_SENDS:
                    yield self.settle(*self.leaving.pop(0))
                yield from self._take(instruction.what, instruction)
                yield self.send(step, instruction)
                self.leaving.append((step, instruction))
            elif isinstance(instruction, Reduce):
                if self.reduce is not None:
                    yield _summing(instruction, self.reduce)
            elif isinstance(instruction, Recv):
                yield from self._read(instruction)
            else:
                yield from self._compute(instruction)
            if dropped := tuple(what for what in self.reads(instruction) if self.last_read[what] == step):
                yield _dropping(dropped)
        for message in self.leaving:
            yield self.settle(*message)

    def _compute(self, work: Work) -> Iterator[Action]:
        wants = self.wants[work]
        for what in wants.awaits:
            yield from self._take(what, work)
        if len(wants.ranks) > 1:
            yield self.told(self.activity(f"waiting for the other ranks of {work}", work, *wants.ranks),
                            lambda batch: self.session.meet(wants.ranks))
        yield self.compute(work)

    def _read(self, instruction: Recv) -> Iterator[Action]:
        """Wait for a message whose shape the plan does not know, here at the latest: its SEND is over only then, and
        the proofs about the program hold for SENDs that wait for their RECVs, not for later readers."""
        landing = self.arriving.get(instruction.what)
        if landing is not None and not landing.layout.is_known:
            yield from self._take(instruction.what, instruction)

    def _take(self, what: Work, reader: Instruction) -> Iterator[Action]:
        """Wait for ``what``, if it is arriving; ``reader`` is the first that needs it."""
        if (landing := self.arriving.pop(what, None)) is not None:
            slot = self.slot(landing)

            def take(batch: Batch) -> None:
                batch.arriving.pop(what).wait()
                if slot is not None:
                    batch.results[what] = slot

            yield self.told(self.waiting(landing, reader), take)


def _summing(instruction: Reduce, reduce: Callable[[Reduce], None]) -> Action:
    def add_up(batch: Batch) -> None:
        with profiler.record_function(f"weft:{instruction}"):
            reduce(instruction)

    return Action(str(instruction), add_up)


def _dropping(whats: Sequence[Work]) -> Action:
    """Release results that no later instruction reads."""
    def drop(batch: Batch) -> None:
        for what in whats:
            batch.results.pop(what, None)

    return Action(" ".join(["drop", *map(str, whats)]), drop)

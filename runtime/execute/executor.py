"""Runs one rank's instructions of a program, in the program's order.

The instructions are compiled into actions before the first step (:mod:`weft.runtime.execute.compiling`), and a step
runs them in sequence; if a device has lanes, each lane runs in a thread of its own
(:mod:`weft.runtime.execute.lanes`).

A SEND starts its transfer and returns. A receive is posted where the buffer table says
(:mod:`weft.runtime.plan.buffers`), at its RECV or earlier. A computing instruction first waits for its inputs. A result
is kept until its last reader on this rank and its transfers are complete. Only the last few SENDs may be pending, which
bounds memory; waiting for an older one cannot cause a deadlock, as a checked program completes even if every SEND waits
for its RECV (:mod:`weft.runtime.plan.check`).

All ranks agree on all buffer tables, and check them, before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from torch.autograd import profiler

from weft.runtime.execute.compiling import Action, ActionCompiler, Batch, Task, WorkInputs
from weft.runtime.execute.lanes import LaneExecutor
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
    """The computation of a rank: a model's stages, or their emulation. Results are parcels: tensors by name.

    All methods are called before the first step; the functions that they return are called in each step."""

    def reads(self, work: Work) -> Sequence[Work]:
        """The work whose results ``work`` reads, among the work that it waits for."""

    def keeps(self, work: Work) -> Work:
        """The last instruction of this rank, ``work`` or a later one, that may access the inputs of ``work``."""
        return work

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """The shapes and dtypes of the message that sends the result of ``what`` to rank ``target``, at least one
        tensor. Sender and receiver call it."""

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        """A function from the result of ``what`` to the message for rank ``target``, with the layout of :meth:`layout`.
        """
        return lambda result: result

    def task(self, work: Work) -> Task:
        """A function that computes ``work``: from the available results to its result, which may be empty."""

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        """A function that waits for inputs of ``work`` other than messages, or ``None``. Its time does not count as
        part of ``work``."""
        return None


def rank_table(plan: Plan, rank: int, worker: Worker, reads: Callable[[Work], Iterable[Work]], *,
               early: bool = True) -> BufferTable:
    """The buffer table of rank ``rank``, with the message layouts of its ``worker``. ``early``: receives may be posted
    before their RECV."""
    instructions = plan.program.ranks[rank]
    layouts: dict[Instruction, MessageLayout] = {}
    for instruction in instructions:
        if isinstance(instruction, (Send, Recv)):
            target = instruction.peer if isinstance(instruction, Send) else rank
            layouts[instruction] = layout_of(worker.layout(instruction.what, target))
    return buffer_table(instructions, layouts, reads, worker.keeps, early=early)


def agree_on_buffers(plan: Plan, session: Session, worker: Worker,
                     reads: Callable[[Work], Iterable[Work]]) -> Sequence[BufferTable]:
    """The checked buffer tables of all ranks. All ranks must call it together.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if ranks have different plans or layouts of a message, and
    if the buffers do not fit into memory.
    """
    mine = rank_table(plan, session.rank, worker, reads, early=parse_transport(session.transport)[0].posts_early)
    keeps = {work: worker.keeps(work) for work in plan.program.works(session.rank)}
    by_rank = session.exchange((plan.digest, mine, keeps), "agreeing on the messages")
    for rank, (digest, _, _) in enumerate(by_rank):
        if digest != by_rank[0][0]:
            raise SessionError(f"rank {rank} replays another plan than rank 0: give all ranks the same file")
    tables = [table for _, table, _ in by_rank]
    kept = {work: until for _, _, kept_until in by_rank for work, until in kept_until.items()}
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

    All ranks must create their executors together: they agree on their buffers, check them, and connect. Raises
    :class:`~weft.runtime.ranks.session.SessionError` if that fails. ``reduce`` sums gradients; without it REDUCE
    instructions are ignored. ``connect`` and ``agree`` replace these steps for ranks that are not separate processes:
    threads, or a single rank.
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
        self.inputs = {work: self._inputs(work) for work in plan.program.works(session.rank)}
        tables = agree(plan, session, worker, lambda work: {*self.inputs[work].awaits, *self.inputs[work].reads})
        self.tables, self.table = tables, tables[session.rank]
        try:
            self.transport = connect(session, tables)
        except TransportError as error:
            raise SessionError(str(error)) from None
        self.slots = {landing: self.transport.slot(landing) for landing in self.table.receives}
        self.lanes = LaneExecutor(self) if plan.problem.has_lanes else None
        self.actions = () if self.lanes is not None else tuple(_Compiler(self, reduce).actions())
        self._finishing = session.activity("finishing the batch")
        self._names = {work: work.block if isinstance(work, BlockWork) else
                       plan.problem.blocks[plan.vocabulary.known(work)[0]].name for work in self.inputs}
        self.begun = 0.0  # the last common start, on the clock of all ranks

    def close(self) -> None:
        """Release the buffers."""
        self.actions, self.lanes = (), None
        self.slots.clear()
        self.transport.close()

    def run(self, *, together: bool = True) -> list[Measured]:
        """Run all instructions once; returns the times of each block on the clock of all ranks.

        ``together``: all ranks start at the same time; required for the first run, and for times that are compared with
        the plan. Otherwise a rank starts at once, which saves some milliseconds of synchronisation. All ranks must pass
        the same value. Raises ``ConnectionError`` if another rank has ended, the worker's exceptions, and
        :class:`~weft.runtime.ranks.session.SessionError` if a message cannot be carried.
        """
        try:
            return self._run(together)
        except TransportError as error:
            raise SessionError(str(error)) from None

    def begin(self) -> None:
        """Wait for the common start of all ranks."""
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

    def _inputs(self, work: Work) -> WorkInputs:
        vocabulary = self.plan.vocabulary
        return WorkInputs(self.plan.awaits(work), tuple(self.worker.reads(work)),
                          vocabulary.ranks.of_block(vocabulary.known(work)[0]))


class _Compiler(ActionCompiler):
    """Makes the actions of a rank without lanes, in the order of a run."""

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
                    yield _sum(instruction, self.reduce)
            elif isinstance(instruction, Recv):
                yield from self._read(instruction)
            else:
                yield from self._compute(instruction)
            if dropped := tuple(what for what in self.reads(instruction) if self.last_read[what] == step):
                yield _drop(dropped)
        for message in self.leaving:
            yield self.settle(*message)

    def _compute(self, work: Work) -> Iterator[Action]:
        inputs = self.inputs[work]
        for what in inputs.awaits:
            yield from self._take(what, work)
        if len(inputs.ranks) > 1:
            yield self.reported(self.activity(f"waiting for the other ranks of {work}", work, *inputs.ranks),
                                lambda batch: self.session.meet(inputs.ranks))
        yield self.compute(work)

    def _read(self, instruction: Recv) -> Iterator[Action]:
        """Wait at its RECV for a message whose shape the plan does not know. Its SEND completes only then, and the
        checks of the program assume that SENDs wait for their RECVs, not for later readers."""
        landing = self.arriving.get(instruction.what)
        if landing is not None and not landing.layout.is_known:
            yield from self._take(instruction.what, instruction)

    def _take(self, what: Work, reader: Instruction) -> Iterator[Action]:
        """Wait for the message ``what`` unless that has been done; ``reader`` is its first reader."""
        if (landing := self.arriving.pop(what, None)) is not None:
            slot = self.slot(landing)

            def take(batch: Batch) -> None:
                batch.arriving.pop(what).wait()
                if slot is not None:
                    batch.results[what] = slot

            yield self.reported(self.waiting(landing, reader), take)


def _sum(instruction: Reduce, reduce: Callable[[Reduce], None]) -> Action:
    def add_up(batch: Batch) -> None:
        with profiler.record_function(f"weft:{instruction}"):
            reduce(instruction)

    return Action(str(instruction), add_up)


def _drop(whats: Sequence[Work]) -> Action:
    """Release results that no later instruction reads."""
    def drop(batch: Batch) -> None:
        for what in whats:
            batch.results.pop(what, None)

    return Action(" ".join(["drop", *map(str, whats)]), drop)

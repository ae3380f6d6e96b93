"""Runs one rank's instructions of a program. It never decides: the program is the order.

Before the first step the instructions are compiled into actions (:mod:`weft.runtime.execute.actions`), and a step runs
them one after another; where a device has lanes, each of these in a thread of its own
(:mod:`weft.runtime.execute.lanes`).

A SEND starts its transfer and goes on; receives are posted where the buffer table says
(:mod:`weft.runtime.plan.buffers`), at their RECV or before; an instruction that computes first waits for what it needs.
A result is kept until its last reader on this rank is done and its transfers are over. Only the last few SENDs may be
unfinished: an older one is waited for, which bounds the memory and cannot deadlock, since a checked program runs
through even if every SEND waits for its RECV (:mod:`weft.runtime.plan.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from weft.runtime.execute import actions
from weft.runtime.execute.actions import Action, Batch, Task, Wants
from weft.runtime.execute.lanes import InLanes
from weft.runtime.execute.slot_addresses import SlotAddresses
from weft.runtime.execute.transfers import agree_on_buffers
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.buffers import OPEN_SENDS, BufferTable, Landing
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import BlockWork, Instruction, Recv, Reduce, Send, Work
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.stopwatch import sleep_until, stopwatch
from weft.runtime.ranks.watch import Activity
from weft.runtime.transports.interface import Parcel, Transport, TransportError
from weft.runtime.transports.registry import open_transport

__all__ = ["Executor", "Parcel", "Task", "Worker"]


class Worker(Protocol):
    """What computes: a model's stages, or their emulation. Results are parcels: tensors by name."""

    def reads(self, work: Work) -> Sequence[Work]:
        """Whose results ``work`` reads, out of those it waits for."""

    def keeps(self, work: Work) -> Work:
        """The instruction of this rank, ``work`` or a later one, up to which what ``work`` reads may be looked at."""

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """What the result of ``what`` looks like on its way to rank ``target``: at least one tensor. Called on both
        ends, before the first step."""

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        """What makes of the result of ``what`` that which goes to rank ``target``, as :meth:`layout` has it; called
        before the first step, as :meth:`task` is."""

    def task(self, work: Work) -> Task:
        """What does ``work``: it is given results, among them all that ``work`` reads, and gives the result, which may
        be empty."""

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        """What waits for that which ``work`` needs beside messages, if there is anything; not counted as part of it."""


class Executor:
    """Runs rank ``session.rank`` of ``plan`` with ``worker``, any number of times, until it is closed.

    All ranks must make theirs together: they agree on their buffers, prove them, and connect. Raises
    :class:`~weft.runtime.ranks.session.SessionError` where that fails. ``reduce`` sums gradients; without it nothing
    does.
    ``connect`` and ``agree`` are for ranks that are no processes among others: threads, or one rank by itself.
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
                       plan.problem.blocks[self._key(work)[0]].name for work in self.wants}
        self.begun = 0.0  # the moment, on the clock of all ranks, at which they last began together

    def close(self) -> None:
        """Give the buffers back."""
        self.actions, self.lanes = (), None
        self.slots.clear()
        self.transport.close()

    def run(self, *, together: bool = True) -> list[Measured]:
        """Run all instructions once; returns when each block ran, on the clock of all ranks.

        ``together``: all ranks begin at one moment, as the first run must and a run whose times are held against the
        plan should. Otherwise a rank begins when it comes to it, and messages are all it waits for: that saves what
        meeting costs, some milliseconds. All ranks must say the same. Raises ``ConnectionError`` if another rank is
        gone, what the worker raises, and :class:`~weft.runtime.ranks.session.SessionError` where a message cannot be
        carried.
        """
        try:
            return self._run(together)
        except TransportError as error:
            raise SessionError(str(error)) from None

    def _run(self, together: bool) -> list[Measured]:
        batch = Batch(stopwatch(self.session))
        if together:
            self.begun = self.session.common_start()
            sleep_until(self.begun, self.session.now)
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
        index, micro_batch = self._key(work)
        needed = dict.fromkeys((dependency.block, micro_batch - dependency.distance)
                               for dependency in self.plan.problem.blocks[index].after)
        awaits = tuple(self.plan.vocabulary.work(self.plan.problem.index[name], m) for name, m in needed if m >= 0)
        return Wants(awaits, tuple(self.worker.reads(work)), self.plan.vocabulary.ranks.of_block(index))

    def _key(self, work: Work) -> tuple[int, int]:
        key = self.plan.vocabulary.key(work)
        assert key is not None, work  # the plan's program has been checked
        return key


class _Compiler:
    """Walks through the instructions once, as a run would, and makes the actions of the run."""

    def __init__(self, executor: Executor, reduce: Callable[[Reduce], None] | None) -> None:
        self.instructions, self.table = executor.instructions, executor.table
        self.wants, self.slots = executor.wants, executor.slots
        self.session, self.worker, self.transport = executor.session, executor.worker, executor.transport
        self.watch, self.reduce, self.vocabulary = executor.session.watch, reduce, executor.plan.vocabulary
        self.messages = {message.step: message for message in self.table.sends}
        self.slot_addresses = SlotAddresses(self.slots)
        self.last_read = {what: step for step, instruction in enumerate(self.instructions)
                          for what in self._reads(instruction)}
        self.arriving: dict[Work, Landing] = {}
        self.leaving: list[tuple[int, Send]] = []

    def actions(self) -> Iterator[Action]:
        for step, instruction in enumerate(self.instructions):
            for landing in self.table.postings.get(step, ()):
                yield self._post(landing)
            if isinstance(instruction, Send):
                yield from self._send(step, instruction)
            elif isinstance(instruction, Reduce):
                if self.reduce is not None:
                    yield actions.Sum(instruction, self.reduce)
            elif isinstance(instruction, Recv):
                yield from self._read(instruction)
            else:
                yield from self._compute(instruction)
            if dropped := tuple(what for what in self._reads(instruction) if self.last_read[what] == step):
                yield actions.Drop(dropped)
        while self.leaving:
            yield self._settle()

    def _post(self, landing: Landing) -> Action:
        self.arriving[landing.what] = landing
        return actions.Post(landing.what, self.transport.receiver(landing), self.watch,
                            self._activity(f"starting {Recv(landing.what, landing.peer)}", landing.what, landing.peer))

    def _send(self, step: int, instruction: Send) -> Iterator[Action]:
        what, peer = instruction.what, instruction.peer
        if len(self.leaving) >= OPEN_SENDS:
            yield self._settle()
        yield from self._take(what, instruction, what)
        yield actions.Send(step, what, self.worker.message(what, peer), self.transport.sender(self.messages[step]),
                           self.watch, self._activity(f"starting {instruction}", what, peer))
        self.leaving.append((step, instruction))

    def _settle(self) -> Action:
        step, instruction = self.leaving.pop(0)
        return actions.Settle(step, self.watch,
                              self._activity(f"waiting for {instruction}", instruction.what, instruction.peer))

    def _compute(self, work: Work) -> Iterator[Action]:
        wants = self.wants[work]
        for what in wants.awaits:
            yield from self._take(what, work, work)
        if len(wants.ranks) > 1:
            yield actions.Meet(wants.ranks, self.session,
                               self._activity(f"waiting for the other ranks of {work}", work, *wants.ranks))
        yield actions.Compute(work, self.worker.prepare(work), self.worker.task(work), work in self.last_read,
                              self.slot_addresses, self.watch, self._activity(f"running {work}", work))

    def _read(self, instruction: Recv) -> Iterator[Action]:
        """Take a message whose shape the plan does not know, at the latest here: its SEND is over only then, and what
        is proven of the program holds for SENDs that wait for their RECVs, not for readers of these."""
        landing = self.arriving.get(instruction.what)
        if landing is not None and not landing.layout.is_known:
            yield from self._take(instruction.what, instruction, instruction.what)

    def _take(self, what: Work, reader: Instruction, needed_by: Work) -> Iterator[Action]:
        """Wait for ``what``, if it is arriving; ``reader`` is the first that needs it, for the result of ``needed_by``.
        """
        if (landing := self.arriving.pop(what, None)) is not None:
            text = f"waiting for {Recv(what, landing.peer)}, for {reader} ({self.vocabulary.micro_batch(needed_by)})"
            yield actions.Take(what, self.slots[landing] if what in self.last_read else None, self.watch,
                               self.session.activity(text, [landing.peer]))

    def _reads(self, instruction: Instruction) -> tuple[Work, ...]:
        """Whose results ``instruction`` reads."""
        if isinstance(instruction, Send):
            return (instruction.what,)
        return () if isinstance(instruction, (Recv, Reduce)) else self.wants[instruction].reads

    def _activity(self, text: str, work: Work, *peers: int) -> Activity:
        return self.session.activity(f"{text} ({self.vocabulary.micro_batch(work)})", peers)

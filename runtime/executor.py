"""Runs one rank's row of a program. It never decides: the row is the order.

A SEND starts its transfer and goes on; receives are posted where the buffer table says (:mod:`runtime.buffers`), at
their RECV or before; an instruction that computes first waits for what it needs. A result is kept until its last reader
on this rank is done and its transfers are over. Only the last few SENDs may be unfinished: an older one is waited for,
which bounds the memory and cannot deadlock, since a checked program runs through even if every SEND waits for its RECV
(:mod:`runtime.check`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor
from torch.autograd import profiler

from runtime.buffers import OPEN_SENDS, BufferTable, Landing
from runtime.plan import Plan
from runtime.program import Recv, Reduce, Send, Work
from runtime.session import Session, SessionError
from runtime.stopwatch import sleep_until, stopwatch
from runtime.timeline import Measured
from runtime.training import Boundary
from runtime.transfers import agree_on_buffers
from runtime.transports import Parcel, Transfer, Transport, TransportError, open_transport

__all__ = ["Executor", "Parcel", "Worker"]


class Worker(Protocol):
    """What computes: a model's stages, or their emulation. Results are parcels: tensors by name."""

    def reads(self, work: Work) -> Sequence[Work]:
        """Whose results ``work`` reads, out of those it waits for."""

    def keeps(self, work: Work) -> Work:
        """The instruction of this rank, ``work`` or a later one, up to which what ``work`` reads may be looked at."""

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """What the result of ``what`` looks like on its way to rank ``target``: at least one tensor; asked on both
        ends, before the first step."""

    def message(self, what: Work, result: Parcel, target: int) -> Parcel:
        """What goes to rank ``target`` out of the ``result`` of ``what``, as :meth:`layout` has it."""

    def prepare(self, work: Work, results: Mapping[Work, Parcel]) -> None:
        """What ``work`` has to wait for beside messages; not counted as part of it."""

    def compute(self, work: Work, results: Mapping[Work, Parcel]) -> Parcel:
        """Do ``work``; ``results`` holds what it reads. Returns its result, which may be empty."""


class _Wants(NamedTuple):
    """What an instruction that computes waits for, what it reads of that, and on which ranks it runs together."""

    awaits: tuple[Work, ...]
    reads: tuple[Work, ...]
    ranks: tuple[int, ...]


class Executor:
    """Runs rank ``session.rank`` of ``plan`` with ``worker``, any number of times, until it is closed.

    All ranks must make theirs together: they agree on their buffers, prove them, and connect. Raises
    :class:`~runtime.session.SessionError` where that fails. ``reduce`` sums gradients; without it nothing does.
    ``connect`` and ``agree`` are for ranks that are no processes among others: threads, or one rank by itself.
    """

    def __init__(self, plan: Plan, session: Session, worker: Worker,
                 connect: Callable[[Session, Sequence[BufferTable]], Transport] = open_transport,
                 agree: Callable[[Plan, Session, Worker, Callable[[Work], Iterable[Work]]],
                                 Sequence[BufferTable]] = agree_on_buffers,
                 reduce: Callable[[Reduce], None] | None = None) -> None:
        self.plan, self.session, self.worker, self.reduce = plan, session, worker, reduce
        self.row = plan.program.ranks[session.rank]
        session.add_groups(plan.groups)
        self.wants = {work: self._wants(work) for work in plan.program.works(session.rank)}
        self.readers = Counter(work for wants in self.wants.values() for work in wants.reads)
        self.readers.update(instruction.what for instruction in self.row if isinstance(instruction, Send))
        tables = agree(plan, session, worker, lambda work: {*self.wants[work].awaits, *self.wants[work].reads})
        self.table: BufferTable = tables[session.rank]
        try:
            self.transport = connect(session, tables)
        except TransportError as error:
            raise SessionError(str(error)) from None
        self.slots = {landing: self.transport.slot(landing) for landing in self.table.receives}
        self.messages = {message.step: message for message in self.table.sends}
        self.begun = 0.0  # the moment, on the clock of all ranks, at which they last began together

    def close(self) -> None:
        """Give the buffers back."""
        self.slots.clear()
        self.transport.close()

    def run(self, *, together: bool = True) -> list[Measured]:
        """Run the row once; returns when each block ran, on the clock of all ranks.

        ``together``: all ranks begin at one moment, as the first run must and a run whose times are held against the
        plan should. Otherwise a rank begins when it comes to it, and messages are all it waits for: that saves what
        meeting costs, some milliseconds. All ranks must say the same. Raises ``ConnectionError`` if another rank is
        gone, and what the worker raises.
        """
        batch = _Batch(self)
        if together:
            self.begun = self.session.common_start()
            sleep_until(self.begun, self.session.now)
        batch.stopwatch.begin()
        for step, instruction in enumerate(self.row):
            for landing in self.table.postings.get(step, ()):
                batch.receive(landing)
            if isinstance(instruction, Send):
                batch.send(instruction, step)
            elif isinstance(instruction, Reduce):
                if self.reduce is not None:
                    self.reduce(instruction)
            elif not isinstance(instruction, Recv):
                batch.compute(instruction)
        batch.finish()
        return [Measured(self.plan.problem.blocks[self._block(work)].name, work.micro_batch, self.session.rank, *times)
                for work, *times in batch.stopwatch.laps()]

    def _wants(self, work: Work) -> _Wants:
        block = self.plan.problem.blocks[self._block(work)]
        needed = dict.fromkeys((dependency.block, work.micro_batch - dependency.distance) for dependency in block.after)
        awaits = tuple(self.plan.vocabulary.work(self.plan.problem.index[name], micro_batch)
                       for name, micro_batch in needed if micro_batch >= 0)
        return _Wants(awaits, tuple(self.worker.reads(work)), block.devices)

    def _block(self, work: Work) -> int:
        block = self.plan.vocabulary.block(work)
        assert block is not None, work  # the plan's program has been checked
        return block


class _Batch:
    """One run through a row: the results at hand, and the transfers under way."""

    def __init__(self, executor: Executor) -> None:
        self.session, self.worker, self.wants = executor.session, executor.worker, executor.wants
        self.transport, self.slots, self.messages = executor.transport, executor.slots, executor.messages
        self.places = {slot.untyped_storage().data_ptr() for parcel in self.slots.values() for slot in parcel.values()}
        self.stopwatch = stopwatch(executor.session)
        self.readers = Counter(executor.readers)
        self.results: dict[Work, Parcel] = {}
        self.arriving: dict[Work, tuple[Landing, Transfer]] = {}
        self.leaving: deque[tuple[Send, Transfer]] = deque()

    def send(self, instruction: Send, step: int) -> None:
        what, peer = instruction.what, instruction.peer
        while len(self.leaving) >= OPEN_SENDS:
            self._wait(*self.leaving.popleft())
        self._take(what, f", for {instruction} (micro-batch {what.micro_batch})")
        self.session.doing(f"starting {instruction} (micro-batch {what.micro_batch})", [peer])
        parcel = self.worker.message(what, self.results.get(what, {}), peer)
        self.leaving.append((instruction, self.transport.send(self.messages[step], parcel)))
        self._has_read(what)

    def receive(self, landing: Landing) -> None:
        what = landing.what
        self.session.doing(f"starting RECV {what}<{landing.peer} (micro-batch {what.micro_batch})", [landing.peer])
        self.arriving[what] = landing, self.transport.receive(landing)

    def compute(self, work: Work) -> None:
        wants = self.wants[work]
        for what in wants.awaits:
            self._take(what, f", for {work} (micro-batch {work.micro_batch})")
        if len(wants.ranks) > 1:
            self.session.doing(f"waiting for the other ranks of {work} (micro-batch {work.micro_batch})", wants.ranks)
            self.session.meet(wants.ranks)
        self.worker.prepare(work, self.results)
        self.session.doing(f"running {work} (micro-batch {work.micro_batch})")
        self.stopwatch.start()
        if profiler._is_profiler_enabled:  # a label that nobody reads costs as much as all else here
            with profiler.record_function(f"weft:{work}"):
                result = self.worker.compute(work, self.results)
        else:
            result = self.worker.compute(work, self.results)
        self.stopwatch.stop(work)
        if self.readers[work]:
            self.results[work] = {name: self._own(tensor) for name, tensor in result.items()}
        for what in wants.reads:
            self._has_read(what)

    def finish(self) -> None:
        while self.leaving:
            self._wait(*self.leaving.popleft())
        self.session.doing("finishing the batch")

    def _take(self, what: Work, purpose: str) -> None:
        """Wait for ``what`` if it is arriving."""
        if what in self.arriving:
            landing, transfer = self.arriving.pop(what)
            self._wait(Recv(what, landing.peer), transfer, purpose)
            if self.readers[what]:
                self.results[what] = self.slots[landing]

    def _wait(self, instruction: Send | Recv, transfer: Transfer, purpose: str = "") -> None:
        self.session.doing(f"waiting for {instruction}{purpose or f' (micro-batch {instruction.what.micro_batch})'}",
                           [instruction.peer])
        transfer.wait()

    def _own(self, tensor: Tensor) -> Tensor:
        """``tensor``, or a copy where a stage hands on what it was given: a slot is needed again."""
        return tensor.clone() if tensor.untyped_storage().data_ptr() in self.places else tensor

    def _has_read(self, what: Work) -> None:
        self.readers[what] -= 1
        if not self.readers[what]:
            self.results.pop(what, None)

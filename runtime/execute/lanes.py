"""Runs one rank's instructions if its device has lanes: each queue in a thread of its own.

The device, each of its lanes and the rank's messages are queues (:mod:`weft.runtime.plan.lanes`), compiled into actions
before the first step (:mod:`weft.runtime.execute.compiling`). Queues synchronise by events: an instruction sets its
event when it is complete, and dependent instructions on other queues wait for it. On a GPU each queue also has a
stream, and each event a CUDA event of that stream, so that kernels wait for kernels and threads only for launches. An
error on one queue ends the run with that queue's activity, and the other queues stop.

A result is kept until all its readers on this rank are complete. The first lane that needs a message waits for it. A
slot is posted again only when all readers of its content are complete, as a late lane would otherwise read the next
message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from weft.runtime.execute.compiling import Action, ActionCompiler, Batch
from weft.runtime.plan.buffers import OPEN_SENDS, Landing
from weft.runtime.plan.lanes import memory_waits, queues
from weft.runtime.plan.program import Instruction, Recv, Send, Work
from weft.runtime.ranks.session import Session
from weft.runtime.ranks.stopwatch import stopwatch
from weft.runtime.ranks.words import Activity

if TYPE_CHECKING:
    from weft.runtime.execute.executor import Executor

MESSAGES = -1  # the queue that is not a device


class _Stopped(Exception):
    """Another queue has failed."""


class _SharedBatch(Batch):
    """The state of one run that all queues share. ``done``: the events by key; ``left``: the number of outstanding
    readers of each result; ``failed``: whether a queue has failed."""

    __slots__ = ("done", "failed", "left", "lock", "marks")

    def __init__(self, session: Session, keys: Sequence[Hashable], readers: Mapping[Work, int]) -> None:
        super().__init__(stopwatch(session))
        self.done = {key: threading.Event() for key in keys}
        self.marks: dict[Hashable, torch.cuda.Event] = {}  # on a GPU: completion of the queue's earlier kernels
        self.left = dict(readers)
        self.lock = threading.Lock()
        self.failed = False

    def fail(self) -> None:
        """Release all waiting queues, which then stop."""
        self.failed = True
        for event in self.done.values():
            event.set()


class _QueueBatch(Batch):
    """A queue's view of a run: the shared state, and a stopwatch of its own."""

    __slots__ = ("all",)

    def __init__(self, session: Session, all_queues: _SharedBatch) -> None:
        super().__init__(stopwatch(session))
        self.all = all_queues
        self.results, self.arriving, self.leaving = all_queues.results, all_queues.arriving, all_queues.leaving


def _shared(batch: Batch) -> _SharedBatch:
    assert isinstance(batch, _QueueBatch)
    return batch.all


# -- the run -------------------------------------------------------------------------------------------------------


class LaneExecutor:
    """Runs the queues of ``executor``'s rank, any number of times."""

    def __init__(self, executor: Executor) -> None:
        self.session = executor.session
        compiled = _LaneCompiler(executor)
        self.queues: Mapping[int, tuple[Action, ...]] = {
            device: tuple(compiled.lane(device)) for device in compiled.lanes} | {MESSAGES: tuple(compiled.messages())}
        self._keys, self._readers = tuple(compiled.keys), compiled.readers
        names = executor.plan.problem.devices
        self._names = {queue: "messages" if queue == MESSAGES else names[queue].name for queue in self.queues}
        device = self.session.device
        self._streams = {queue: torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
                         for queue in self.queues}

    def run(self) -> Callable[[], list[tuple[Work, float, float]]]:
        """Run all queues once; returns a function that returns the start and end of each block.

        Raises the exception of the first queue that fails.
        """
        shared = _SharedBatch(self.session, self._keys, self._readers)
        batches = {queue: _QueueBatch(self.session, shared) for queue in self.queues}
        ends: SimpleQueue[tuple[Activity, BaseException] | None] = SimpleQueue()
        for queue in self.queues:
            threading.Thread(target=self._run_queue, args=(queue, batches[queue], ends), daemon=True,
                             name=f"weft lane {self._names[queue]}").start()
        self.session.watch.rest()
        for _ in self.queues:
            if (fault := ends.get()) is not None:
                activity, error = fault
                self.session.watch.at(activity)
                raise error
        return lambda: [lap for batch in batches.values() for lap in batch.stopwatch.laps()]

    def _run_queue(self, queue: int, batch: _QueueBatch,
                   ends: SimpleQueue[tuple[Activity, BaseException] | None]) -> None:
        fault = None
        try:
            with self._on_stream(queue):
                batch.stopwatch.begin()
                for action in self.queues[queue]:
                    action.run(batch)
        except _Stopped:
            pass
        except BaseException as error:  # raised again in the rank's main thread
            fault = Activity(f"{self.session.watch.text}, on {self._names[queue]}"), error
            batch.all.fail()
        finally:
            self.session.watch.rest()
            ends.put(fault)

    def _on_stream(self, queue: int) -> AbstractContextManager[object]:
        stream = self._streams[queue]
        return nullcontext() if stream is None else torch.cuda.stream(stream)


class _LaneCompiler(ActionCompiler):
    """Makes the actions of every queue. Keys of events: a Work (it is complete); ``("here", work, device)``: the device
    has reached a block on several devices; ``("posted", work)``: the receive of its result is posted."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.rank, self.on_gpu = executor.session.rank, self.session.device.type == "cuda"
        self.lanes = queues(self.plan, self.rank)
        self.memory = memory_waits(self.plan, self.rank)
        self.landings = {landing.what: landing for landing in self.table.receives}
        self.locks = {what: threading.Lock() for what in self.landings}
        self.keys: dict[Hashable, None] = dict.fromkeys(self.inputs)

    def lane(self, device: int) -> Iterator[Action]:
        """The actions of ``device``. A block on several devices runs on the first of them on this rank."""
        for work in self.lanes[device]:
            first, *others = self._devices(work)
            if device != first:
                yield self._announce(("here", work, device))
                yield self._await([work])
                continue
            yield self._await([("here", work, other) for other in others])
            yield from self._compute(work, {first, *others})

    def messages(self) -> Iterator[Action]:
        """The actions of messages, in the order of the rank's instructions."""
        last_posted: dict[int, Landing] = {}  # by slot
        leaving: list[tuple[int, Send]] = []
        kept_until: dict[Work, set[Work]] = {}
        for work, inputs in self.inputs.items():
            for what in {*inputs.awaits, *inputs.reads}:
                kept_until.setdefault(what, set()).add(self.worker.keeps(work))
        for step, instruction in enumerate(self.instructions):
            for landing in self.table.postings.get(step, ()):
                if (before := last_posted.get(landing.slot)) is not None:
                    yield self._await(sorted(kept_until.get(before.what, ()), key=str))
                last_posted[landing.slot] = landing
                yield self.post(landing)
                yield self._announce(("posted", landing.what))
            if isinstance(instruction, Recv) and not self.landings[instruction.what].layout.is_known:
                yield self._take(instruction.what, instruction)  # its SEND completes only then
            if isinstance(instruction, Send):
                if len(leaving) >= OPEN_SENDS:
                    yield self.settle(*leaving.pop(0))
                yield self._await([instruction.what], [instruction.what])
                yield self.send(step, instruction)
                yield _release((instruction.what,))
                leaving.append((step, instruction))
        for message in leaving:
            yield self.settle(*message)

    def _compute(self, work: Work, held: set[int]) -> Iterator[Action]:
        inputs, block = self.inputs[work], self.plan.vocabulary.known(work)[0]
        local = [what for what in dict.fromkeys((*inputs.awaits, *inputs.reads)) if what in self.inputs]
        others = [what for what in local if held.isdisjoint(self._devices(what))]
        yield self._await([*others, *self.memory.get(work, ())], [what for what in others if what in inputs.reads])
        for what in inputs.awaits:
            if what in self.landings:
                yield self._await([("posted", what)])
                yield self._take(what, work)
        if len(inputs.ranks) > 1:
            devices = tuple(sorted(self.plan.problem.blocks[block].devices))
            yield self.reported(self.activity(f"waiting for the other ranks of {work}", work, *inputs.ranks),
                                lambda batch: self.session.meet_on(devices))
        yield self.compute(work)
        yield self._announce(work)
        if inputs.reads:
            yield _release(inputs.reads)

    def _take(self, what: Work, reader: Instruction) -> Action:
        """Wait for the message ``what``, for ``reader``, unless another queue has done so."""
        landing, lock = self.landings[what], self.locks[what]
        slot = self.slot(landing)

        def take(batch: Batch) -> None:
            with lock:
                if what not in batch.arriving:
                    return
                batch.arriving[what].wait()
                if slot is not None:
                    batch.results[what] = slot
                del batch.arriving[what]

        return self.reported(self.waiting(landing, reader), take)

    def _devices(self, work: Work) -> tuple[int, ...]:
        return self.plan.vocabulary.ranks.held(self.rank, self.plan.vocabulary.known(work)[0])

    def _announce(self, key: Hashable) -> Action:
        """Set the event ``key``."""
        self.keys[key], on_gpu = None, self.on_gpu

        def announce(batch: Batch) -> None:
            shared = _shared(batch)
            if on_gpu:
                shared.marks[key] = torch.cuda.current_stream().record_event()
            shared.done[key].set()

        return Action(f"announcing {key}", announce)

    def _await(self, keys: Sequence[Hashable], reads: Sequence[Work] = ()) -> Action:
        """Wait for the events ``keys`` of other queues; this queue then reads the results of ``reads``."""
        on_gpu, rest = self.on_gpu, self.watch.rest

        def wait(batch: Batch) -> None:
            shared = _shared(batch)
            for key in keys:
                event = shared.done[key]
                if not event.is_set():
                    rest()
                    event.wait()
                if shared.failed:
                    raise _Stopped
                if on_gpu:
                    torch.cuda.current_stream().wait_event(shared.marks[key])
            for what in reads if on_gpu else ():  # the allocator must not reuse the memory before this stream reads it
                for tensor in shared.results[what].values():
                    tensor.record_stream(torch.cuda.current_stream())

        return Action(f"waiting for {', '.join(map(str, keys))}", wait)


def _release(whats: Sequence[Work]) -> Action:
    """Count one reader of ``whats`` as complete; the last one releases the results."""
    def release(batch: Batch) -> None:
        shared = _shared(batch)
        with shared.lock:
            for what in whats:
                shared.left[what] -= 1
                if not shared.left[what]:
                    shared.results.pop(what, None)

    return Action(f"releasing {', '.join(map(str, whats))}", release)

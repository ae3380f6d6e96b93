"""What instructions of a rank become, whether they run in one row or in queues: their actions, with all at hand.

What a rank's instructions become before the first step: actions that have all they need at hand.

The instructions run many times, and do the same each time. So everything that can be known beforehand is: passes and
transfers are bound calls, what the watchdog is told is written, and the order says which instruction is the first that
needs a message, which the last that reads a result, and which SEND must be over before another one starts. An action
that runs looks nothing up and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from torch.autograd import profiler

from weft.runtime.plan.buffers import Landing
from weft.runtime.plan.program import Instruction, Recv, Reduce, Send, Work
from weft.runtime.ranks.stopwatch import Stopwatch
from weft.runtime.ranks.words import Activity
from weft.runtime.transports.interface import Parcel, Transfer

if TYPE_CHECKING:
    from weft.runtime.execute.executor import Executor


class SlotAddresses:
    """Where the memory of a rank's ``slots`` begins, once and for all but for those that grow: what a stage hands on
    from there must be copied first."""

    def __init__(self, slots: Mapping[Landing, Parcel]) -> None:
        self._fixed = {slot.untyped_storage().data_ptr() for landing, parcel in slots.items()
                       if landing.layout.is_known for slot in parcel.values()}
        self._growing = [parcel for landing, parcel in slots.items() if not landing.layout.is_known]

    def __contains__(self, address: object) -> bool:
        return address in self._fixed or any(
            slot.untyped_storage().data_ptr() == address for parcel in self._growing for slot in tuple(parcel.values()))


class Compiling:
    """Makes actions of the instructions of ``executor``'s rank. ``readers``: by how many of them a result is read."""

    def __init__(self, executor: Executor) -> None:
        self.session, self.worker, self.transport = executor.session, executor.worker, executor.transport
        self.plan, self.table, self.slots, self.wants = executor.plan, executor.table, executor.slots, executor.wants
        self.watch, self.instructions = executor.session.watch, executor.instructions
        self.sends = {message.step: message for message in self.table.sends}
        self.slot_addresses = SlotAddresses(self.slots)
        self.readers = Counter(what for instruction in self.instructions for what in self.reads(instruction))

    def reads(self, instruction: Instruction) -> tuple[Work, ...]:
        """Whose results ``instruction`` reads."""
        if isinstance(instruction, Send):
            return (instruction.what,)
        return () if isinstance(instruction, (Recv, Reduce)) else self.wants[instruction].reads

    def told(self, activity: Activity, run: Callable[[Batch], object]) -> Action:
        """An action that tells the watchdog, then does ``run``."""
        at = self.watch.at

        def telling(batch: Batch) -> None:
            at(activity)
            run(batch)

        return Action(activity.text, telling)

    def post(self, landing: Landing) -> Action:
        """Post a receive."""
        what, receive = landing.what, self.transport.receiver(landing)

        def post(batch: Batch) -> None:
            batch.arriving[what] = receive()

        return self.told(self.activity(f"starting {Recv(what, landing.peer)}", what, landing.peer), post)

    def send(self, step: int, instruction: Send) -> Action:
        """Start sending what the worker makes of the result."""
        what, peer = instruction.what, instruction.peer
        message, send = self.worker.message(what, peer), self.transport.sender(self.sends[step])

        def start(batch: Batch) -> None:
            batch.leaving[step] = send(message(batch.results.get(what, {})))

        return self.told(self.activity(f"starting {instruction}", what, peer), start)

    def settle(self, step: int, instruction: Send) -> Action:
        """Wait for the end of a send."""
        return self.told(self.activity(f"waiting for {instruction}", instruction.what, instruction.peer),
                         lambda batch: batch.leaving.pop(step).wait())

    def compute(self, work: Work) -> Action:
        """Do ``work``. What it hands on of what it was given is copied: a slot is needed again."""
        prepare, task, at = self.worker.prepare(work), self.worker.task(work), self.watch.at
        activity, addresses, is_read = self.activity(f"running {work}", work), self.slot_addresses, work in self.readers

        def compute(batch: Batch) -> None:
            if prepare is not None:
                prepare(batch.results)
            at(activity)
            batch.stopwatch.start()
            # Without a profiler, a label would cost as much as all else here.
            if getattr(profiler, "_is_profiler_enabled", True):
                with profiler.record_function(f"weft:{work}"):
                    result = task(batch.results)
            else:
                result = task(batch.results)
            batch.stopwatch.stop(work)
            if is_read:
                batch.results[work] = {
                    name: tensor.clone() if tensor.untyped_storage().data_ptr() in addresses else tensor
                    for name, tensor in result.items()}

        return Action(activity.text, compute)

    def slot(self, landing: Landing) -> Parcel | None:
        """Where a message lies that somebody reads."""
        return self.slots[landing] if landing.what in self.readers else None

    def waiting(self, landing: Landing, reader: Instruction) -> Activity:
        """To wait for ``landing``, which ``reader`` is the first to need."""
        needed_by = landing.what if isinstance(reader, (Recv, Send, Reduce)) else reader
        return self.session.activity(f"waiting for {Recv(landing.what, landing.peer)}, for {reader} "
                                     f"({self.plan.vocabulary.micro_batch(needed_by)})", [landing.peer])

    def activity(self, text: str, work: Work, *peers: int) -> Activity:
        """What the watchdog is told."""
        return self.session.activity(f"{text} ({self.plan.vocabulary.micro_batch(work)})", peers)


#: A pass over one micro-batch: from the results at hand, of which it reads some, to its own.
Task: TypeAlias = "Callable[[Mapping[Work, Parcel]], Parcel]"


class Wants(NamedTuple):
    """What an instruction that computes waits for, what it reads of that, and on which ranks it runs together."""

    awaits: tuple[Work, ...]
    reads: tuple[Work, ...]
    ranks: tuple[int, ...]


class Batch:
    """One run through a rank's instructions: the results at hand, and the transfers under way."""

    __slots__ = ("arriving", "leaving", "results", "stopwatch")

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.results: dict[Work, Parcel] = {}
        self.arriving: dict[Work, Transfer] = {}
        self.leaving: dict[int, Transfer] = {}  # by the SEND's step
        self.stopwatch = stopwatch


class Action(NamedTuple):
    """Something a rank does at its place in the order: what, for people, and what does it."""

    text: str
    run: Callable[[Batch], None]

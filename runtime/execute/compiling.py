"""Compiles a rank's instructions into actions, whether they run in one list or in queues.

The instructions run many times, and do the same each time. So all that can be known before the first step is: passes
and transfers are bound calls, the watchdog's activities are written, and the order determines which instruction first
needs a message, which last reads a result, and which SEND must be over before another one starts. A running action
looks nothing up and decides nothing.
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
    """The start addresses of a rank's ``slots``, fixed except for those that grow: a result that a stage passes on from
    there must be copied first."""

    def __init__(self, slots: Mapping[Landing, Parcel]) -> None:
        self._fixed = {slot.untyped_storage().data_ptr() for landing, parcel in slots.items()
                       if landing.layout.is_known for slot in parcel.values()}
        self._growing = [parcel for landing, parcel in slots.items() if not landing.layout.is_known]

    def __contains__(self, address: object) -> bool:
        return address in self._fixed or any(
            slot.untyped_storage().data_ptr() == address for parcel in self._growing for slot in tuple(parcel.values()))


class Compiling:
    """Makes actions of the instructions of ``executor``'s rank. ``readers``: how many of them read each result."""

    def __init__(self, executor: Executor) -> None:
        self.session, self.worker, self.transport = executor.session, executor.worker, executor.transport
        self.plan, self.table, self.slots, self.wants = executor.plan, executor.table, executor.slots, executor.wants
        self.watch, self.instructions = executor.session.watch, executor.instructions
        self.sends = {message.step: message for message in self.table.sends}
        self.slot_addresses = SlotAddresses(self.slots)
        self.readers = Counter(what for instruction in self.instructions for what in self.reads(instruction))

    def reads(self, instruction: Instruction) -> tuple[Work, ...]:
        """The work whose results ``instruction`` reads."""
        if isinstance(instruction, Send):
            return (instruction.what,)
        return () if isinstance(instruction, (Recv, Reduce)) else self.wants[instruction].reads

    def told(self, activity: Activity, run: Callable[[Batch], object]) -> Action:
        """An action that reports ``activity`` to the watchdog, then runs ``run``."""
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
        """Start sending the worker's message of the result."""
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
        """Run ``work``. Results that alias a received message are copied: its slot is reused."""
        prepare, task, at = self.worker.prepare(work), self.worker.task(work), self.watch.at
        activity, addresses, is_read = self.activity(f"running {work}", work), self.slot_addresses, work in self.readers

        def compute(batch: Batch) -> None:
            if prepare is not None:
                prepare(batch.results)
            at(activity)
            batch.stopwatch.start()
            # Without a profiler, a label would cost as much as the rest of this function.
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
        """The slot of a message that has a reader."""
        return self.slots[landing] if landing.what in self.readers else None

    def waiting(self, landing: Landing, reader: Instruction) -> Activity:
        """The wait for ``landing``, whose first reader is ``reader``."""
        needed_by = landing.what if isinstance(reader, (Recv, Send, Reduce)) else reader
        return self.session.activity(f"waiting for {Recv(landing.what, landing.peer)}, for {reader} "
                                     f"({self.plan.vocabulary.micro_batch(needed_by)})", [landing.peer])

    def activity(self, text: str, work: Work, *peers: int) -> Activity:
        """The activity for the watchdog."""
        return self.session.activity(f"{text} ({self.plan.vocabulary.micro_batch(work)})", peers)


#: A pass over one micro-batch: from the available results, some of which it reads, to its own.
Task: TypeAlias = "Callable[[Mapping[Work, Parcel]], Parcel]"


class Wants(NamedTuple):
    """The work that a computing instruction waits for, the part of it that it reads, and the ranks it runs on
    together."""

    awaits: tuple[Work, ...]
    reads: tuple[Work, ...]
    ranks: tuple[int, ...]


class Batch:
    """One run through a rank's instructions: the available results, and the transfers under way."""

    __slots__ = ("arriving", "leaving", "results", "stopwatch")

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.results: dict[Work, Parcel] = {}
        self.arriving: dict[Work, Transfer] = {}
        self.leaving: dict[int, Transfer] = {}  # by the SEND's step
        self.stopwatch = stopwatch


class Action(NamedTuple):
    """An action of a rank at its place in the order: its text, for people, and its function."""

    text: str
    run: Callable[[Batch], None]

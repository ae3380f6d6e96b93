"""Compiles a rank's instructions into actions, for execution in one list or in queues.

The instructions are the same in each step, so everything that does not depend on the step is computed once: bound calls
of passes and transfers, the watchdog's activities, the first reader of each message, the last reader of each result,
and the SEND that must be complete before another one starts. A running action has no lookups and no decisions.
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
    """The start addresses of a rank's ``slots``; slots of unknown shapes may move. A result at one of them is a
    received message that a stage returns, and must be copied."""

    def __init__(self, slots: Mapping[Landing, Parcel]) -> None:
        self._fixed = {slot.untyped_storage().data_ptr() for landing, parcel in slots.items()
                       if landing.layout.is_known for slot in parcel.values()}
        self._growing = [parcel for landing, parcel in slots.items() if not landing.layout.is_known]

    def __contains__(self, address: object) -> bool:
        return address in self._fixed or any(
            slot.untyped_storage().data_ptr() == address for parcel in self._growing for slot in tuple(parcel.values()))


class ActionCompiler:
    """Makes the actions of the instructions of ``executor``'s rank. ``readers``: the number of readers of each result.
    """

    def __init__(self, executor: Executor) -> None:
        self.session, self.worker, self.transport = executor.session, executor.worker, executor.transport
        self.plan, self.table, self.slots, self.inputs = executor.plan, executor.table, executor.slots, executor.inputs
        self.watch, self.instructions = executor.session.watch, executor.instructions
        self.sends = {message.step: message for message in self.table.sends}
        self.slot_addresses = SlotAddresses(self.slots)
        self.readers = Counter(what for instruction in self.instructions for what in self.reads(instruction))

    def reads(self, instruction: Instruction) -> tuple[Work, ...]:
        """The work whose results ``instruction`` reads."""
        if isinstance(instruction, Send):
            return (instruction.what,)
        return () if isinstance(instruction, (Recv, Reduce)) else self.inputs[instruction].reads

    def reported(self, activity: Activity, run: Callable[[Batch], object]) -> Action:
        """An action that reports ``activity`` to the watchdog, then runs ``run``."""
        at = self.watch.at

        def report_and_run(batch: Batch) -> None:
            at(activity)
            run(batch)

        return Action(activity.text, report_and_run)

    def post(self, landing: Landing) -> Action:
        """Post a receive."""
        what, receive = landing.what, self.transport.receiver(landing)

        def post(batch: Batch) -> None:
            batch.arriving[what] = receive()

        return self.reported(self.activity(f"starting {Recv(what, landing.peer)}", what, landing.peer), post)

    def send(self, step: int, instruction: Send) -> Action:
        """Start sending a result as the worker's message."""
        what, peer = instruction.what, instruction.peer
        message, send = self.worker.message(what, peer), self.transport.sender(self.sends[step])

        def start(batch: Batch) -> None:
            batch.leaving[step] = send(message(batch.results.get(what, {})))

        return self.reported(self.activity(f"starting {instruction}", what, peer), start)

    def settle(self, step: int, instruction: Send) -> Action:
        """Wait until a send is complete."""
        return self.reported(self.activity(f"waiting for {instruction}", instruction.what, instruction.peer),
                             lambda batch: batch.leaving.pop(step).wait())

    def compute(self, work: Work) -> Action:
        """Run ``work``. A result that aliases a received message is copied, as the slot is reused."""
        prepare, task, at = self.worker.prepare(work), self.worker.task(work), self.watch.at
        activity, addresses, is_read = self.activity(f"running {work}", work), self.slot_addresses, work in self.readers

        def compute(batch: Batch) -> None:
            if prepare is not None:
                prepare(batch.results)
            at(activity)
            batch.stopwatch.start()
            # Without a profiler, the label would double the overhead of this function.
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
        """The slot of a message; ``None`` for a message without a reader."""
        return self.slots[landing] if landing.what in self.readers else None

    def waiting(self, landing: Landing, reader: Instruction) -> Activity:
        """The activity of waiting for ``landing``, whose first reader is ``reader``."""
        needed_by = landing.what if isinstance(reader, (Recv, Send, Reduce)) else reader
        return self.session.activity(f"waiting for {Recv(landing.what, landing.peer)}, for {reader} "
                                     f"({self.plan.vocabulary.micro_batch(needed_by)})", [landing.peer])

    def activity(self, text: str, work: Work, *peers: int) -> Activity:
        """An activity for the watchdog, with the micro-batch of ``work``."""
        return self.session.activity(f"{text} ({self.plan.vocabulary.micro_batch(work)})", peers)


#: The function of a pass over one micro-batch: from the available results to its own result.
Task: TypeAlias = "Callable[[Mapping[Work, Parcel]], Parcel]"


class WorkInputs(NamedTuple):
    """``awaits``: the work that a computing instruction waits for. ``reads``: the work among it whose results it reads.
    ``ranks``: the ranks on which the instruction runs at the same time."""

    awaits: tuple[Work, ...]
    reads: tuple[Work, ...]
    ranks: tuple[int, ...]


class Batch:
    """One run of a rank's instructions: the available results, and the pending transfers."""

    __slots__ = ("arriving", "leaving", "results", "stopwatch")

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.results: dict[Work, Parcel] = {}
        self.arriving: dict[Work, Transfer] = {}
        self.leaving: dict[int, Transfer] = {}  # by the SEND's step
        self.stopwatch = stopwatch


class Action(NamedTuple):
    """A compiled action: a text for reports, and a function."""

    text: str
    run: Callable[[Batch], None]

"""What a rank's instructions become before the first step: actions that have all they need at hand.

The instructions run many times, and do the same each time. So everything that can be known beforehand is: passes and
transfers are bound calls, what the watchdog is told is written, and the order says which instruction is the first
that needs a message, which the last that reads a result, and which SEND must be over before another one starts. An
action that runs looks nothing up and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor
from torch.autograd import profiler

from weft.runtime.plan.program import Reduce, Work
from weft.runtime.ranks.session import Session
from weft.runtime.ranks.stopwatch import Stopwatch
from weft.runtime.ranks.watch import Activity, Watch
from weft.runtime.transports.interface import Parcel, Transfer

__all__ = ["Action", "Batch", "Compute", "Drop", "Meet", "Post", "Send", "Settle", "Sum", "Take", "Task", "Wants"]

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


class Action(Protocol):
    """Something a rank does at its place in the order."""

    def run(self, batch: Batch) -> None:
        """Do it."""


@dataclass(slots=True)
class Post:
    """Post the receive of ``what``."""

    what: Work
    receive: Callable[[], Transfer]
    watch: Watch
    activity: Activity

    def run(self, batch: Batch) -> None:
        self.watch.at(self.activity)
        batch.arriving[self.what] = self.receive()


@dataclass(slots=True)
class Take:
    """Wait for ``what``, which then lies in ``slot`` (``None``: it was only to be waited for)."""

    what: Work
    slot: Parcel | None
    watch: Watch
    activity: Activity

    def run(self, batch: Batch) -> None:
        self.watch.at(self.activity)
        batch.arriving.pop(self.what).wait()
        if self.slot is not None:
            batch.results[self.what] = self.slot


@dataclass(slots=True)
class Send:
    """Start sending what ``message`` makes of the result of ``what``."""

    step: int
    what: Work
    message: Callable[[Parcel], Parcel]
    send: Callable[[Parcel], Transfer]
    watch: Watch
    activity: Activity

    def run(self, batch: Batch) -> None:
        self.watch.at(self.activity)
        batch.leaving[self.step] = self.send(self.message(batch.results.get(self.what, {})))


@dataclass(slots=True)
class Settle:
    """Wait until the SEND at ``step`` is over."""

    step: int
    watch: Watch
    activity: Activity

    def run(self, batch: Batch) -> None:
        self.watch.at(self.activity)
        batch.leaving.pop(self.step).wait()


@dataclass(slots=True)
class Meet:
    """Wait for the other ranks that compute the next block too."""

    ranks: tuple[int, ...]
    session: Session
    activity: Activity

    def run(self, batch: Batch) -> None:
        self.session.watch.at(self.activity)
        self.session.meet(self.ranks)


@dataclass(slots=True)
class Compute:
    """Do ``work``; ``is_read``: another instruction of this rank reads its result. ``slot_addresses``: where the memory
    of every slot begins."""

    work: Work
    prepare: Callable[[Mapping[Work, Parcel]], None] | None
    task: Task
    is_read: bool
    slot_addresses: Container[int]
    watch: Watch
    activity: Activity

    def run(self, batch: Batch) -> None:
        if self.prepare is not None:
            self.prepare(batch.results)
        self.watch.at(self.activity)
        batch.stopwatch.start()
        # Without a profiler, a label would cost as much as all else here.
        if getattr(profiler, "_is_profiler_enabled", True):
            with profiler.record_function(f"weft:{self.work}"):
                result = self.task(batch.results)
        else:
            result = self.task(batch.results)
        batch.stopwatch.stop(self.work)
        if self.is_read:
            batch.results[self.work] = {name: self._own(tensor) for name, tensor in result.items()}

    def _own(self, tensor: Tensor) -> Tensor:
        """``tensor``, or a copy where a stage hands on what it was given: a slot is needed again."""
        return tensor.clone() if tensor.untyped_storage().data_ptr() in self.slot_addresses else tensor


@dataclass(slots=True)
class Sum:
    """Sum gradients."""

    instruction: Reduce
    reduce: Callable[[Reduce], None]

    def run(self, batch: Batch) -> None:
        with profiler.record_function(f"weft:{self.instruction}"):
            self.reduce(self.instruction)


@dataclass(slots=True)
class Drop:
    """Release results that no later instruction reads."""

    whats: tuple[Work, ...]

    def run(self, batch: Batch) -> None:
        for what in self.whats:
            batch.results.pop(what, None)

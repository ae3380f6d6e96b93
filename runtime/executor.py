"""Runs one rank's row of a program. It never decides: the row is the order.

SEND and RECV start their transfer and go on; an instruction that computes first waits for what it needs. A tensor is
kept until its last reader on this rank is done and its transfers are over. Only the last few SENDs may be unfinished:
an older one is waited for, which bounds the memory and cannot deadlock, since a checked program runs through even if
every SEND waits for its RECV (:mod:`runtime.check`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.profiler import record_function

from runtime.plan import Plan
from runtime.program import Recv, Send, Work
from runtime.session import Session
from runtime.stopwatch import sleep_until, stopwatch
from runtime.timeline import Measured
from runtime.training import Boundary
from runtime.transport import Transfer, receive, send

__all__ = ["Executor", "Parcel", "Worker"]

OPEN_SENDS = 8
Parcel: TypeAlias = Mapping[str, Tensor]


class Worker(Protocol):
    """What computes: a model's stages, or their emulation. Results are parcels: tensors by name."""

    def reads(self, work: Work) -> Sequence[Work]:
        """Whose results ``work`` reads, out of those it waits for."""

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """What the result of ``what`` looks like on its way to rank ``target``: at least one tensor."""

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
    """Runs rank ``session.rank`` of ``plan`` with ``worker``, any number of times."""

    def __init__(self, plan: Plan, session: Session, worker: Worker) -> None:
        self.plan, self.session, self.worker = plan, session, worker
        self.row = plan.program.ranks[session.rank]
        shared = sorted({block.devices for block in plan.problem.blocks if len(block.devices) > 1})
        for devices in shared:
            session.add_group(devices)
        self.wants = {work: self._wants(work) for work in plan.program.works(session.rank)}
        self.readers = Counter(work for wants in self.wants.values() for work in wants.reads)
        self.readers.update(instruction.what for instruction in self.row if isinstance(instruction, Send))

    def run(self) -> list[Measured]:
        """Run the row once, beginning together with all other ranks; returns when each block ran, on their clock.

        Raises ``ConnectionError`` if another rank is gone, and what the worker raises.
        """
        batch = _Batch(self)
        sleep_until(self.session.common_start(), self.session.now)
        batch.stopwatch.begin()
        for instruction in self.row:
            if isinstance(instruction, Send):
                batch.send(instruction)
            elif isinstance(instruction, Recv):
                batch.receive(instruction)
            else:
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
        self.watch = executor.session.watch
        self.stopwatch = stopwatch(executor.session)
        self.readers = Counter(executor.readers)
        self.results: dict[Work, Parcel] = {}
        self.arriving: dict[Work, Transfer] = {}
        self.leaving: deque[Transfer] = deque()

    def send(self, instruction: Send) -> None:
        what, peer = instruction.what, instruction.peer
        while len(self.leaving) >= OPEN_SENDS:
            self._wait(self.leaving.popleft())
        self.watch.doing(f"starting {instruction} (micro-batch {what.micro_batch})", [peer])
        parcel = self.worker.message(what, self.results.get(what, {}), peer)
        self.leaving.append(send(parcel, instruction, peer))
        self._has_read(what)

    def receive(self, instruction: Recv) -> None:
        what, peer = instruction.what, instruction.peer
        self.watch.doing(f"starting {instruction} (micro-batch {what.micro_batch})", [peer])
        parcel = {name: torch.empty(shape, dtype=dtype, device=self.session.device)
                  for name, (shape, dtype) in self.worker.layout(what, self.session.rank).items()}
        self.arriving[what] = receive(parcel, instruction, peer)

    def compute(self, work: Work) -> None:
        wants = self.wants[work]
        for what in wants.awaits:
            if transfer := self.arriving.pop(what, None):
                self._wait(transfer, f", for {work} (micro-batch {work.micro_batch})")
                if self.readers[what]:
                    self.results[what] = transfer.parcel
        if len(wants.ranks) > 1:
            self.watch.doing(f"waiting for the other ranks of {work} (micro-batch {work.micro_batch})", wants.ranks)
            self.session.meet(wants.ranks)
        self.worker.prepare(work, self.results)
        self.watch.doing(f"running {work} (micro-batch {work.micro_batch})")
        self.stopwatch.start()
        with record_function(f"weft:{work}"):
            result = self.worker.compute(work, self.results)
        self.stopwatch.stop(work)
        if self.readers[work]:
            self.results[work] = result
        for what in wants.reads:
            self._has_read(what)

    def finish(self) -> None:
        while self.leaving:
            self._wait(self.leaving.popleft())
        self.watch.doing("finishing the batch")

    def _wait(self, transfer: Transfer, purpose: str = "") -> None:
        what = transfer.instruction.what
        self.watch.doing(f"waiting for {transfer.instruction}{purpose or f' (micro-batch {what.micro_batch})'}",
                         [transfer.instruction.peer])
        transfer.wait()

    def _has_read(self, what: Work) -> None:
        self.readers[what] -= 1
        if not self.readers[what]:
            self.results.pop(what, None)

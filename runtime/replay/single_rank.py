"""A run of one rank of a plan on one device, without its peers: real stages and memory, artificial messages.

The rank's instructions run as with its peers, through the same executor and with the same buffers, but never wait: a
received message is in its slot from the start, as random numbers of the right shape, and sends have no effect (but keep
their tensors as long as a transfer may, so that memory is realistic). Collectives of stages on several ranks, and sums
of tied parameters, do nothing. So times and memory are meaningful, losses and weights are not.

A run is one warm-up step, ``repeats`` timed steps, and one step with memory recording; each ends with the optimizer's
step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.execute.executor import Executor, Worker, rank_table
from weft.runtime.interface.training import Training
from weft.runtime.measure.measure import Timer, memory_of, single_threaded
from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Work
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.watch import Unwatched, Watch
from weft.runtime.replay.planned_steps import held_bytes
from weft.runtime.replay.run import Trainer
from weft.runtime.train.agreement import Allowed
from weft.runtime.transports.interface import Parcel, Transfer, TransportError
from weft.runtime.transports.tensors import allocate, view

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RankCost:
    """The cost of one rank's part of a step on its device.

    ``durations``: per block, the median in seconds over all micro-batches of all timed steps. ``span``: the median time
    from the start of the first block to the end of the last, without waits; ``own``: the part of it outside all blocks,
    the executor's own. ``update``: seconds from the last block to the end of the optimizer's step. Bytes: ``held``
    between steps (weights, gradients, optimizer state, buffers for messages), ``peak`` the most at once while the
    instructions run, including that; ``peak_update`` the same after it, until the end of the step.
    """

    rank: int
    durations: Mapping[str, float]
    works: int
    span: float
    own: float
    update: float
    held: int
    peak: int
    peak_update: int


class _SingleRank(Session):
    """A session in which all other ranks have this rank's values."""

    def everywhere(self, value: Value, text: str) -> list[Value]:
        return [value] * self.processes

    def gather(self, value: Value) -> list[Value] | None:
        return self.everywhere(value, "")


@contextmanager
def single_rank(plan: Plan, rank: int, device: torch.device) -> Iterator[Session]:
    """The session of ``rank`` as the only process, with process groups whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world = len(plan.program.ranks)
    if not 0 <= rank < world:
        raise SessionError(f"the plan has the ranks 0 to {world - 1}, there is no rank {rank}")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        session = _SingleRank(rank, world, device, cast(Watch, Unwatched()), 0.0)
        session.add_groups(plan.groups)
        with single_threaded():
            yield session
    finally:
        dist.destroy_process_group()


class _Over:
    """A completed transfer, which keeps its parcel until it is waited for."""

    def __init__(self, parcel: Parcel | None = None) -> None:
        self._parcel = parcel

    def wait(self) -> None:
        self._parcel = None


class _Neighbours:
    """A transport whose slots are always full."""

    def __init__(self, session: Session, tables: Sequence[BufferTable]) -> None:
        table = tables[session.rank]
        if any(not landing.layout.is_known for landing in table.receives):
            raise TransportError("a rank alone must know the shapes of its messages: a boundary has a length of None")
        memory = allocate(table.slots, session.device)
        self._slots = {landing: view(memory[landing.slot], landing.layout) for landing in table.receives}
        for parcel in self._slots.values():
            for tensor in parcel.values():
                if tensor.is_floating_point():  # integers stay 0, a valid index into anything
                    tensor.normal_(0.0, 0.02)

    @property
    def sends_at_once(self) -> bool:
        return False

    @property
    def staging(self) -> Sequence[Tensor]:
        return ()

    def slot(self, landing: Landing) -> Parcel:
        return self._slots[landing]

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        return _Over

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        return _Over

    def close(self) -> None:
        self._slots.clear()


def _own_table(plan: Plan, session: Session, worker: Worker,
               reads: Callable[[Work], Iterable[Work]]) -> Sequence[BufferTable]:
    """This rank's table for every rank; the other entries are not read."""
    return [rank_table(plan, session.rank, worker, reads)] * session.world


def measure_rank(plan: Plan, session: Session, training: Training, repeats: int = 3,
                 allowed: Allowed | None = None) -> RankCost:
    """Run the instructions of ``session.rank`` alone and measure them; ``session`` is that of :func:`single_rank`.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if ``training`` does not fit the plan, and that is not
    ``allowed``, or the device has too little memory.
    """
    try:
        return _RankAlone(plan, session, training, allowed or Allowed()).measured(repeats)
    except torch.OutOfMemoryError as error:
        raise SessionError(f"rank {session.rank} ran out of memory on {session.device} while {session.watch.text}: "
                           f"{str(error).splitlines()[0]}") from None


class _RankAlone:
    def __init__(self, plan: Plan, session: Session, training: Training, allowed: Allowed) -> None:
        self.session, self.training = session, training
        self.trainer = Trainer.of(plan, session, training, allowed)
        self.gradients = self.trainer.gradients
        self.executor = Executor(self.gradients.plan, session, self.trainer.worker, _Neighbours, _own_table,
                                 self.gradients.start)

    def measured(self, repeats: int) -> RankCost:
        self._run_step(0)
        self._update()
        steps: list[list[Measured]] = []
        updates = []
        for step in range(1, repeats + 1):
            steps.append(self._run_step(step))
            updates.append(Timer(self.session.device).lap(self._update)[1])
        held = self._held()
        _, computed = memory_of(lambda: self._run_step(repeats + 1), self.session.device)
        _, update = memory_of(self._update, self.session.device)
        laps: dict[str, list[float]] = {}
        for lap in (lap for each in steps for lap in each):
            laps.setdefault(lap.block, []).append(lap.end - lap.start)
        spans = [max(lap.end for lap in each) - min(lap.start for lap in each) for each in steps]
        own = [span - sum(lap.end - lap.start for lap in each) for span, each in zip(spans, steps, strict=True)]
        cost = RankCost(self.session.rank, {block: statistics.median(times) for block, times in laps.items()},
                        len(steps[0]), statistics.median(spans), statistics.median(own), statistics.median(updates),
                        held, held + computed.peak, held + max(0, computed.change) + update.peak)
        self.executor.close()
        self.trainer.worker.close()
        return cost

    def _run_step(self, step: int) -> list[Measured]:
        self.trainer.begin(step)
        return self.executor.run()

    def _update(self) -> None:
        self.session.doing("updating the weights")
        if self.trainer.has_backward:
            self.gradients.finish()
            self.gradients.clip()
            self.gradients.step()

    def _held(self) -> int:
        """Resident bytes between two steps."""
        self.gradients.clear()
        device = self.session.device
        if device.type == "cuda":
            return int(torch.cuda.memory_allocated(device))
        return held_bytes(self.executor, self.trainer, self.training)

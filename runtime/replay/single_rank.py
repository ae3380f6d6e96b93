"""One rank of a plan on one device, without the others: real stages, real memory, messages made here.

The rank's instructions run as they do among its peers, through the same executor and with the same buffers, except that
nothing is ever waited for: what a neighbour would have sent lies in its slot from the start, as random numbers of the
right shape, and what is sent goes nowhere (but is kept as long as a transfer may take, so that memory is that of a
run). Collectives of stages on several ranks, and sums of tied parameters, end at once and change nothing. So losses and
weights mean nothing, times and memory do.

A run is one step to warm up, ``repeats`` timed ones, and one whose memory is watched; each ends with the optimizer's
update.

A plan run for a few steps before anything is trained: what its blocks, its messages and its memory really come to.

All ranks run their instructions through the same executor as later, with the same transport, buffers and neighbours.
Nothing is updated, no loss is looked at; whoever calls it keeps buffers, gradients and random state. After a first step
that makes gradients and chooses kernels come some that are timed, or one whose memory is watched, which takes time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.execute.executor import Executor, Worker, rank_table
from weft.runtime.interface.training import Training
from weft.runtime.measure.measure import Timer, memory_of, single_threaded
from weft.runtime.plan.buffers import BufferTable, Landing, Staging, waiting_bytes
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Work
from weft.runtime.plan.timeline import Measured, Timeline
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.ranks.watch import Unwatched, Watch
from weft.runtime.replay.options import seconds_in_unit
from weft.runtime.replay.run import Trainer
from weft.runtime.train.agreement import Allowed
from weft.runtime.transports.interface import Parcel, Transfer, TransportError
from weft.runtime.transports.one_host.one_sided import releases
from weft.runtime.transports.tensors import allocate, view

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RankCost:
    """What one rank's part of a step costs on its device.

    ``durations``: per block, the median in seconds over all micro-batches of all timed steps. ``span``: the median time
    from the start of the first block to the end of the last, with nothing to wait for; ``own``: what of it no
    block accounts for, the executor's own. ``update``: seconds from the last block to the end of the optimizer's step.
    Bytes: ``held`` between steps (weights, gradients, optimizer state, buffers for messages), ``peak`` the most at once
    while the instructions run, with what is held; ``peak_update`` the same after it, until the end of the step.
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
    """The session of ``rank`` as the only process. Its process groups exist, and their collectives do nothing."""
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
    """A transfer that is over, but keeps what was sent until it is waited for."""

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
                if tensor.is_floating_point():  # whole numbers stay 0, which is an index into anything
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
    """This rank's table in place of every rank's: the others' are not read."""
    return [rank_table(plan, session.rank, worker, reads)] * session.world


def measure_rank(plan: Plan, session: Session, training: Training, repeats: int = 3,
                 allowed: Allowed | None = None) -> RankCost:
    """Run the instructions of ``session.rank`` by itself and measure them; ``session`` is that of :func:`single_rank`.

    Raises :class:`~weft.runtime.ranks.session.SessionError` if ``training`` does not fit the plan, and that is not
    ``allowed``, or the device is too small.
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
            updates.append(self._timed_update())
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

    def _timed_update(self) -> float:
        return Timer(self.session.device).lap(self._update)[1]

    def _held(self) -> int:
        """Bytes that are there between two steps."""
        self.gradients.clear()
        device = self.session.device
        if device.type == "cuda":
            return int(torch.cuda.memory_allocated(device))
        return held_bytes(self.executor, self.trainer, self.training)


#: Seconds that the timed steps may take together, and how many there are at least and at most; of a step that takes
#: longer than :data:`LONG` seconds, one is timed. Where they differ by no more than the share :data:`ALIKE`, those of
#: a quarter of these seconds are enough.
WORTH, FEWEST, MOST, LONG, ALIKE = 1.0, 2, 6, 5.0, 0.03


@dataclass(frozen=True)
class StepMemory:
    """Bytes by rank. ``peaks``: the most that were held in a step: weights, gradients, buffers, messages and what
    blocks keep, without an optimizer's values. ``slots``: room for what is received. ``sends_at_once``: whether what a
    rank sends is written to its receiver as soon as that has room for it; ``waiting``: results that wait for such room,
    by the times of the plan, or of steps that were timed where these say more."""

    peaks: tuple[int, ...]
    slots: tuple[int, ...]
    sends_at_once: bool
    waiting: tuple[int, ...]


@dataclass(frozen=True)
class TimedSteps:
    """Steps that were timed. ``share``: of the time that blocks took on a CPU, that in which their rank computed: the
    least of all ranks'."""

    timelines: tuple[Timeline, ...]
    share: float = 1.0

    @property
    def makespan(self) -> float:
        """The median of the steps, in seconds: the lower one of two."""
        spans = sorted(timeline.makespan for timeline in self.timelines)
        return spans[(len(spans) - 1) // 2]

    @property
    def noise(self) -> float:
        """By how many seconds the quickest of the steps took less than their median, the upper one of two: a difference
        that means nothing."""
        spans = sorted(timeline.makespan for timeline in self.timelines)
        return spans[len(spans) // 2] - spans[0]


class PlannedSteps:
    """Steps of ``plan`` on all ranks, with the stages of this rank in ``training``. All ranks make it, and call each
    method, together.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for stages that are not those of the plan.
    """

    def __init__(self, plan: Plan, session: Session, training: Training) -> None:
        session.add_groups(plan.groups)
        self.plan, self.session, self.training = plan, session, training
        self.trainer = trainer = Trainer.of(plan, session, training, None)
        self.executor = Executor(trainer.gradients.plan, session, trainer.worker, reduce=trainer.gradients.start)
        self.steps = 0

    def step(self) -> list[Measured]:
        """One of them: what this rank did when."""
        self.trainer.begin(self.steps)
        return self._run()

    def _run(self) -> list[Measured]:
        self.steps += 1
        found = self.executor.run()
        if self.trainer.has_backward:
            self.trainer.gradients.finish()
        return found

    def timed(self, limit: float = math.inf) -> TimedSteps | None:
        """Steps that are timed: as many as say what one takes, or that it takes more than ``limit`` seconds, as rank 0
        has it, so that another plan has beaten this one. What was found is on rank 0."""
        session, laps, spans, begun = self.session, list[list[Measured]](), list[float](), time.process_time()
        while not laps or not _is_enough(spans, limit):
            laps.append(found := self.step())
            took = max((lap.end for lap in found), default=0.0) - min((lap.start for lap in found), default=0.0)
            everywhere = session.everywhere((took, limit), "measuring the plan")
            limit = everywhere[0][1]
            spans.append(max(took for took, _ in everywhere))
        computed = time.process_time() - begun if session.device.type == "cpu" else math.inf
        share = computed / max(sum(lap.end - lap.start for step in laps for lap in step), 1e-9)
        ranks = session.exchange((laps, share), "gathering what was measured")
        session.watch.joined()  # what follows is planning again, and may take longer than a wait
        unit = seconds_in_unit(self.plan) or 1.0
        return None if session.rank else TimedSteps(tuple(
            Timeline.of(self.plan, unit, [lap for own, _ in ranks for lap in own[i]]) for i in range(len(laps))),
            min(share for _, share in ranks))

    def memory(self, before: Sequence[Timeline] = ()) -> StepMemory:
        """What is held in a further step. Steps ``before`` it, as rank 0 has them, say what may wait."""
        executor, session = self.executor, self.session
        self.trainer.begin(self.steps)
        held = held_bytes(executor, self.trainer, self.training)
        # A sum that is still under way where the profiler stops writes into memory that is no longer its own.
        with releases() as elsewhere:
            _, computed = memory_of(self._run, session.device, elsewhere)
        peaks, slots, at_once = zip(*session.exchange((
            held + computed.peak, sum(executor.table.slots), executor.transport.sends_at_once),
            "gathering what was measured"), strict=True)
        session.watch.joined()
        plan, runs = executor.plan, [{(lap.block, lap.micro_batch): (lap.start, lap.end) for lap in step.operations}
                                     for step in before]
        blocks = {work: plan.problem.blocks[plan.vocabulary.known(work)[0]].name for work in plan.times}
        times = [plan.times, *({work: run[block, work.micro_batch] for work, block in blocks.items()} for run in runs)]
        waiting = [waiting_bytes(plan.program.ranks, executor.tables, each) for each in times]
        return StepMemory(peaks, slots, all(at_once), tuple(map(max, zip(*waiting, strict=True))))

    def close(self) -> None:
        """Give buffers and stages back."""
        self.executor.close()
        self.trainer.worker.close()


def _is_enough(spans: Sequence[float], limit: float) -> bool:
    """Whether timed steps of ``spans`` seconds say what a step takes, or that it takes more than ``limit``."""
    least, seconds = min(spans), sum(spans)
    if len(spans) >= MOST or least > min(limit, LONG):
        return True
    return len(spans) >= FEWEST and seconds >= (WORTH / 4 if max(spans) - least <= ALIKE * least else WORTH)


def held_bytes(executor: Executor, trainer: Trainer, training: Training) -> int:
    """Bytes of this rank's part that are there before a step begins: weights, buffers, gradients that are kept, and
    room for messages, an optimizer's values where there is one."""
    found: list[Tensor] = [tensor for parcel in executor.slots.values() for tensor in parcel.values()]
    found += trainer.gradients.kept
    found += executor.transport.staging
    if training.masters is not None:
        found += [tensor for master in training.masters.parameters() for tensor in (master, master.grad)
                  if tensor is not None]
    for module in training.stages.values():
        found += [*module.parameters(), *module.buffers()]
        found += [p.grad for p in module.parameters() if p.grad is not None]
    states: Iterable[Mapping[str, Any]] = () if training.optimizer is None else training.optimizer.state.values()
    found += [value for state in states for value in state.values() if isinstance(value, Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())

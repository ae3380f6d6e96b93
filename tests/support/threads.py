"""The ranks of a plan as threads of this process, over one-sided transfers in plain memory: fast, and under any test's
control."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from weft.runtime import Boundary, Plan, Session
from weft.runtime.execute.executor import Executor, Parcel, Task, Worker
from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.plan.program import Reduce, StageWork, Work
from weft.runtime.ranks.watch import Unwatched
from weft.runtime.transports.interface import Transport
from weft.runtime.transports.one_host.one_sided import OneSided
from weft.runtime.transports.one_host.one_sided_reads import Offer, Reads, note_words
from weft.runtime.transports.one_host.shared_memory import matching
from weft.runtime.transports.tensors import allocate, view

PATIENCE = 120.0  # seconds after which threads that wait for each other are told to stop
Value = TypeVar("Value")


@dataclass
class Lane:
    """One direction between two ranks in plain memory."""

    posted: int = 0
    written: int = 0

    def arrival(self, number: int) -> float:
        return 0.0

    def leave(self, number: int, size: int) -> None:
        pass

    def sleep(self, number: int, seconds: float) -> None:
        time.sleep(min(seconds, 1e-4))


class Note:
    """What is said of one message, in plain memory."""

    def __init__(self, count: int) -> None:
        self.taken, self._count, self._words = 0, count, [0] * count

    def write(self, words: Iterable[int]) -> None:
        self._words = list(words)
        assert len(self._words) == self._count

    def read(self) -> list[int]:
        return self._words


class OneMemory:
    """How threads read what others have."""

    def offer(self, message: Staging, tensors: Sequence[torch.Tensor]) -> Offer:
        return Offer([tensor.contiguous() for tensor in tensors])

    def read(self, peer: int, file: int, address: int, into: torch.Tensor) -> None:
        ctypes.memmove(into.data_ptr(), address, into.nbytes)

    def close(self) -> None:
        pass


class _World:
    """What the threads share: values they exchange, and the memory of their slots."""

    def __init__(self, plan: Plan) -> None:
        self.size = len(plan.program.ranks)
        self.over = threading.Event()
        self.all = threading.Barrier(self.size)
        of_block = map(plan.vocabulary.ranks.of_block, range(len(plan.problem.blocks)))
        self.groups = {ranks: threading.Barrier(len(ranks)) for ranks in of_block}
        self.meetings = {devices: threading.Barrier(len(ranks)) for devices, ranks in plan.meetings.items()}
        self.sums = {stages: threading.Barrier(len(ranks)) for stages, ranks in plan.parameter_groups.items()}
        self.values: list[Any] = [None] * self.size
        self.lanes = {(owner, source): Lane() for owner in range(self.size) for source in range(self.size)}
        self.slots: list[Any] = [None] * self.size
        self.notes: dict[tuple[int, Landing], Note] = {}

    def connect(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        rank, targets = session.rank, matching(session.rank, tables)
        self.slots[rank] = allocate(tables[rank].slots, torch.device("cpu"))
        notes_in = {landing: Note(note_words(landing)) for landing in tables[rank].receives
                    if not landing.layout.is_known}
        self.notes.update({(rank, landing): note for landing, note in notes_in.items()})
        session.barrier("to share memory")
        peers = range(self.size)
        notes_out = {message: self.notes[message.peer, landing] for message, landing in targets.items()
                     if not landing.layout.is_known}
        return OneSided(
            {landing: view(self.slots[rank][landing.slot], landing.layout) for landing in tables[rank].receives
             if landing.layout.is_known},
            {message: view(self.slots[message.peer][landing.slot], landing.layout)
             for message, landing in targets.items() if landing.layout.is_known},
            {peer: self.lanes[rank, peer] for peer in peers}, {peer: self.lanes[peer, rank] for peer in peers},
            lambda peer: not self.over.is_set(), reads=Reads(torch.device("cpu"), notes_in, notes_out, OneMemory()))


@dataclass
class _Session(Session):
    """A thread as a rank."""

    ranks: _World = field(default_factory=lambda: _World.__new__(_World))

    def barrier(self, text: str) -> None:
        self.ranks.all.wait()

    def common_start(self, delay: float = 0.0) -> float:
        self.barrier("to begin")
        return self.now()

    def exchange(self, value: Value, text: str) -> list[Value]:
        self.ranks.values[self.rank] = value
        self.barrier(text)
        values = list(self.ranks.values)
        self.barrier(text)
        return values

    def add_groups(self, groups: Iterable[Iterable[int]]) -> None:
        pass

    def meet(self, ranks: tuple[int, ...]) -> None:
        self.ranks.groups[ranks].wait()

    def add_meetings(self, meetings: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        pass

    def meet_on(self, devices: tuple[int, ...]) -> None:
        self.ranks.meetings[devices].wait()


def run_in_threads(plan: Plan, worker: Callable[[int], Worker], steps: int = 1,
                   between: Callable[[int, Executor], None] | None = None) -> None:
    """Run ``plan`` for ``steps`` steps, rank r with ``worker(r)``; ``between(step, executor)`` comes before each step.

    Raises what any rank raises, and ``TimeoutError`` if the ranks wait for each other.
    """
    world = _World(plan)
    errors: list[BaseException] = []

    def stop() -> None:
        world.over.set()
        for barrier in (world.all, *world.groups.values(), *world.meetings.values(), *world.sums.values()):
            barrier.abort()

    def run(rank: int) -> None:
        try:
            watch: Any = Unwatched()
            session = _Session(rank, world.size, torch.device("cpu"), watch, 0.0, ranks=world)
            mine = worker(rank)

            def reduce(instruction: Reduce) -> None:
                world.sums[instruction.stages].wait()
                if isinstance(mine, Tracer):
                    mine.add_up(instruction)

            executor = Executor(plan, session, mine, world.connect, reduce=reduce)
            for step in range(steps):
                if between is not None:
                    between(step, executor)
                executor.run()
            executor.close()
        except BaseException as error:
            errors.append(error)
            stop()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world.size)]
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        stop()
        raise TimeoutError("the ranks wait for each other")
    real = [error for error in errors if not isinstance(error, (threading.BrokenBarrierError, ConnectionError))]
    if errors:
        raise (real or errors)[0]


class Tracer:
    """A worker whose results say where they come from: a number made of the block, the micro-batch, the step and all
    that was read. It looks at what it read again when it lets go of it, and fails if that has changed."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank, self.step = plan, rank, 0
        self.found: dict[Work, int] = {}
        self.summed: list[Reduce] = []
        self._kept: dict[Work, list[tuple[Parcel, dict[str, torch.Tensor]]]] = {}
        self._chance = random.Random(rank)

    def reads(self, work: Work) -> Sequence[Work]:
        return _needs(self.plan, work)

    def add_up(self, instruction: Reduce) -> None:
        """Fails unless all that adds to these gradients has been computed."""
        graph = self.plan.vocabulary.graph
        assert graph is not None
        for block in graph.contributions(instruction.stages):
            if self.rank in self.plan.problem.blocks[block].devices:
                assert all(self.plan.vocabulary.work(block, m) in self.found for m in range(self.plan.micro_batches))
        self.summed.append(instruction)

    def keeps(self, work: Work) -> Work:
        graph = self.plan.vocabulary.graph
        if graph is None or not isinstance(work, StageWork):
            return work
        return self.plan.vocabulary.work(graph.stages[work.stage].order[-1], work.micro_batch)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        block = self.plan.vocabulary.block(what)
        assert block is not None
        parts = {"": Boundary((1 + block % 3, 2), torch.int64)}
        return {**parts, "more": Boundary((3,), torch.int32)} if block % 4 == 3 else parts

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        wanted = self.layout(what, target)
        return lambda result: {name: result[name].expand(*looks.known).contiguous() for name, looks in wanted.items()}

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None]:
        def dawdle(results: Mapping[Work, Parcel]) -> None:
            if self._chance.random() < 0.3:
                time.sleep(self._chance.random() * 1e-3)

        return dawdle

    def task(self, work: Work) -> Task:
        return partial(self.compute, work)

    def compute(self, work: Work, results: Mapping[Work, Parcel]) -> Parcel:
        read = [results[what] for what in self.reads(work)]
        self._kept.setdefault(self.keeps(work), []).extend(
            (parcel, {name: tensor.clone() for name, tensor in parcel.items()}) for parcel in read)
        for parcel in read:
            assert all(int(tensor.min()) == int(tensor.max()) for tensor in parcel.values())
        value = _value(self.plan, work, self.step, [int(parcel[""].flatten()[0]) for parcel in read])
        for parcel, copy in self._kept.pop(work, []):
            for name, tensor in parcel.items():
                assert torch.equal(tensor, copy[name]), f"what {work} reads was written to"
        self.found[work] = value
        return {"": torch.tensor([[value]]), "more": torch.tensor([value % 1000], dtype=torch.int32)}


def expected(plan: Plan, step: int) -> dict[Work, int]:
    """What every instruction's :class:`Tracer` result must be."""
    found: dict[Work, int] = {}
    problem = plan.problem
    for micro_batch in range(plan.micro_batches):
        for block in problem.topological_order:
            work = plan.vocabulary.work(block, micro_batch)
            found[work] = _value(plan, work, step, [found[what] for what in _needs(plan, work)])
    return found


def _needs(plan: Plan, work: Work) -> tuple[Work, ...]:
    key, problem = plan.vocabulary.key(work), plan.problem
    assert key is not None
    block, micro_batch = key
    return tuple(dict.fromkeys(plan.vocabulary.work(problem.index[d.block], micro_batch - d.distance)
                               for d in problem.blocks[block].after if micro_batch >= d.distance))


def _value(plan: Plan, work: Work, step: int, read: Sequence[int]) -> int:
    block = plan.vocabulary.block(work)
    assert block is not None
    value = 1_000_003 * block + 7919 * work.micro_batch + 104_729 * step + 1
    for place, other in enumerate(read):
        value = (value * 31 + (place + 1) * other) % 2**31
    return value

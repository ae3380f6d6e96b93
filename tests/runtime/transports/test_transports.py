"""Transports: counts of what a transfer takes, what arrives when over an emulated link, buffers and their memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from experiments.runtime.transports import PLANNED, Counts, compare
from tests.support.builders import chain, pipeline
from tests.support.threads import Lane, Tracer, run_in_threads
from weft.runtime.execute.executor import Parcel
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.buffers import OPEN_SENDS, BufferTable, Landing, Staging, buffer_table, send_done
from weft.runtime.plan.check_buffers import check_memory
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.program import Instruction, ProgramError, Recv, Send, StageWork, Work
from weft.runtime.transports import TransportError, parse_transport
from weft.runtime.transports.memory import allocate, layout_of, view
from weft.runtime.transports.one_sided import OneSided
from weft.runtime.transports.shared import LANE, _Counters, _gpu_handles, _PeersSlots, _Processes
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


@pytest.mark.slow
def test_a_planned_transfer_is_one_message_without_allocation_or_copy() -> None:
    results = compare(1, (4096, 2**20))
    assert {(r.method, r.size): r.counts for r in results if r.method in PLANNED} == {
        (method, size): Counts(1, 0, 0) for method in PLANNED for size in (4096, 2**20)}
    pickled = next(r.counts for r in results if r.method == "send_object_list" and r.size == 2**20)
    assert pickled.messages == 2 and (pickled.allocations or 0) > 0 and (pickled.copies or 0) > 0


@pytest.mark.parametrize(("text", "found"), [
    ("gloo", ("gloo", None)), ("shared", ("shared", None)), ("emulated:1e-3,2e9", ("emulated", (1e-3, 2e9)))])
def test_a_transport_is_named(text: str, found: object) -> None:
    assert parse_transport(text) == found


@pytest.mark.parametrize("text", ["", "Gloo", "gloo:1", "emulated", "emulated:", "emulated:1,2,3", "emulated:nan,1"])
def test_anything_else_is_no_transport(text: str) -> None:
    with pytest.raises(TransportError, match="it must be gloo, nccl, shared or emulated"):
        parse_transport(text)


def test_a_peers_gpu_slot_is_handed_to_each_that_writes_there_and_opened_once() -> None:
    """PyTorch counts the openings of a handle. What makes and opens handles works on CPU tensors too."""
    layout = layout_of({"": ((2,), torch.float32)})
    works = [StageWork(0, "F", m) for m in range(4)]
    landings = [Landing(work, peer, layout, 0, 0, 0, slot) for work, peer, slot in zip(
        works, (1, 2, 1, 1), (0, 0, 0, 1), strict=True)]
    slots = allocate([8, 8], torch.device("cpu"))
    handles = _gpu_handles(slots, BufferTable((8, 8), tuple(landings), (), ()))
    assert list(handles) == [(0, 1), (0, 2), (1, 1)]
    calls: list[object] = []

    def counted(build: Callable[..., Tensor], *arguments: object) -> Tensor:
        calls.append(arguments)
        return build(*arguments)

    peers = _PeersSlots(1, {3: {key: (counted, (build, *arguments)) for key, (build, arguments) in handles.items()}})
    first = peers[3, 0]
    assert peers[3, 0] is first and peers[3, 1] is not first and len(calls) == 2
    first.fill_(7)
    assert bool((slots[0] == 7).all()) and not bool(slots[1].any())
    with pytest.raises(KeyError):
        peers[3, 2]


def test_messages_over_an_emulated_link_follow_each_other() -> None:
    clock = [100.0]
    memory = memoryview(bytearray(LANE))
    lane = _Counters(memory, 0, memoryview(bytearray(4 * 8)).cast("d"), (0.5, 1000.0), lambda: clock[0])
    for number in range(3):
        lane.leave(number, 2000)
    assert [lane.arrival(number) for number in range(3)] == [102.5, 104.5, 106.5]
    clock[0] = 200.0
    lane.leave(3, 1000)
    assert lane.arrival(3) == 201.5
    lane.posted, lane.written = 7, 5
    assert (lane.posted, lane.written) == (7, 5)


def test_what_the_copying_thread_raises_is_raised_where_the_rank_waits() -> None:
    layout = layout_of({"": ((2,), torch.float32)})
    message, lane, closed = Staging(StageWork(0, "F", 0), 1, layout, 0, 0, 0), Lane(), list[bool]()
    target = view(allocate([layout.size], torch.device("cpu"))[0], layout)
    transport = OneSided({}, {message: target}, {}, {1: lane}, lambda peer: True, closed=lambda: closed.append(True))
    leaving = transport.sender(message)({"": torch.ones(3)})  # its slot is not free yet, so the thread will copy
    lane.posted = 1
    with pytest.raises(RuntimeError, match="size"):
        leaving.wait()
    assert lane.written == 0
    transport.close()
    assert closed == [True]


def test_a_peers_process_is_asked_for_by_a_handle_that_is_given_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    child = subprocess.Popen(["sleep", "60"])
    processes = _Processes({3: child.pid, 4: os.getpid()})
    assert processes.alive(3) and processes.alive(4)
    child.kill()
    child.wait()
    assert not processes.alive(3) and processes.alive(4)
    processes.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_parcel_lies_in_one_buffer_at_aligned_places() -> None:
    layout = layout_of({"x": ((3, 2), torch.float64), "y": ((5,), torch.int32)})
    assert layout.size == 64 + 20 and str(layout) == "x [3, 2] of float64 and y [5] of int32"
    memory, = allocate([layout.size], torch.device("cpu"))
    parcel = view(memory, layout)
    parcel["x"].fill_(1)
    parcel["y"].fill_(2)
    assert torch.equal(view(memory, layout)["x"], torch.ones(3, 2, dtype=torch.float64))
    assert parcel["y"].data_ptr() - parcel["x"].data_ptr() == 64


def test_a_receive_is_posted_when_its_slot_is_free_and_its_peers_messages_before_it_have_started() -> None:
    def work(letter: str, micro_batch: int) -> StageWork:
        return StageWork(1, letter, micro_batch)

    a, b, c = (StageWork(0, "F", m) for m in range(3))
    row: list[Instruction] = [Recv(a, 0), work("F", 0), Recv(b, 0), work("F", 1), work("B", 0), Send(work("B", 0), 0),
                              work("B", 1), Recv(c, 0), work("F", 2), work("B", 2)]
    layout = layout_of({"": ((4,), torch.float32)})

    def reads(work: Work) -> list[Work]:
        return [StageWork(0, "F", work.micro_batch)] if isinstance(work, StageWork) and work.letter == "F" else []

    table = buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, reads,
                         lambda w: StageWork(1, "B", w.micro_batch))
    assert table.slots == (16, 16) and table.size == 32
    assert table.receives == (Landing(a, 0, layout, 0, 0, 4, 0), Landing(b, 0, layout, 2, 0, 6, 1),
                              Landing(c, 0, layout, 7, 6, 9, 0))  # not before SEND at 5, though slot 0 is free then
    late = buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, reads,
                        lambda w: StageWork(1, "B", w.micro_batch), early=False)
    assert [landing.posted for landing in late.receives] == [0, 2, 7]


def test_a_send_is_over_when_the_eighth_after_it_starts() -> None:
    row: list[Instruction] = [Send(StageWork(0, "F", m), 1) for m in range(OPEN_SENDS + 2)]
    done = send_done(row)
    assert (done[0], done[1], done[2]) == (OPEN_SENDS - 1, OPEN_SENDS, len(row) - 1)


def tight(capacity: int) -> Problem:
    """Two stages; the second keeps 100 bytes for each micro-batch."""
    return Problem("tight", (Device("0"), Device("1", capacity)), (
        Block("f0", BlockKind.FORWARD, (0,), 1),
        Block("f1", BlockKind.FORWARD, (1,), 1, (100,), (), (Dependency("f0"),)),
        Block("b1", BlockKind.BACKWARD, (1,), 3, (-100,), (), (Dependency("f1"),)),
        Block("b0", BlockKind.BACKWARD, (0,), 1, (), (), (Dependency("b1"),))))


def test_buffers_must_fit_beside_what_blocks_hold_and_are_not_counted_twice() -> None:
    plan = plan_of(baseline("1f1b", tight(100), 4))
    tracer = Tracer(plan, 1)
    row = plan.program.ranks[1]
    layout = layout_of({"": ((5,), torch.float64)})
    table = buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, tracer.reads, tracer.keeps)
    assert table.slots == (40, 40)  # while 1B0 runs, 0F1 arrives
    check_memory(plan.program, plan.problem, 1, table, 40)  # the other 40 are in the block's 100
    with pytest.raises(ProgramError, match=r"(?s)during 1F0, rank 1's blocks hold 100 bytes and its 2 message buffers "
                                           r"40 more, but device '1' has 100 and 39 in reserve\n.*<-- here"):
        check_memory(plan.program, plan.problem, 1, table, 39)
    check_memory(plan.program, tight(139), 1, table, 1)


def test_what_a_stage_hands_on_unchanged_is_not_lost_when_its_slot_is_needed_again() -> None:
    """Worker results that are the received tensors themselves, sent on from the middle rank."""
    plan = plan_of(baseline("gpipe", pipeline(chain(3), backward=None), 6))

    class Passing(Tracer):
        def compute(self, work: Work, results: Mapping[Work, Parcel]) -> Parcel:
            found = super().compute(work, results)
            if self.rank == 1:
                return dict(results[self.reads(work)[0]])
            if self.rank == 2:
                seen.append(int(results[self.reads(work)[0]][""].max()))
            return found

        def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
            return {"": Boundary((1, 2), torch.int64)}

    seen: list[int] = []
    tracers = [Passing(plan, rank) for rank in range(3)]
    run_in_threads(plan, lambda rank: tracers[rank], 1)
    assert seen == [tracers[0].found[StageWork(0, "F", m)] for m in range(6)]

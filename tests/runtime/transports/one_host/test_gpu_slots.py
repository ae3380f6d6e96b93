"""Slots in GPU memory, by handles."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.one_host import gpu_slots
from weft.runtime.transports.one_host.gpu_slots import PeersSlots, SymmetricSlots, gpu_handles, require_symmetric_memory
from weft.runtime.transports.tensors import allocate, layout_of


def test_a_peers_gpu_slot_is_handed_to_each_that_writes_there_and_opened_once() -> None:
    """PyTorch counts the openings of a handle. What makes and opens handles works on CPU tensors too."""
    layout = layout_of({"": ((2,), torch.float32)})
    works = [StageWork(0, "F", m) for m in range(4)]
    landings = [Landing(work, peer, layout, 0, 0, 0, slot) for work, peer, slot in zip(
        works, (1, 2, 1, 1), (0, 0, 0, 1), strict=True)]
    slots = allocate([8, 8], torch.device("cpu"))
    handles = gpu_handles(slots, BufferTable((8, 8), tuple(landings), (), ()))
    assert list(handles) == [(0, 1), (0, 2), (1, 1)]
    calls: list[object] = []

    def counted(build: Callable[..., Tensor], *arguments: object) -> Tensor:
        calls.append(arguments)
        return build(*arguments)

    peers = PeersSlots(1, {3: {key: (counted, (build, *arguments)) for key, (build, arguments) in handles.items()}})
    first = peers[3, 0]
    assert peers[3, 0] is first and peers[3, 1] is not first and len(calls) == 2
    first.fill_(7)
    assert bool((slots[0] == 7).all()) and not bool(slots[1].any())
    with pytest.raises(KeyError):
        peers[3, 2]


TABLES = [BufferTable((100, 0, 8), (), (), ()), BufferTable((), (), (), ()), BufferTable((300,), (), (), ())]


class Machine:
    """Ranks one after another in one process, each with as much memory as all."""

    def __init__(self, refuses: int | None = None) -> None:
        self.memories: list[torch.Tensor] = []
        self.refuses = refuses

    def empty(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if len(self.memories) == self.refuses:
            raise RuntimeError("CUDA driver error: no peer access\nmore of it")
        self.memories.append(torch.empty(size, dtype=dtype))
        return self.memories[-1]

    def rendezvous(self, tensor: torch.Tensor, group: str) -> Any:
        def buffer(rank: int, sizes: tuple[int, ...], dtype: torch.dtype, start: int) -> torch.Tensor:
            return self.memories[rank][start:start + sizes[0]].view(dtype)

        return SimpleNamespace(get_buffer=buffer)


def session(rank: int, device: str = "cuda:0") -> Any:
    return SimpleNamespace(rank=rank, world=3, replicas=1, device=torch.device(device),
                           exchange=lambda value, text: [value])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(gpu_slots, "_module", lambda: found)
    monkeypatch.setattr(gpu_slots, "_group", lambda session: "all")
    return found


def test_all_ranks_see_a_slot_in_one_place(machine: Machine) -> None:
    ranks = [SymmetricSlots(session(rank), TABLES) for rank in range(3)]
    assert len({len(memory) for memory in machine.memories}) == 1  # of one size on all ranks
    number = 0
    for owner, table in enumerate(TABLES):
        for slot, size in enumerate(table.slots):
            number += 1
            assert len(ranks[0].at(owner, slot)) == size
            ranks[2 - owner].at(owner, slot).fill_(number)
    assert [int(ranks[1].at(0, slot).max()) for slot in (0, 2)] == [1, 3] and int(ranks[1].at(2, 0).min()) == 4


def test_where_the_driver_refuses_one_sentence_says_so(machine: Machine) -> None:
    machine.refuses = 0
    with pytest.raises(TransportError, match=r"^--transport symmetric: rank 1 cannot have it \(CUDA driver error: no "
                                             r"peer access\); use shared or nccl$"):
        SymmetricSlots(session(1), TABLES)


def test_without_a_gpu_or_without_support_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransportError, match="needs a GPU for each rank, but rank 0's stages run on a CPU"):
        require_symmetric_memory(session(0, "cpu"))
    require_symmetric_memory(session(0))
    shared = session(0)
    shared.exchange = lambda value, text: [value, value]
    with pytest.raises(TransportError, match="needs a GPU for each rank, but several share one"):
        require_symmetric_memory(shared)
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", None)
    with pytest.raises(TransportError, match=r"this torch \(.*\) has no symmetric memory on rank 0"):
        require_symmetric_memory(session(0))

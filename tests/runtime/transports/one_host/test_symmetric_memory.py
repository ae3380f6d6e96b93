"""Slots in symmetric memory, with CPU memory in its place."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.one_host import symmetric_memory
from weft.runtime.transports.one_host.symmetric_memory import SymmetricSlots, require_symmetric_memory

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
    monkeypatch.setattr(symmetric_memory, "_module", lambda: found)
    monkeypatch.setattr(symmetric_memory, "_group", lambda session: "all")
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
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", None)
    with pytest.raises(TransportError, match=r"this torch \(.*\) has no symmetric memory on rank 0"):
        require_symmetric_memory(session(0))

"""Slots in GPU memory, by handles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing
from weft.runtime.plan.program import StageWork
from weft.runtime.transports.buffer_tensors import allocate, layout_of
from weft.runtime.transports.one_host.gpu_slots import PeersSlots, gpu_handles


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

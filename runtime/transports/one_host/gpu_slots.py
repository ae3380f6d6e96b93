"""Slots in GPU memory that the other processes of the host write to: by CUDA IPC.

Symmetric memory is another way to have them (:mod:`weft.runtime.transports.one_host.symmetric_memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.ranks.session import Session
from weft.runtime.transports.buffer_tensors import allocate

__all__ = ["GpuSlots", "IpcSlots"]


class GpuSlots(Protocol):
    """The slots of a rank and of its peers."""

    def at(self, owner: int, slot: int) -> Tensor:
        """That slot of rank ``owner``, as bytes on this rank's device, or on the owner's as seen from here."""


class IpcSlots:
    """Each rank's slots in memory of its own, which its peers open by handles. All ranks must make theirs together."""

    def __init__(self, session: Session, tables: Sequence[BufferTable]) -> None:
        self._rank, table = session.rank, tables[session.rank]
        self._own = allocate(table.slots, session.device)
        found: list[Any] = session.exchange(gpu_handles(self._own, table), "sharing GPU memory")
        self._peers = PeersSlots(session.rank, dict(enumerate(found)))

    def at(self, owner: int, slot: int) -> Tensor:
        return self._own[slot] if owner == self._rank else self._peers[owner, slot]


def gpu_handles(slots: Sequence[Tensor], table: BufferTable) -> dict[tuple[int, int], Any]:
    """By slot and peer, what opens it there. PyTorch counts who has a tensor: it wants each handle opened once, no more
    and no less, or it complains at the end that memory was let go while others had it."""
    from torch.multiprocessing.reductions import reduce_tensor

    writers = sorted({(landing.slot, landing.peer) for landing in table.receives if landing.layout.is_known})
    return {(slot, peer): reduce_tensor(slots[slot]) for slot, peer in writers}  # type: ignore[no-untyped-call]


class PeersSlots(dict[tuple[int, int], Tensor]):
    """Slots in the memory of peers, by owner and number, each opened at its first use."""

    def __init__(self, rank: int, handles: dict[int, dict[tuple[int, int], Any]]) -> None:
        super().__init__()
        self._rank, self._handles = rank, handles

    def __missing__(self, key: tuple[int, int]) -> Tensor:
        owner, slot = key
        build, arguments = self._handles[owner][slot, self._rank]
        self[key] = opened = build(*arguments)
        assert isinstance(opened, Tensor)
        return opened

"""Slots in GPU memory to which other processes of the host write: by CUDA IPC, or in symmetric memory.

Symmetric memory is one allocation per rank, of equal size, mapped by all ranks of a group: torch maps it into each
process of the host, without a handle per tensor, and over NVLink if available. The tables determine a message's place,
as for all slots.

``torch.distributed._symmetric_memory`` is private. The functions used here (``empty``, ``rendezvous``, ``get_buffer``)
are unchanged since torch 2.6. If it is missing or the driver refuses it, the transport is refused with a sentence.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.ranks.session import Session
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.tensors import ALIGNED, allocate, whole


class GpuSlots(Protocol):
    """The slots of a rank and of its peers."""

    def at(self, owner: int, slot: int) -> Tensor:
        """Slot ``slot`` of rank ``owner``, as bytes on this rank's device, or on the owner's as seen from here."""


class IpcSlots:
    """Each rank's slots in its own memory, opened by peers through handles. All ranks create theirs together."""

    def __init__(self, session: Session, tables: Sequence[BufferTable]) -> None:
        self._rank, table = session.rank, tables[session.rank]
        self._own = allocate(table.slots, session.device)
        found: list[Any] = session.exchange(gpu_handles(self._own, table), "sharing GPU memory")
        self._peers = PeersSlots(session.rank, dict(enumerate(found)))

    def at(self, owner: int, slot: int) -> Tensor:
        return self._own[slot] if owner == self._rank else self._peers[owner, slot]


def gpu_handles(slots: Sequence[Tensor], table: BufferTable) -> dict[tuple[int, int], Any]:
    """The handles of slots, by slot and peer. PyTorch counts references, so each handle must be opened exactly once;
    otherwise it warns at exit about memory released while in use."""
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


def require_symmetric_memory(session: Session) -> None:
    """Raise :class:`~weft.runtime.transports.interface.TransportError` on all ranks unless all of them support it. All
    ranks must call it together."""
    mine = session.device.index if session.device.type == "cuda" else None
    found = session.exchange((mine, _missing()), "looking for symmetric memory")
    gpus = [gpu for gpu, _ in found if gpu is not None]
    if len(set(gpus)) < len(gpus):
        raise TransportError("--transport symmetric needs a GPU for each rank, but several share one; use shared")
    for rank, (gpu, missing) in enumerate(found):
        if gpu is None:
            raise TransportError(f"--transport symmetric needs a GPU for each rank, but rank {rank}'s stages run on a "
                                 "CPU; use gloo or shared")
        if missing:
            raise TransportError(f"--transport symmetric: {missing} on rank {rank}; use shared or nccl")


def _missing() -> str:
    """The reason why this process lacks symmetric memory; empty where it has it."""
    memory = _module()
    lacking = [name for name in ("empty", "rendezvous") if not hasattr(memory, name)]
    return f"this torch ({torch.__version__}) has no symmetric memory" if lacking else ""


def _module() -> Any:
    try:
        import torch.distributed._symmetric_memory as memory
    except ImportError:
        return None
    return memory


class SymmetricSlots:
    """The slots of this rank and of its peers. All ranks must create theirs together; raises
    :class:`~weft.runtime.transports.interface.TransportError` on all ranks where one cannot."""

    def __init__(self, session: Session, tables: Sequence[BufferTable]) -> None:
        self._sizes = [table.slots for table in tables]
        self._starts = [tuple(accumulate((whole(size) for size in sizes), initial=0)) for sizes in self._sizes]
        total = max(ALIGNED, *(starts[-1] for starts in self._starts))
        self._handle, trouble = None, ""
        group = _group(session)
        try:
            memory = _module()
            self._own = memory.empty(total, dtype=torch.uint8, device=session.device)
            self._own.zero_()
            self._handle = memory.rendezvous(self._own, group)
        except RuntimeError as error:  # of the driver: it refuses on all ranks, or their rendezvous times out
            trouble = f"rank {session.rank} cannot have it ({str(error).splitlines()[0]:.200})"
        for said in session.exchange(trouble, "making symmetric memory"):
            if said:
                raise TransportError(f"--transport symmetric: {said}; use shared or nccl")

    def at(self, owner: int, slot: int) -> Tensor:
        assert self._handle is not None
        found = self._handle.get_buffer(owner, (self._sizes[owner][slot],), torch.uint8, self._starts[owner][slot])
        assert isinstance(found, Tensor)
        return found


def _group(session: Session) -> str:
    """The name of the group of this copy's ranks."""
    if session.replicas == 1 and session.members is None:
        group = dist.group.WORLD
    else:
        session.add_groups([range(session.world)])
        group = session.group(range(session.world))
    assert group is not None
    name: str = group.group_name
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 9):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _module().enable_symm_mem_for_group(name)
    return name

"""``symmetric``: one-sided, between the GPUs of one host, in symmetric memory of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import Devices, Transport

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Symmetric"]


class Symmetric:
    """Transfers into slots that lie in ``torch.distributed._symmetric_memory``, a GPU a rank."""

    name: ClassVar[str] = "symmetric"
    usage: ClassVar[str] = "symmetric"
    posts_early: ClassVar[bool] = True
    devices: ClassVar[Devices] = Devices.OWN_GPU

    @classmethod
    def parse(cls, parameters: str | None) -> Self | None:
        return cls() if parameters is None else None

    def open(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        from weft.runtime.transports.one_host.shared_memory import share
        from weft.runtime.transports.one_host.symmetric_memory import SymmetricSlots, require_symmetric_memory

        require_symmetric_memory(session)
        return share(session, tables, gpu_slots=SymmetricSlots)

"""``shared``: one-sided, between processes of one host; the sender writes into the receiver's slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import Devices, Transport

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Shared"]


class Shared:
    """Transfers through memory that the processes share, or by CUDA IPC."""

    name: ClassVar[str] = "shared"
    usage: ClassVar[str] = "shared"
    posts_early: ClassVar[bool] = True
    devices: ClassVar[Devices] = Devices.ANY_GPU

    @classmethod
    def parse(cls, parameters: str | None) -> Self | None:
        return cls() if parameters is None else None

    def open(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        from weft.runtime.transports.one_host.shared_memory import share

        return share(session, tables, None)

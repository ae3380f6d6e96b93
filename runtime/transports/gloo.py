"""``gloo``: sockets, from CPU memory to CPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import Devices, Transport

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Gloo"]


class Gloo:
    """Transfers over the session's gloo process group."""

    name: ClassVar[str] = "gloo"
    usage: ClassVar[str] = "gloo"
    posts_early: ClassVar[bool] = True
    devices: ClassVar[Devices] = Devices.CPU

    @classmethod
    def parse(cls, parameters: str | None) -> Self | None:
        return cls() if parameters is None else None

    def open(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        from weft.runtime.transports.process_groups import ProcessGroupTransport

        return ProcessGroupTransport(session, tables[session.rank], self.name)

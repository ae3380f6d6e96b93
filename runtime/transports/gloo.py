"""``gloo``: from CPU memory to CPU memory, by sockets between hosts.

On one host sockets are slow: there the sender writes messages into the receiver's memory itself
(:mod:`weft.runtime.transports.near_and_far`), unless ``gloo:sockets`` is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import Devices, Transport

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Gloo"]


@dataclass(frozen=True)
class Gloo:
    """Transfers over the session's gloo process group, and through shared memory where that is the same host's;
    ``only_sockets``: all over the process group."""

    only_sockets: bool = False
    name: ClassVar[str] = "gloo"
    usage: ClassVar[str] = "gloo, gloo:sockets"
    posts_early: ClassVar[bool] = True
    devices: ClassVar[Devices] = Devices.CPU

    @classmethod
    def parse(cls, parameters: str | None) -> Self | None:
        return {None: cls(), "sockets": cls(only_sockets=True)}.get(parameters)

    def open(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        if self.only_sockets:
            from weft.runtime.transports.process_groups import ProcessGroupTransport

            return ProcessGroupTransport(session, tables[session.rank], self.name)
        from weft.runtime.transports.near_and_far import by_host

        return by_host(session, tables, self.name)

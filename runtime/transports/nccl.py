"""``nccl``: from GPU to GPU, one communicator for every pair of ranks.

Receives are posted where the program has them: a posted receive of NCCL is a kernel that occupies the GPU until the
message has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import Devices, Transport

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Nccl"]


class Nccl:
    """Transfers over one NCCL process group for each pair of ranks."""

    name: ClassVar[str] = "nccl"
    usage: ClassVar[str] = "nccl"
    posts_early: ClassVar[bool] = False
    devices: ClassVar[Devices] = Devices.OWN_GPU

    @classmethod
    def parse(cls, parameters: str | None) -> Self | None:
        return cls() if parameters is None else None

    def open(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        from weft.runtime.transports.process_groups import ProcessGroupTransport

        return ProcessGroupTransport(session, tables[session.rank], self.name)

"""``emulated:L,B``: shared memory that behaves like a slow link, for tests.

A message arrives no earlier than L seconds and its size / (B bytes a second) after it left. Messages from one rank to
another follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import Devices, Transport

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session

__all__ = ["Emulated"]


@dataclass(frozen=True)
class Emulated:
    """Transfers through shared memory over a link of ``latency`` seconds and ``bandwidth`` bytes per second."""

    latency: float
    bandwidth: float
    name: ClassVar[str] = "emulated"
    usage: ClassVar[str] = "emulated:LATENCY,BANDWIDTH, in seconds and bytes per second (emulated:1e-3,1e9)"
    posts_early: ClassVar[bool] = True
    devices: ClassVar[Devices] = Devices.CPU

    @classmethod
    def parse(cls, parameters: str | None) -> Self | None:
        try:
            latency, bandwidth = (float(part) for part in (parameters or "").split(","))
        except ValueError:
            return None
        return cls(latency, bandwidth) if 0 <= latency < float("inf") and bandwidth > 0 else None

    def open(self, session: Session, tables: Sequence[BufferTable]) -> Transport:
        from weft.runtime.transports.one_host.shared_memory import share

        return share(session, tables, (self.latency, self.bandwidth))

"""How tensors move between ranks, behind one small interface.

====================  ================================================================================================
``gloo``              sockets, from CPU memory to CPU memory (:mod:`weft.runtime.transports.collective`)
``nccl``              from GPU to GPU, one communicator for every pair of ranks (the same file)
``shared``            one-sided, between processes of one host: the sender writes into the receiver's slot
                      (:mod:`weft.runtime.transports.shared`)
``emulated:L,B``      as ``shared``, but a message arrives no earlier than L seconds and its size / (B bytes a second)
                      after it left, and those of one rank to another follow each other: a slow link, for tests
====================  ================================================================================================

All know every message beforehand, from the ranks' buffer tables: a transfer names an entry of a table, never a size.
After :func:`open_transport`, moving a tensor allocates no memory for tensors and makes no copy on the way; only a
result that does not lie contiguously is copied once for ``gloo`` and ``nccl``, to a staging buffer that is made the
first time it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from weft.runtime.plan.buffers import BufferTable, Landing, Staging

if TYPE_CHECKING:
    from torch import Tensor

    from weft.runtime.ranks.session import Session

__all__ = ["Parcel", "Transfer", "Transport", "TransportError", "open_transport", "parse_transport", "posts_early"]

#: What a message carries: tensors by name.
Parcel: TypeAlias = "Mapping[str, Tensor]"


class TransportError(ValueError):
    """A transport that does not exist, or cannot carry this: one sentence."""


class Transfer(Protocol):
    """A transfer under way. Keep it until :meth:`wait` returns."""

    def wait(self) -> None:
        """Wait, on the host, until it is over. Raises ``ConnectionError`` if the peer is gone.

        On a GPU too the wait is on the host, rather than in the stream alone, so that the watchdog can say which
        transfer a hanging program waits for.
        """


class Transport(Protocol):
    """One rank's side of all its messages. What it starts with one peer, it must start in the program's order."""

    def slot(self, landing: Landing) -> Parcel:
        """Where ``landing`` lands, in its shapes; the same tensors in every step."""

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        """What posts a receive, once for each call; asked before the first step. The call raises ``ConnectionError`` if
        the peer is gone."""

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        """What starts sending a parcel, which must not change until the transfer is over; asked before the first step.
        The call raises ``ConnectionError`` if the peer is gone."""

    def close(self) -> None:
        """Give back what it holds; nothing is under way any more."""


def parse_transport(text: str) -> tuple[str, tuple[float, float] | None]:
    """The name, and for an emulated link its latency (s) and bandwidth (bytes/s). Raises :class:`TransportError`."""
    name, colon, rest = text.partition(":")
    if text in ("gloo", "nccl", "shared"):
        return text, None
    if name == "emulated" and colon:
        try:
            latency, bandwidth = (float(part) for part in rest.split(","))
        except ValueError:
            pass
        else:
            if 0 <= latency < float("inf") and bandwidth > 0:
                return name, (latency, bandwidth)
    raise TransportError(f"--transport is {text!r}, it must be gloo, nccl, shared or emulated:LATENCY,BANDWIDTH, in "
                         "seconds and bytes per second (emulated:1e-3,1e9)")


def posts_early(text: str) -> bool:
    """Whether receives are posted as early as can be. A posted receive of NCCL is a kernel that occupies the GPU until
    the message has come, so it is posted where the program has it."""
    return text != "nccl"


def open_transport(session: Session, tables: Sequence[BufferTable]) -> Transport:
    """The transport ``session.transport``, with its buffers made and its ranks connected in pairs.

    All ranks must call it together. Raises :class:`TransportError` where that transport cannot work.
    """
    name, link = parse_transport(session.transport)
    if name in ("gloo", "nccl"):
        from weft.runtime.transports.collective import Collective

        return Collective(session, tables[session.rank], name)
    from weft.runtime.transports.shared import share

    return share(session, tables, link)

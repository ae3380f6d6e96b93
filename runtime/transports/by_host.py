"""A transport with shared memory between ranks of one host, and process groups between hosts.

On one host, sockets copy twice, through the kernel, and wake a thread at each end of a message and for each full
buffer. In shared memory the sender writes the message into the receiver's slot, which is one copy, and wakes the
waiting rank. The tables and the ranks' hosts determine the path of a message, equally on both ends, so each path has
its messages in the order of the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.ranks.session import Session
from weft.runtime.transports.interface import Parcel, Transfer, Transport, TransportError
from weft.runtime.transports.one_host.one_sided import OneSided
from weft.runtime.transports.one_host.peers import machine
from weft.runtime.transports.one_host.shared_memory import can_share, share
from weft.runtime.transports.process_groups import ProcessGroupTransport


class ByHost:
    """``near`` carries the messages of ``near_table``, ``far`` all other messages."""

    def __init__(self, near: OneSided, near_table: BufferTable, far: ProcessGroupTransport) -> None:
        self.near, self.far = near, far
        self._near = {*near_table.receives, *near_table.sends}

    @property
    def sends_at_once(self) -> bool:
        return self.near.sends_at_once and self.far.sends_at_once

    @property
    def staging(self) -> Sequence[Tensor]:
        return self.far.staging

    def slot(self, landing: Landing) -> Parcel:
        return self._way(landing).slot(landing)

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        return self._way(landing).receiver(landing)

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        return self._way(message).sender(message)

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def _way(self, entry: Landing | Staging) -> Transport:
        return self.near if entry in self._near else self.far


def by_host(session: Session, tables: Sequence[BufferTable], backend: str) -> Transport:
    """This rank's transport: shared memory for messages within one host, process groups of ``backend`` for the rest.
    All ranks must call it together. Where memory cannot be shared, all messages use process groups."""
    hosts = session.exchange(host(), "comparing hosts")
    halves = [split(rank, table, hosts) for rank, table in enumerate(tables)]
    near, far = [half[0] for half in halves], [half[1] for half in halves]
    # Ranks of a host without shared memory cannot take part in creating it.
    if session.device.type == "cpu" and None not in hosts and any(table.sends for table in near):
        try:
            shared = share(session, near)
        except TransportError:  # it is raised on all ranks
            pass
        else:
            lent = {landing.slot: memory_of(shared.slot(landing)) for landing in near[session.rank].receives
                    if landing.layout.is_known}
            return ByHost(shared, near[session.rank],
                          ProcessGroupTransport(session, far[session.rank], backend, lent))
    return ProcessGroupTransport(session, tables[session.rank], backend)


def split(rank: int, table: BufferTable, hosts: Sequence[str | None]) -> tuple[BufferTable, BufferTable]:
    """The table of ``rank`` divided into messages through shared memory and the others. A slot without messages in a
    table has 0 bytes there; a slot with messages in both has its bytes in the first."""
    def is_near(peer: int) -> bool:
        return hosts[rank] is not None and hosts[rank] == hosts[peer]

    near = [landing for landing in table.receives if is_near(landing.peer)]
    near_sends = [message for message in table.sends if is_near(message.peer)]
    far = [landing for landing in table.receives if landing not in set(near)]
    far_sends = [message for message in table.sends if message not in set(near_sends)]
    lying = {landing.slot for landing in near}
    left = {landing.slot for landing in far} - lying
    return (replace(table, slots=_kept(table.slots, lying), receives=tuple(near), sends=tuple(near_sends)),
            replace(table, slots=_kept(table.slots, left), receives=tuple(far), sends=tuple(far_sends)))


def memory_of(parcel: Parcel) -> Tensor:
    """The whole memory behind the tensors of ``parcel``, as bytes."""
    storage = next(iter(parcel.values())).untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _kept(sizes: Sequence[int], slots: set[int]) -> tuple[int, ...]:
    return tuple(size if slot in slots else 0 for slot, size in enumerate(sizes))


def host() -> str | None:
    """An identifier that is equal for processes of one user that see each other; ``None`` if they cannot share memory.
    """
    here = machine() if can_share() else None
    return None if here is None else f"{here} {os.geteuid()}"

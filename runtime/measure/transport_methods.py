"""Ways to call another rank with a tensor and to have an answer: each transport, pickled objects, torch's RPC.

A *call* of each is the same: rank 0 has a tensor of some bytes, rank 1 gets it and says so, and rank 0 goes on when it
has heard. So no way can hide its latency behind the next message. All ranks must make each method, in one order; only
the two take part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Layout, buffer_table
from weft.runtime.plan.program import BlockWork, Instruction, Recv, Send, Work
from weft.runtime.ranks.session import Session
from weft.runtime.transports.buffer_tensors import layout_of
from weft.runtime.transports.interface import Parcel, Transfer, Transport
from weft.runtime.transports.registry import open_transport

__all__ = ["CALLED", "Called", "Method", "Pickled", "Planned", "calls_table", "remote_calls"]

CALLER, CALLED = 0, 1
#: Of a call, on each of the two ranks.
INSTRUCTIONS = 4
#: What is said back.
ANSWER = layout_of({"": ((1,), torch.uint8)})


class Method(Protocol):
    """A way to call."""

    def step(self) -> None:
        """Some calls, one after another."""

    def close(self) -> None:
        """Give the buffers back."""


class Planned:
    """``count`` calls a step with ``parcel``, whose layout is ``layout``, over the transport ``name``.

    Raises :class:`~weft.runtime.transports.interface.TransportError` where that cannot work.
    """

    def __init__(self, session: Session, name: str, layout: Layout, parcel: Parcel, count: int) -> None:
        tables = [calls_table(rank, layout, count) for rank in range(session.world)]
        self.transport: Transport = open_transport(replace(session, transport=name), tables)
        self.table, self.parcel, self.rank = tables[session.rank], parcel, session.rank
        self.answer = {"": torch.zeros(1, dtype=torch.uint8, device=session.device)}
        self.senders = {message.step: self.transport.sender(message) for message in self.table.sends}
        self.receivers = {landing: self.transport.receiver(landing) for landing in self.table.receives}
        self.close = self.transport.close
        self.landings = {landing.step: self.transport.slot(landing) for landing in self.table.receives}

    def step(self, look: Callable[[Parcel], None] = lambda parcel: None) -> None:
        """All calls; ``look`` is shown what has come, before anything else can come there."""
        posted: dict[int, Transfer] = {}
        leaving: Transfer | None = None
        for step in range(INSTRUCTIONS * len(self.table.sends)):
            for landing in self.table.postings.get(step, ()):
                posted[landing.step] = self.receivers[landing]()
            if step in self.senders:
                if leaving is not None:
                    leaving.wait()
                leaving = self.senders[step](self.parcel if self.rank == CALLER else self.answer)
            if step in posted:
                posted.pop(step).wait()
                look(self.landings[step])
        if leaving is not None:
            leaving.wait()


def calls_table(rank: int, layout: Layout, count: int) -> BufferTable:
    """The table of ``rank`` for ``count`` calls with messages of ``layout``. The instructions of a call are four on
    both ranks."""
    rows: dict[int, list[Instruction]] = {CALLER: [], CALLED: []}
    reads: dict[Work, list[Work]] = {}
    for number in range(count):
        asks, answers = BlockWork("ask", number), BlockWork("answer", number)
        goes_on, gets = BlockWork("go on", number), BlockWork("get", number)
        rows[CALLER] += [asks, Send(asks, CALLED), Recv(answers, CALLED), goes_on]
        rows[CALLED] += [Recv(asks, CALLER), gets, answers, Send(answers, CALLER)]
        reads[goes_on], reads[gets] = [answers], [asks]
    row = rows.get(rank, [])
    layouts: dict[Instruction, Layout] = {i: layout if i.what.block == "ask" else ANSWER for i in row
               if isinstance(i, (Send, Recv)) and isinstance(i.what, BlockWork)}
    return buffer_table(row, layouts, lambda work: reads.get(work, []), lambda work: work)


class Pickled:
    """The same by ``send_object_list``: pickled, over gloo."""

    def __init__(self, session: Session, tensor: Tensor, count: int) -> None:
        self.rank, self.count, self.tensor = session.rank, count, tensor

    def step(self) -> None:
        answer = torch.zeros(1, dtype=torch.uint8)
        for _ in range(self.count):
            if self.rank == CALLER:
                dist.send_object_list([self.tensor], dst=CALLED)
                dist.recv(answer, CALLED)
            elif self.rank == CALLED:
                dist.recv_object_list([None], src=CALLER)
                dist.send(answer, CALLER)

    def close(self) -> None:
        pass


def _keep(tensor: Tensor) -> None:
    pass


class Called:
    """The same by ``torch.distributed.rpc``: ``caller`` calls the rank after it."""

    def __init__(self, session: Session, tensor: Tensor, count: int, caller: int = CALLER) -> None:
        self.count, self.tensor = count if session.rank == caller else 0, tensor
        self.to = f"rank-{caller + 1}"

    def step(self) -> None:
        from torch.distributed import rpc

        for _ in range(self.count):
            rpc.rpc_sync(self.to, _keep, (self.tensor,))

    def close(self) -> None:
        pass


@contextmanager
def remote_calls(session: Session, folder: Path, *, only_tcp: bool = False, caller: int = CALLER) -> Iterator[None]:
    """``torch.distributed.rpc`` between ``caller`` and the rank after it; nothing on others. On one host TensorPipe
    takes shared memory, and reads from the other process's memory where it may; with ``only_tcp``, sockets."""
    if session.rank not in (caller, caller + 1):
        yield
        return
    from torch.distributed import rpc

    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    how: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]} if only_tcp else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder / f'rpc-{caller}'}", **how)
    if session.device.type == "cuda":
        here = session.device.index
        options.set_device_map(f"rank-{2 * caller + 1 - session.rank}", {here: 1 - here})
    rpc.init_rpc(f"rank-{session.rank}", rank=session.rank - caller,  # type: ignore[no-untyped-call]
                 world_size=2, rpc_backend_options=options)
    yield
    rpc.shutdown()

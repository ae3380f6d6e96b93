"""A check of each transport of this machine between two ranks: whether messages arrive correctly, and how fast.

Tensors of several dtypes, sizes and shapes, known to the plan or not, are sent over each transport several times with
different contents, and compared. Then calls are timed, alternating between all transports and torch's RPC.

As a program (``python -m weft.runtime.measure.transport_check FOLDER DEVICE NAME,... SIZE,...``), rank 0 prints one
line of JSON for each transport as soon as it is checked, so that a crash loses that line only.

A *call* is the same for each method: rank 0 sends a tensor, rank 1 answers, and rank 0 continues when the answer has
arrived. So no method can hide its latency behind the next message. All ranks must create all methods in the same order;
only ranks 0 and 1 take part.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, MessageLayout, buffer_table
from weft.runtime.plan.program import BlockWork, Instruction, Recv, Send, Work
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.interface import Parcel, Transfer, Transport, TransportError
from weft.runtime.transports.registry import device_for, open_transport
from weft.runtime.transports.tensors import layout_of

RPC = "rpc"
#: The number of kinds of messages, and the number of times each is sent, with different contents.
CASES, STEPS = 5, 3
#: The most timed rounds of each transport and size.
ROUNDS = 7
#: The dtypes sent: all element sizes.
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool,
          torch.complex64)


def case_parcel(case: int, size: int, step: int, device: torch.device) -> tuple[MessageLayout, Parcel]:
    """A message of about ``size`` bytes, and its layout in the plan. By ``case``: 0, all dtypes; 1, a transposed, a
    conjugated and a negated tensor; 2 and 3, unknown shapes of 2 and 9 dimensions (more than the fixed part of a
    description has), different in each ``step``; 4, an empty tensor."""
    if case == 0:
        shapes = {str(dtype): (3, max(1, size // (3 * len(DTYPES) * dtype.itemsize))) for dtype in DTYPES}
        return (layout_of({str(dtype): (shapes[str(dtype)], dtype) for dtype in DTYPES}),
                {str(dtype): contents(shapes[str(dtype)], dtype, step, device) for dtype in DTYPES})
    if case == 1:
        rows = max(1, size // 32)
        conjugated = torch.view_as_complex(contents((8, 2), torch.float32, step, device)).conj()
        return (layout_of({"": ((8, rows), torch.float32), "conjugated": ((8,), torch.complex64),
                           "negated": ((1,), torch.float32)}),
                {"": contents((rows, 8), torch.float32, step, device).T,
                 "conjugated": conjugated, "negated": conjugated[:1].imag})
    if case == 4:
        return layout_of({"": ((0, 5), torch.float32)}), {"": contents((0, 5), torch.float32, step, device)}
    dims = {2: 2, 3: 9}[case]
    shape = (*[1] * (dims - 2), 4, max(1, size // (4 + 4 * step) // 4))
    return (layout_of({"": ((None,) * dims, torch.float32), "none": ((None,), torch.int8)}),
            {"": contents(shape, torch.float32, step, device), "none": contents((0,), torch.int8, step, device)})


def contents(shape: Sequence[int], dtype: torch.dtype, step: int, device: torch.device) -> Tensor:
    """A random tensor, equal on both ranks."""
    generator = torch.Generator().manual_seed(step)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool().to(device)
    return torch.randint(-9, 9, shape, generator=generator, dtype=torch.int8).to(dtype).to(device)


def check_transport(session: Session, name: str, sizes: Sequence[int]) -> str:
    """The first error of the transport ``name``, as words for a message; ``""`` if all messages arrived as sent. All
    ranks call it together and get the same result. Raises
    :class:`~weft.runtime.transports.interface.TransportError` if the transport cannot be used."""
    for size in sizes:
        for case in range(CASES):
            layout, first = case_parcel(case, size, 0, session.device)
            planned = PlannedMessages(session, name, layout, first, 2)
            for step in range(STEPS):
                _, planned.parcel = case_parcel(case, size, step, session.device)
                session.barrier("to send")
                differences: list[str] = []
                planned.step(_Differences(planned.parcel if session.rank == CALLED else planned.answer, differences))
                if first_one := next(filter(None, chain(*session.exchange(differences, "comparing"))), ""):
                    return f"of a message of {size} bytes, {layout or 'nothing'}, {first_one}"
            planned.close()
    return ""


@dataclass(frozen=True)
class _Differences:
    """Appends the difference of each received message from ``wanted`` to ``found``."""

    wanted: Parcel
    found: list[str]

    def __call__(self, parcel: Parcel) -> None:
        self.found.append(_difference(parcel, self.wanted))


def _difference(found: Parcel, wanted: Parcel) -> str:
    if found.keys() != wanted.keys():
        return f"{sorted(found)} came in place of {sorted(wanted)}"
    for name, tensor in wanted.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            return f"{name!r} came as {tuple(found[name].shape)} of {found[name].dtype}"
        if not torch.equal(found[name], tensor):
            return f"{name!r} came with other numbers"
    return ""


def time_methods(session: Session, names: Sequence[str], size: int, seconds_each: float = 0.5) -> dict[str, float]:
    """The median seconds of a call with ``size`` bytes, by method: the transports in ``names``, and torch's RPC if it
    is among them. The methods alternate. A name with ``?`` is for messages whose size the plan does not know."""
    tensor = torch.zeros(size, dtype=torch.uint8, device=session.device)
    count = max(2, min(20, 2**24 // size))
    known, unknown = (layout_of({"": ((length,), torch.uint8)}) for length in (size, None))
    methods: dict[str, Method] = {}
    for name in names:
        if name == RPC:
            methods[RPC] = RpcCalls(session, tensor, count)
        else:
            methods[name] = PlannedMessages(session, name, known, {"": tensor}, count)
            methods[f"{name}?"] = PlannedMessages(session, name, unknown, {"": tensor}, count)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(ROUNDS + 1):
        for name, method in methods.items():
            took = timed(session, method)
            if turn and sum(seconds[name]) * count < seconds_each:  # the first round only warms up
                seconds[name].append(took / count)
    for method in methods.values():
        method.close()
    return {name: statistics.median(times) for name, times in seconds.items()}


def timed(session: Session, method: Method) -> float:
    """Seconds of a step on this rank; on rank 0, until the last answer has arrived."""
    session.barrier("to begin")
    begun = session.now()
    method.step()
    ended = session.now()
    session.barrier("to end a round")
    return ended - begun


def start_rpc(session: Session, stack: ExitStack, calls: AbstractContextManager[None]) -> str:
    """Enter ``calls`` until ``stack`` ends. Returns the error of a rank, or ``""``: RPC is only a comparison, so its
    failure does not end the check."""
    message = ""
    try:
        stack.enter_context(calls)
    except RuntimeError as error:
        message = " ".join(str(error).split()) or "no message"
    return next(filter(None, session.exchange(message, "starting RPC")), "")


CALLER, CALLED = 0, 1
#: Instructions of a call, on each of the two ranks.
INSTRUCTIONS = 4
#: The layout of an answer.
ANSWER = layout_of({"": ((1,), torch.uint8)})


class Method(Protocol):
    """A method of calling the other rank."""

    def step(self) -> None:
        """Make some calls in sequence."""

    def close(self) -> None:
        """Release the buffers."""


class PlannedMessages:
    """``count`` calls per step with ``parcel``, whose layout is ``layout``, over the transport ``name``.

    Raises :class:`~weft.runtime.transports.interface.TransportError` if the transport cannot be used.
    """

    def __init__(self, session: Session, name: str, layout: MessageLayout, parcel: Parcel, count: int) -> None:
        tables = [calls_table(rank, layout, count) for rank in range(session.world)]
        self.transport: Transport = open_transport(replace(session, transport=name), tables)
        self.table, self.parcel, self.rank = tables[session.rank], parcel, session.rank
        self.answer = {"": torch.zeros(1, dtype=torch.uint8, device=session.device)}
        self.senders = {message.step: self.transport.sender(message) for message in self.table.sends}
        self.receivers = {landing: self.transport.receiver(landing) for landing in self.table.receives}
        self.close = self.transport.close
        self.landings = {landing.step: self.transport.slot(landing) for landing in self.table.receives}

    def step(self, look: Callable[[Parcel], None] = lambda parcel: None) -> None:
        """Make all calls; each received message is passed to ``look`` before its slot is reused."""
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


def calls_table(rank: int, layout: MessageLayout, count: int) -> BufferTable:
    """The buffer table of ``rank`` for ``count`` calls with messages of ``layout``. A call has four instructions on
    each rank."""
    rows: dict[int, list[Instruction]] = {CALLER: [], CALLED: []}
    reads: dict[Work, list[Work]] = {}
    for number in range(count):
        asks, answers = BlockWork("ask", number), BlockWork("answer", number)
        goes_on, gets = BlockWork("go on", number), BlockWork("get", number)
        rows[CALLER] += [asks, Send(asks, CALLED), Recv(answers, CALLED), goes_on]
        rows[CALLED] += [Recv(asks, CALLER), gets, answers, Send(answers, CALLER)]
        reads[goes_on], reads[gets] = [answers], [asks]
    row = rows.get(rank, [])
    layouts: dict[Instruction, MessageLayout] = {i: layout if i.what.block == "ask" else ANSWER for i in row
               if isinstance(i, (Send, Recv)) and isinstance(i.what, BlockWork)}
    return buffer_table(row, layouts, lambda work: reads.get(work, []), lambda work: work)


def _keep(tensor: Tensor) -> None:
    pass


class RpcCalls:
    """``count`` calls per step by ``torch.distributed.rpc``."""

    def __init__(self, session: Session, tensor: Tensor, count: int) -> None:
        self.count, self.tensor = count if session.rank == CALLER else 0, tensor

    def step(self) -> None:
        from torch.distributed import rpc

        for _ in range(self.count):
            rpc.rpc_sync(f"rank-{CALLED}", _keep, (self.tensor,))

    def close(self) -> None:
        pass


@contextmanager
def remote_calls(session: Session, folder: Path) -> Iterator[None]:
    """Inside, ``torch.distributed.rpc`` works between the two ranks. On one host TensorPipe uses shared memory, and
    reads the other process's memory if permitted."""
    from torch.distributed import rpc

    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder / 'rpc'}")
    if session.device.type == "cuda":
        here = session.device.index
        options.set_device_map(f"rank-{1 - session.rank}", {here: 1 - here})
    rpc.init_rpc(f"rank-{session.rank}", rank=session.rank, world_size=2,  # type: ignore[no-untyped-call]
                 rpc_backend_options=options)
    yield
    rpc.shutdown()


def main(folder: Path, device: str, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Run one of the two ranks."""
    where = torch.device("cpu") if device == "cpu" else device_for("shared")
    with join(120, where) as session, ExitStack() as stack:
        session.watch.begin()
        good = []
        for name in names:
            if name == RPC:
                refused = start_rpc(session, stack, remote_calls(session, folder))
                good += [] if refused else [name]
                _print(session, {"name": name, "wrong": "", "refused": refused})
                continue
            try:
                wrong, refused = check_transport(session, name, sizes), ""
            except TransportError as error:
                wrong, refused = "", str(error)
            if not wrong and not refused:
                good.append(name)
            _print(session, {"name": name, "wrong": wrong, "refused": refused})
        for size in sizes:
            _print(session, {"size": size, "seconds": time_methods(session, good, size)})


def _print(session: Session, line: Mapping[str, Any]) -> None:
    if session.rank == 0:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), [int(size) for size in sys.argv[4].split(",")])

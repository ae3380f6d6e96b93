"""Planned transfers against pickled ones: messages, allocations and copies a transfer, and time as a ratio.

Two ranks of one host; rank 0 sends tensors of one size to rank 1, which waits for each. Planned: the transports of
:mod:`weft.runtime.transports` over a buffer table. Pickled: ``send_object_list`` (pickle over gloo), and a
``torch.distributed.rpc`` call with the tensor as its argument. Times are medians over rounds in which all methods take
turns, given as a ratio to ``send_object_list``. Counts come from a pass of their own: torch's allocations as its
profiler sees them, Python's by the peak of what ``tracemalloc`` saw (a lower bound on the buffers that were filled),
copies as the dispatcher sees them; for shared memory, the one write that delivers the message is not counted as a copy
on its way. Only what is at least as large as the message counts. Writes ``transports.json``, prints a table.

    python -m experiments.runtime.transports [--rounds N] [--sizes BYTES ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.lib.provenance import RESULTS, Record
from weft.runtime.plan.buffers import BufferTable, buffer_table
from weft.runtime.plan.program import BlockWork, Instruction, Recv, Send, Work
from weft.runtime.ranks.launch import launch_local
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.buffer_tensors import layout_of
from weft.runtime.transports.registry import open_transport

SIZES = tuple(1024 * 4**i for i in range(9))  # 1 KiB to 64 MiB
PLANNED = ("gloo", "gloo:sockets", "shared")
METHODS = (*PLANNED, "send_object_list", "rpc")


@dataclass(frozen=True)
class Counts:
    """A transfer's, both ranks together; ``None`` where they cannot be seen (rpc works in threads of its own)."""

    messages: int | None
    allocations: int | None
    copies: int | None


@dataclass(frozen=True)
class Result:
    """One method at one message size in bytes; ``ratio`` is its time over that of ``send_object_list``."""

    method: str
    size: int
    seconds: float
    ratio: float
    counts: Counts


# -- how each method sends -------------------------------------------------------------------------------------------


class Planned:
    """``count`` transfers of ``size`` bytes a step over a transport."""

    def __init__(self, session: Session, name: str, size: int, count: int) -> None:
        tables = [_table(rank, size, count) for rank in range(2)]
        self.transport = open_transport(replace(session, transport=name), tables)
        self.table, self.payload = tables[session.rank], torch.ones(size, dtype=torch.uint8)
        self.senders = [self.transport.sender(message) for message in self.table.sends]
        self.receivers = {landing: self.transport.receiver(landing) for landing in self.table.receives}
        self.close = self.transport.close

    def step(self) -> None:
        for send in self.senders:
            send({"": self.payload}).wait()
        posted = {}
        for step in range(2 * len(self.table.receives)):
            for landing in self.table.postings.get(step, ()):
                posted[landing.step] = self.receivers[landing]()
            if step % 2:
                posted.pop(step - 1).wait()


def _table(rank: int, size: int, count: int) -> BufferTable:
    layout = layout_of({"": ((size,), torch.uint8)})
    works = [BlockWork("block", m) for m in range(count)]
    row: list[Instruction] = []
    for work in works:
        row += [work, Send(work, 1)] if rank == 0 else [Recv(work, 0), BlockWork("reader", work.micro_batch)]

    def reads(work: Work) -> list[Work]:
        return [BlockWork("block", work.micro_batch)] if rank == 1 else []

    return buffer_table(row, {i: layout for i in row if isinstance(i, (Send, Recv))}, reads, lambda work: work)


class Pickled:
    """The same by ``send_object_list``."""

    def __init__(self, session: Session, size: int, count: int) -> None:
        self.rank, self.count, self.payload = session.rank, count, torch.ones(size, dtype=torch.uint8)

    def step(self) -> None:
        for _ in range(self.count):
            if self.rank == 0:
                dist.send_object_list([self.payload], dst=1)
            else:
                dist.recv_object_list([None], src=0)

    def close(self) -> None:
        pass


def _keep(tensor: Tensor) -> None:
    pass


class Called:
    """The same by calls of ``torch.distributed.rpc``."""

    def __init__(self, session: Session, size: int, count: int) -> None:
        self.rank, self.count, self.payload = session.rank, count, torch.ones(size, dtype=torch.uint8)

    def step(self) -> None:
        for _ in range(self.count if self.rank == 0 else 0):
            rpc.rpc_sync("rank-1", _keep, (self.payload,))

    def close(self) -> None:
        pass


def sender(session: Session, method: str, size: int, count: int) -> Planned | Pickled | Called:
    """``method``, ready to send."""
    if method in PLANNED:
        return Planned(session, method, size, count)
    return (Pickled if method == "send_object_list" else Called)(session, size, count)


# -- counting ----------------------------------------------------------------------------------------------------------


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what passes the dispatcher: messages, and copies of at least ``size`` bytes. Writing to one of
    ``delivered``, a peer's slots by address, is a message."""

    def __init__(self, size: int, delivered: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size, self.delivered, self.messages, self.copies = size, delivered, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = func.name(), func(*args, **(kwargs or {}))
        if name == "c10d::send" or (name == "aten::copy_" and args[0].data_ptr() in self.delivered):
            self.messages += 1
        elif name.split(".")[0] in ("aten::copy_", "aten::clone", "aten::_to_copy", "aten::cat"):
            self.copies += isinstance(result, Tensor) and result.nbytes >= self.size
        return result


def counted(run: Callable[[], None], size: int, delivered: Collection[int]) -> tuple[int, int, int]:
    """Messages, allocations and copies of at least ``size`` bytes while ``run`` runs, on this rank."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = profiled.profiler.kineto_results.events()
    allocations = sum(event.name() == "[memory]" and event.nbytes() >= size for event in events)
    with _Seen(size, delivered) as seen:
        run()
    tracemalloc.start()
    run()
    # A few KiB are Python's own, whatever is sent.
    buffers = tracemalloc.get_traced_memory()[1] // size if size >= 2**16 else 0
    tracemalloc.stop()
    return seen.messages, allocations + buffers, seen.copies + buffers


def counts(session: Session, method: str, size: int) -> Counts:
    """What one transfer of ``size`` bytes by ``method`` takes, after the first."""
    sending = sender(session, method, size, 1)
    sending.step()

    def step() -> None:
        session.barrier("to count")
        if session.rank == 0:
            time.sleep(0.02)  # the receive is posted, so that nothing is left to a thread, which would not be seen
        sending.step()

    found = session.exchange(counted(step, size, _slots_written(sending)), "adding up")
    sending.close()
    return Counts(None, None, None) if method == "rpc" else Counts(*(sum(rank[i] for rank in found) for i in range(3)))


def _slots_written(sending: Planned | Pickled | Called) -> set[int]:
    """Where a one-sided transport writes."""
    remote = getattr(sending.transport, "_remote", {}) if isinstance(sending, Planned) else {}
    return {tensor.data_ptr() for parcel in remote.values() for tensor in parcel.values()}


# -- the run -----------------------------------------------------------------------------------------------------------


@contextmanager
def calls(session: Session, folder: Path) -> Iterator[None]:
    """``torch.distributed.rpc`` between the two ranks."""
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    rpc.init_rpc(f"rank-{session.rank}", rank=session.rank, world_size=2,  # type: ignore[no-untyped-call]
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder / 'rpc'}"))
    yield
    rpc.shutdown()


def rank_main(folder: Path, rounds: int, sizes: Sequence[int]) -> None:
    """One of the two ranks; rank 0 prints the results as JSON."""
    results: list[Result] = []
    with join(120) as session, calls(session, folder):
        session.watch.begin()
        for size in sizes:
            found = {method: counts(session, method, size) for method in METHODS}
            seconds: dict[str, list[float]] = {method: [] for method in METHODS}
            count = max(3, min(50, 2**26 // size))
            senders = {method: sender(session, method, size, count) for method in METHODS}
            for turn in range(rounds + 1):
                for method, sending in senders.items():
                    begun = session.common_start(0.001)
                    sending.step()
                    session.barrier("to end a round")
                    if turn:  # the first round only warms up
                        seconds[method].append((session.now() - begun) / count)
            for sending in senders.values():
                sending.close()
            median = {method: statistics.median(times) for method, times in seconds.items()}
            results += [Result(method, size, median[method], median[method] / median["send_object_list"],
                               found[method]) for method in METHODS]
    if session.rank == 0:
        print(json.dumps([asdict(result) for result in results]))


def compare(rounds: int, sizes: Sequence[int] = SIZES) -> list[Result]:
    """All methods at all sizes, on two processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        ended = launch_local(2, [sys.executable, "-m", "experiments.runtime.transports", "--rank", folder, "--rounds",
                                 str(rounds), "--sizes", *map(str, sizes)], timeout=280)
    if any(end.code for end in ended):
        raise RuntimeError("\n".join(end.errors for end in ended))
    rows = json.loads(ended[0].output.splitlines()[-1])
    return [Result(**{**row, "counts": Counts(**row["counts"])}) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write; 1 if a planned transfer takes more than one message, or any allocation or copy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes")
    parser.add_argument("--output", type=Path, default=RESULTS / "transports.json")
    options = parser.parse_args(arguments)
    if options.rank:
        rank_main(Path(options.rank), options.rounds, options.sizes)
        return 0
    record = Record(options.output)
    results = compare(options.rounds, options.sizes)
    print(f"{'bytes':>9}  {'method':<17}{'messages':>9}{'allocations':>12}{'copies':>7}{'time':>8}")
    for result in results:
        messages, allocations, copies = ("?" if count is None else str(count) for count in astuple(result.counts))
        print(f"{result.size:>9}  {result.method:<17}{messages:>9}{allocations:>12}{copies:>7}{result.ratio:>8.3f}")
    record.write({"reference": "send_object_list", "rounds": options.rounds,
                  "results": [asdict(result) for result in results]})
    planned = [result.counts for result in results if result.method in PLANNED]
    return 0 if all(found == Counts(1, 0, 0) for found in planned) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What each rank of a test of planned transfers runs: it counts the messages, allocations and copies that one takes.

``python -m tests.support.count_ranks SIZE ...`` under two ranks; rank 0 prints what was found, by size and method.
torch's allocations are counted as its profiler sees them, Python's by the peak of what ``tracemalloc`` saw (a lower
bound on the buffers that were filled), copies as the dispatcher sees them; for shared memory, the one write that
delivers the message is not counted as a copy on its way. Only what is at least as large as the message counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from weft.runtime.measure.transport_check import Method, PlannedMessages
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.by_host import ByHost
from weft.runtime.transports.tensors import layout_of

#: Seconds that a receiver has to be the first.
PAUSE = float(os.environ.get("WEFT_PAUSE", "0.02"))
PLANNED, PICKLED = ("gloo", "gloo:sockets", "shared"), "send_object_list"


class Pickled:
    """``PlannedMessages`` by ``send_object_list``: pickled, over gloo."""

    def __init__(self, session: Session, tensor: Tensor) -> None:
        self.rank, self.tensor = session.rank, tensor

    def step(self) -> None:
        answer = torch.zeros(1, dtype=torch.uint8)
        if self.rank == 0:
            dist.send_object_list([self.tensor], dst=1)
            dist.recv(answer, 1)
        else:
            dist.recv_object_list([None], src=0)
            dist.send(answer, 0)

    def close(self) -> None:
        pass


def method_of(session: Session, name: str, size: int) -> Method:
    """One call of ``size`` bytes by the method ``name``."""
    tensor = torch.ones(size, dtype=torch.uint8)
    if name == PICKLED:
        return Pickled(session, tensor)
    return PlannedMessages(session, name, layout_of({"": ((size,), torch.uint8)}), {"": tensor}, 1)


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what passes the dispatcher: messages, and copies of at least ``size`` bytes. Writing to one of
    ``delivered``, a peer's slots by address, is a message."""

    def __init__(self, size: int, delivered: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size, self.delivered, self.messages, self.copies = size, delivered, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, result = func.name(), func(*args, **(kwargs or {}))
        sent = args[0][0] if name == "c10d::send" else args[0] if name == "aten::copy_" else None
        if sent is not None and (name == "c10d::send" or sent.data_ptr() in self.delivered):
            self.messages += sent.nbytes > 1  # the byte that comes back is an answer
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


def counts(session: Session, method: str, size: int) -> list[int]:
    """What one transfer of ``size`` bytes by ``method`` takes, after the first. All ranks must call it together."""
    sending = method_of(session, method, size)
    sending.step()

    def step() -> None:
        session.barrier("to count")
        if session.rank == 0:
            time.sleep(PAUSE)  # the receive is posted, so that nothing is left to a thread, which would not be seen
        sending.step()

    found = session.exchange(counted(step, size, _slots_written(sending)), "adding up")
    sending.close()
    return [sum(rank[i] for rank in found) for i in range(3)]


def _slots_written(sending: Method) -> set[int]:
    """Where a one-sided transport writes."""
    if not isinstance(sending, PlannedMessages):
        return set()
    way = sending.transport.near if isinstance(sending.transport, ByHost) else sending.transport
    remote = getattr(way, "_remote", {})
    return {tensor.data_ptr() for parcel in remote.values() for tensor in parcel.values()}


def main() -> None:
    with join(900.0) as session:
        session.watch.begin()
        found = {size: {name: counts(session, name, int(size)) for name in (*PLANNED, PICKLED)}
                 for size in sys.argv[1:]}
    if session.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

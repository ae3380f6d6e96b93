"""Planned transfers against pickled ones and torch's RPC: messages, allocations and copies a transfer, and its time.

Two ranks of one host; rank 0 calls rank 1 with a tensor, and goes on when a byte has come back. Planned: the transports
of :mod:`weft.runtime.transports` over a buffer table, each also with messages whose size the plan does not know
(``?``). Pickled: ``send_object_list`` over gloo. RPC: ``torch.distributed.rpc`` as it comes, and kept to TCP. A second
pair of ranks has the latter, since a process has one RPC; it sleeps while others are timed.

What the bytes go through on one host: ``gloo`` and ``shared``, memory that both processes have mapped (one copy);
``gloo:sockets``, ``send_object_list`` and ``rpc over TCP``, a TCP connection over loopback; ``rpc``, what TensorPipe
chooses: shared memory for what is small, and for tensors reading from the other process's memory, where the system
permits it.

Times are medians over rounds in which all methods take turns, the order reversed every other time, as ratios to both
RPCs and to ``send_object_list``. Counts come from a pass of their own: torch's allocations as its
profiler sees them, Python's by the peak of what ``tracemalloc`` saw (a lower bound on the buffers that were filled),
copies as the dispatcher sees them; for shared memory, the one write that delivers the message is not counted as a copy
on its way. Only what is at least as large as the message counts. Writes ``transports.json``, prints a table.

    python -m experiments.runtime.transports [--rounds N] [--sizes BYTES ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.lib.provenance import RESULTS, Record
from weft.runtime.measure.transport_check import timed
from weft.runtime.measure.transport_methods import Called, Method, Pickled, Planned, remote_calls
from weft.runtime.ranks.launch import launch_local
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.buffer_tensors import layout_of
from weft.runtime.transports.near_and_far import NearAndFar

SIZES = tuple(4096 * 4**i for i in range(8))  # 4 KiB to 64 MiB
PLANNED = ("gloo", "gloo:sockets", "shared")
UNKNOWN = tuple(f"{name}?" for name in PLANNED)
PICKLED, RPC, RPC_TCP = "send_object_list", "rpc", "rpc over TCP"
METHODS = (*PLANNED, *UNKNOWN, PICKLED, RPC, RPC_TCP)
#: RPC works in threads of its own, and what a message of unknown size takes depends on those before.
COUNTED = (*PLANNED, PICKLED)
#: The first rank of each pair: of all methods, and of RPC over TCP.
FIRST, SECOND = 0, 2


@dataclass(frozen=True)
class Counts:
    """A transfer's, both ranks together; ``None`` where they are not counted."""

    messages: int | None
    allocations: int | None
    copies: int | None


@dataclass(frozen=True)
class Result:
    """One method at one message size in bytes; ``ratio`` is its time over that of ``send_object_list``, ``over_rpc``
    over that of RPC as it comes, ``over_rpc_tcp`` over that of RPC by TCP. ``least``: the shortest of all rounds, which
    a busy machine disturbs least. ``counts``: of one transfer, where taken."""

    method: str
    size: int
    seconds: float
    least: float
    ratio: float
    over_rpc: float
    over_rpc_tcp: float
    counts: Counts


def method_of(session: Session, name: str, size: int, count: int) -> Method:
    """``count`` calls of ``size`` bytes by the method ``name``."""
    tensor = torch.ones(size, dtype=torch.uint8)
    if name == PICKLED:
        return Pickled(session, tensor, count)
    if name in (RPC, RPC_TCP):
        return Called(session, tensor, count, FIRST if name == RPC else SECOND)
    layout = layout_of({"": ((None if name in UNKNOWN else size,), torch.uint8)})
    return Planned(session, name.removesuffix("?"), layout, {"": tensor}, count)


# -- counting ----------------------------------------------------------------------------------------------------------


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


def counts(session: Session, method: str, size: int) -> Counts:
    """What one transfer of ``size`` bytes by ``method`` takes, after the first. All ranks must call it together."""
    sending = method_of(session, method, size, 1)
    sending.step()

    def step() -> None:
        session.barrier("to count")
        if session.rank == 0:
            time.sleep(0.02)  # the receive is posted, so that nothing is left to a thread, which would not be seen
        sending.step()

    found = session.exchange(counted(step, size, _slots_written(sending)), "adding up")
    sending.close()
    return Counts(*(sum(rank[i] for rank in found) for i in range(3)))


def _slots_written(sending: Method) -> set[int]:
    """Where a one-sided transport writes."""
    if not isinstance(sending, Planned):
        return set()
    way = sending.transport.near if isinstance(sending.transport, NearAndFar) else sending.transport
    remote = getattr(way, "_remote", {})
    return {tensor.data_ptr() for parcel in remote.values() for tensor in parcel.values()}


# -- the run -----------------------------------------------------------------------------------------------------------


def rank_main(folder: Path, rounds: int, sizes: Sequence[int]) -> None:
    """One of the four ranks; rank 0 prints the results as JSON."""
    results: list[Result] = []
    with join(120) as session, ExitStack() as stack:
        stack.enter_context(remote_calls(session, folder, caller=FIRST))
        stack.enter_context(remote_calls(session, folder, caller=SECOND, only_tcp=True))
        session.watch.begin()
        for size in sizes:
            found = dict.fromkeys(METHODS, Counts(None, None, None)) | {
                name: counts(session, name, size) for name in COUNTED}
            took = times(session, size, rounds)
            median = {name: statistics.median(seconds) for name, seconds in took.items()}
            results += [Result(name, size, seconds, min(took[name]), seconds / median[PICKLED], seconds / median[RPC],
                               seconds / median[RPC_TCP], found[name]) for name, seconds in median.items()]
    if session.rank == 0:
        print(json.dumps([asdict(result) for result in results]))


def times(session: Session, size: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of a call with ``size`` bytes in each round, by method, on all ranks."""
    count = max(1, min(20, 2**24 // size))
    methods = {name: method_of(session, name, size, count) for name in METHODS}
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for turn in range(rounds + 1):
        order = list(methods.items())
        for name, method in order if turn % 2 else reversed(order):
            took = timed(session, method) / count
            if turn:  # the first round only warms up
                seconds[name].append(took)
    for method in methods.values():
        method.close()
    callers = session.exchange(seconds, "comparing")
    return {**callers[FIRST], RPC_TCP: callers[SECOND][RPC_TCP]}


def compare(rounds: int, sizes: Sequence[int] = SIZES) -> list[Result]:
    """All methods at all sizes, on processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        ended = launch_local(4, [sys.executable, "-m", "experiments.runtime.transports", "--rank", folder, "--rounds",
                                 str(rounds), "--sizes", *map(str, sizes)], timeout=280)
    if any(end.code for end in ended):
        raise RuntimeError("\n".join(end.errors for end in ended))
    rows = json.loads(ended[0].output.splitlines()[-1])
    return [Result(**{**row, "counts": Counts(**row["counts"])}) for row in rows]


def verdicts(results: Sequence[Result]) -> dict[str, list[int]]:
    """By statement, the sizes in bytes at which it does not hold."""
    large = 2**20
    return {
        "gloo is not slower than rpc": [r.size for r in results if r.method == "gloo" and r.over_rpc > 1],
        "gloo:sockets is not slower than rpc over TCP": [r.size for r in results if r.method == "gloo:sockets"
                                                         and r.over_rpc_tcp > 1],
        "shared takes at most half of rpc's time from 1 MiB on": [
            r.size for r in results if r.method == "shared" and r.size >= large and r.over_rpc > 0.5],
        "gloo with unknown shapes is not slower than rpc": [r.size for r in results if r.method == "gloo?"
                                                            and r.over_rpc > 1]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write; 1 if a planned transfer takes more than one message, or any allocation or copy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes")
    parser.add_argument("--output", type=Path, default=RESULTS / "transports.json")
    options = parser.parse_args(arguments)
    if options.rank:
        rank_main(Path(options.rank), options.rounds, options.sizes)
        return 0
    record = Record(options.output)
    results = compare(options.rounds, options.sizes)
    _show(results)
    record.write({"reference": PICKLED, "rounds": options.rounds, "fails_at": verdicts(results),
                  "results": [asdict(result) for result in results]})
    planned = [result.counts for result in results if result.method in PLANNED]
    return 0 if all(found == Counts(1, 0, 0) for found in planned) else 1


def _show(results: Sequence[Result]) -> None:
    print(f"{'bytes':>9}  {'method':<17}{'messages':>9}{'allocations':>12}{'copies':>7}{'ms':>9}{'least':>9}"
          f"{'/pickled':>9}{'/rpc':>7}{'/rpc TCP':>9}")
    for r in results:
        seen = ["" if n is None else str(n) for n in (r.counts.messages, r.counts.allocations, r.counts.copies)]
        print(f"{r.size:>9}  {r.method:<17}{seen[0]:>9}{seen[1]:>12}{seen[2]:>7}{1e3 * r.seconds:>9.3f}"
              f"{1e3 * r.least:>9.3f}{r.ratio:>9.3f}{r.over_rpc:>7.2f}{r.over_rpc_tcp:>9.2f}")
    for statement, sizes in verdicts(results).items():
        print(f"{statement}: {'holds' if not sizes else f'not at {sizes} bytes'}")


if __name__ == "__main__":
    sys.exit(main())

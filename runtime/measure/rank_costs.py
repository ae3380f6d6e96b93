"""The times of messages and collectives among the ranks of this machine, with the executor's calls.

As a program (``python -m weft.runtime.measure.rank_costs DEVICE SIZE,... REPEATS``, one process per rank), rank 0
prints one line of JSON: messages between neighbours (:func:`~weft.runtime.measure.links.measure_links`), and every
collective of each size among the first 2, 4, 8, ... ranks and among all. A lap of a collective ends when its last rank
ends. Gloo carries CPU tensors, NCCL GPU tensors.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from weft.runtime.communication.channel import all_gather, all_reduce, reduce_scatter
from weft.runtime.measure.links import measure_links
from weft.runtime.measure.measure import Sample, Timer
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.registry import device_for

#: The watchdog's timeout in seconds.
_PATIENCE = 120


def groups_of(ranks: int) -> list[tuple[int, ...]]:
    """The groups of the first 2, 4, 8, ... ranks, and of all."""
    return [tuple(range(count)) for count in sorted({ranks, *(2**k for k in range(1, ranks.bit_length())
                                                              if 2**k <= ranks)})]


def measure_messages(session: Session, sizes: Sequence[int]) -> dict[str, Any]:
    """The costs of messages between neighbours as a ``weft.device/1`` entry: medians over the pairs. All ranks call it
    together."""
    links = list(measure_links(session, sizes).values())
    bytes_ = sorted(link.seconds_a_byte for link in links)
    middle = statistics.median(bytes_)
    return {"latency": statistics.median(link.latency for link in links), "seconds_a_byte": middle,
            "spread": (bytes_[-1] - bytes_[0]) / middle if middle else 0.0, "pairs": len(links)}


def measure_collectives(session: Session, sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """The costs of every collective in each group, as ``weft.device/1`` entries. All ranks call it together and get the
    same result."""
    groups = groups_of(session.world)
    session.add_groups(groups)
    entries = []
    for ranks in groups:
        for size in sizes:
            for kind in _KINDS:
                laps: list[float] = []
                if session.rank in ranks:
                    laps = _laps(session, kind, size, session.group(ranks), repeats)
                every = session.exchange(laps, f"measuring {kind}")
                slowest = [max(lap) for lap in zip(*(every[rank] for rank in ranks), strict=True)]
                if slowest:
                    sample = Sample.of(slowest)
                    entries.append({"kind": kind, "ranks": len(ranks), "bytes": size, "seconds": sample.seconds,
                                    "spread": sample.spread, "repeats": sample.repeats})
    return entries


def _laps(session: Session, kind: str, size: int, group: dist.ProcessGroup, repeats: int) -> list[float]:
    """Seconds of each lap on this rank, without the first; empty if the collective is not supported."""
    timer = Timer(session.device)
    run = _KINDS[kind](group, max(1, size // 4), session.device)
    try:
        laps = []
        for _ in range(repeats + 1):
            dist.barrier(group)
            laps.append(timer.lap(run)[1])
    except (RuntimeError, NotImplementedError, ValueError):
        return []
    return laps[1:]


def _waiting(begin: Callable[[], dist.Work | None]) -> Callable[[], None]:
    def run() -> None:
        work = begin()
        if work is not None:
            work.wait()

    return run


def _parts(group: dist.ProcessGroup, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of about ``count`` elements, divisible by the number of ranks, and one of a rank's part."""
    each = max(1, count // dist.get_world_size(group))
    return (torch.ones(each * dist.get_world_size(group), device=device), torch.ones(each, device=device))


def _all_gather(group: dist.ProcessGroup, count: int, device: torch.device) -> Callable[[], None]:
    every, mine = torch.ones(count * dist.get_world_size(group), device=device), torch.ones(count, device=device)
    return _waiting(lambda: all_gather(every, mine, group))


def _reduce_scatter(group: dist.ProcessGroup, count: int, device: torch.device) -> Callable[[], None]:
    every, mine = _parts(group, count, device)
    return _waiting(lambda: reduce_scatter(mine, every, group))


def _all_reduce(group: dist.ProcessGroup, count: int, device: torch.device) -> Callable[[], None]:
    every = torch.ones(count, device=device)
    return _waiting(lambda: all_reduce(every, group))


def _all_to_all(group: dist.ProcessGroup, count: int, device: torch.device) -> Callable[[], None]:
    every, _ = _parts(group, count, device)
    received = torch.empty_like(every)
    return _waiting(lambda: dist.all_to_all_single(received, every, group=group, async_op=True))


_KINDS: Mapping[str, Callable[[dist.ProcessGroup, int, torch.device], Callable[[], None]]] = {
    "all_gather": _all_gather, "all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all}


def _lines(session: Session, sizes: Sequence[int], repeats: int) -> Iterator[str]:
    yield json.dumps({"messages": measure_messages(session, sizes),
                      "collectives": measure_collectives(session, sizes, repeats)})


def main(device: str, sizes: Sequence[int], repeats: int) -> None:
    """Run one rank."""
    where = device_for("gloo" if device == "cpu" else "nccl")
    with join(_PATIENCE, where) as session:
        session.watch.begin()
        for line in _lines(session, sizes, repeats):
            if session.rank == 0:
                print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2].split(",")], int(sys.argv[3]))

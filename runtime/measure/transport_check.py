"""Does every transport of this machine carry what it should, and how fast? One of two ranks asks.

Through each transport go tensors of several types, sizes and shapes, of shapes that the plan knows and of such that it
does not, several times with other contents; then they are looked at byte by byte. Then calls are timed
(:mod:`weft.runtime.measure.transport_methods`), all transports and torch's RPC in turns.

Run as a program (``python -m weft.runtime.measure.transport_check FOLDER DEVICE NAME,... SIZE,...``), rank 0 prints a
line of JSON for each transport as soon as it is known, so that what ends the process ends its own line only.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.runtime.measure.transport_methods import CALLED, Called, Method, Planned, remote_calls
from weft.runtime.plan.buffers import Layout
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.buffer_tensors import layout_of
from weft.runtime.transports.interface import Parcel, TransportError
from weft.runtime.transports.registry import device_for

__all__ = ["CASES", "RPC", "ROUNDS", "STEPS", "case_parcel", "check_transport", "contents"]

RPC = "rpc"
#: Kinds of messages, and how often each goes, with other contents each time.
CASES, STEPS = 5, 3
#: Timed rounds of each transport and size, at most.
ROUNDS = 7
#: What is sent: types of all sizes that numbers have.
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool,
          torch.complex64)


def case_parcel(case: int, size: int, step: int, device: torch.device) -> tuple[Layout, Parcel]:
    """A message of about ``size`` bytes, and how the plan declares it: all types at once; tensors whose bytes are not
    their numbers in order; such as have shapes that are not known, of few dimensions and of more than a description has
    room for, others in each ``step``; and one of no bytes."""
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
    """Numbers that both ranks know."""
    drawn = torch.Generator().manual_seed(step)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=drawn, dtype=torch.uint8).bool().to(device)
    return torch.randint(-9, 9, shape, generator=drawn, dtype=torch.int8).to(dtype).to(device)


def check_transport(session: Session, name: str, sizes: Sequence[int]) -> str:
    """What is wrong with the transport ``name``; nothing if all came as it was sent. All ranks must call it together,
    and are told the same. Raises :class:`~weft.runtime.transports.interface.TransportError` where it cannot work."""
    for size in sizes:
        for case in range(CASES):
            layout, first = case_parcel(case, size, 0, session.device)
            planned = Planned(session, name, layout, first, 2)
            for step in range(STEPS):
                _, planned.parcel = case_parcel(case, size, step, session.device)
                session.barrier("to send")
                wrong: list[str] = []
                planned.step(_Comparing(planned.parcel if session.rank == CALLED else planned.answer, wrong))
                if said := next(filter(None, chain(*session.exchange(wrong, "comparing"))), ""):
                    return f"of a message of {size} bytes, {layout or 'nothing'}, {said}"
            planned.close()
    return ""


@dataclass(frozen=True)
class _Comparing:
    """Notes how what comes differs from what is ``wanted``."""

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
    """The median seconds of a call with ``size`` bytes, by transport (with ``RPC``, of that too); all in turns. Behind
    ``?`` those of a message whose size the plan does not know."""
    tensor = torch.zeros(size, dtype=torch.uint8, device=session.device)
    count = max(2, min(20, 2**24 // size))
    known, unknown = (layout_of({"": ((length,), torch.uint8)}) for length in (size, None))
    methods: dict[str, Method] = {}
    for name in names:
        if name == RPC:
            methods[RPC] = Called(session, tensor, count)
        else:
            methods[name] = Planned(session, name, known, {"": tensor}, count)
            methods[f"{name}?"] = Planned(session, name, unknown, {"": tensor}, count)
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
    """Seconds of a step, on rank 0: it goes on when the last call has been answered."""
    session.barrier("to begin")
    begun = session.now()
    method.step()
    ended = session.now()
    session.barrier("to end a round")
    return ended - begun


def rpc_refuses(session: Session, stack: ExitStack, calls: AbstractContextManager[None]) -> str:
    """Enter ``calls`` until ``stack`` ends; why that failed on one of the ranks, if it did. It is there to be compared
    with: without it transports are timed all the same."""
    said = ""
    try:
        stack.enter_context(calls)
    except RuntimeError as error:
        said = " ".join(str(error).split()) or "no message"
    return next(filter(None, session.exchange(said, "starting RPC")), "")


def main(folder: Path, device: str, names: Sequence[str], sizes: Sequence[int]) -> None:
    """One of the two ranks."""
    where = torch.device("cpu") if device == "cpu" else device_for("shared")
    with join(120, where) as session, ExitStack() as stack:
        session.watch.begin()
        good = []
        for name in names:
            if name == RPC:
                refused = rpc_refuses(session, stack, remote_calls(session, folder))
                good += [] if refused else [name]
                _say(session, {"name": name, "wrong": "", "refused": refused})
                continue
            try:
                wrong, refused = check_transport(session, name, sizes), ""
            except TransportError as error:
                wrong, refused = "", str(error)
            if not wrong and not refused:
                good.append(name)
            _say(session, {"name": name, "wrong": wrong, "refused": refused})
        for size in sizes:
            _say(session, {"size": size, "seconds": time_methods(session, good, size)})


def _say(session: Session, line: Mapping[str, Any]) -> None:
    if session.rank == 0:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), [int(size) for size in sys.argv[4].split(",")])

"""The transports of ``--transport``. A new one is an entry of :data:`TRANSPORTS`, and its ``open`` function.

``gloo``
    From CPU memory to CPU memory, by sockets between hosts. On one host these are slow: there the sender writes
    directly into the receiver's memory (:mod:`weft.runtime.transports.by_host`), unless ``gloo:sockets`` is given.
``nccl``
    From GPU to GPU, one communicator for every pair of ranks. Receives are posted at their RECV, as a posted receive of
    NCCL is a kernel that occupies the GPU until the message has arrived.
``shared``
    One-sided, between processes of one host, through shared memory, or by CUDA IPC: the sender writes into the
    receiver's slot.
``symmetric``
    One-sided, between the GPUs of one host, one per rank, in ``torch.distributed._symmetric_memory``.
``emulated:L,B``
    Shared memory that emulates a slow link, for tests. A message arrives no earlier than L seconds plus its size / (B
    bytes per second) after its send. Messages from one rank to another are serialised.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.interface import RunsOn, Transport, TransportError, TransportKind

if TYPE_CHECKING:
    import torch

    from weft.runtime.ranks.session import Session


def _gloo(session: Session, tables: Sequence[BufferTable], parameters: str | None) -> Transport:
    if parameters == "sockets":
        return _process_groups(session, tables, "gloo")
    from weft.runtime.transports.by_host import by_host

    return by_host(session, tables, "gloo")


def _process_groups(session: Session, tables: Sequence[BufferTable], backend: str) -> Transport:
    from weft.runtime.transports.process_groups import ProcessGroupTransport

    return ProcessGroupTransport(session, tables[session.rank], backend)


def _shared(session: Session, tables: Sequence[BufferTable], parameters: str | None) -> Transport:
    from weft.runtime.transports.one_host.shared_memory import share

    return share(session, tables, None if parameters is None else _link(parameters))


def _symmetric(session: Session, tables: Sequence[BufferTable], parameters: str | None) -> Transport:
    from weft.runtime.transports.one_host.gpu_slots import SymmetricSlots, require_symmetric_memory
    from weft.runtime.transports.one_host.shared_memory import share

    require_symmetric_memory(session)
    return share(session, tables, gpu_slots=SymmetricSlots)


def _link(parameters: str | None) -> tuple[float, float] | None:
    """Latency in seconds and bytes per second of an emulated link; ``None`` if ``parameters`` are invalid."""
    try:
        latency, bandwidth = (float(part) for part in (parameters or "").split(","))
    except ValueError:
        return None
    return (latency, bandwidth) if 0 <= latency < float("inf") and bandwidth > 0 else None


def _nothing(parameters: str | None) -> bool:
    return parameters is None


#: All transports, in the order in which error messages list them.
TRANSPORTS: tuple[TransportKind, ...] = (
    TransportKind("gloo", "gloo, gloo:sockets", RunsOn.CPU, _gloo, lambda parameters: parameters in (None, "sockets")),
    TransportKind("nccl", "nccl", RunsOn.OWN_GPU, lambda session, tables, _: _process_groups(session, tables, "nccl"),
                  _nothing, posts_early=False),
    TransportKind("shared", "shared", RunsOn.ANY_GPU, _shared, _nothing),
    TransportKind("symmetric", "symmetric", RunsOn.OWN_GPU, _symmetric, _nothing),
    TransportKind("emulated", "emulated:LATENCY,BANDWIDTH, in seconds and bytes per second (emulated:1e-3,1e9)",
                  RunsOn.CPU, _shared, lambda parameters: _link(parameters) is not None),
)


def parse_transport(text: str) -> tuple[TransportKind, str | None]:
    """The transport that ``text`` names, ``NAME`` or ``NAME:PARAMETERS``, and its parameters. Raises
    :class:`~weft.runtime.transports.interface.TransportError`."""
    name, colon, parameters = text.partition(":")
    given = parameters if colon else None
    for kind in TRANSPORTS:
        if kind.name == name and kind.takes(given):
            return kind, given
    *others, last = (kind.usage for kind in TRANSPORTS)
    raise TransportError(f"--transport is {text!r}, it must be {', '.join(others)} or {last}")


def open_transport(session: Session, tables: Sequence[BufferTable]) -> Transport:
    """The transport ``session.transport``, with buffers allocated and ranks connected in pairs.

    All ranks must call it together. Raises :class:`~weft.runtime.transports.interface.TransportError` for a transport
    that does not exist or cannot work.
    """
    kind, parameters = parse_transport(session.transport)
    return kind.open(session, tables, parameters)


def device_for(transport: str | None) -> torch.device:
    """The device of a rank's stages under ``transport`` (``None``: unnamed, the machine decides)."""
    import torch

    from weft.runtime.ranks.gpus import lacks_gpus

    runs_on = RunsOn.OWN_GPU if transport is None else parse_transport(transport)[0].runs_on
    count = torch.cuda.device_count() if runs_on is not RunsOn.CPU and torch.cuda.is_available() else 0
    if not count or (runs_on is RunsOn.OWN_GPU and lacks_gpus()):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count)

"""The transports that ``--transport`` knows. A new one is a file of this room and a line in :data:`TRANSPORTS`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.transports.emulated import Emulated
from weft.runtime.transports.gloo import Gloo
from weft.runtime.transports.interface import Devices, Transport, TransportError, TransportKind
from weft.runtime.transports.nccl import Nccl
from weft.runtime.transports.shared import Shared
from weft.runtime.transports.symmetric import Symmetric

if TYPE_CHECKING:
    import torch

    from weft.runtime.ranks.session import Session

__all__ = ["TRANSPORTS", "device_for", "open_transport", "parse_transport"]

#: All transports, in the order in which error messages list them.
TRANSPORTS: tuple[type[TransportKind], ...] = (Gloo, Nccl, Shared, Symmetric, Emulated)


def parse_transport(text: str) -> TransportKind:
    """The transport that ``text`` names: ``NAME`` or ``NAME:PARAMETERS``. Raises
    :class:`~weft.runtime.transports.interface.TransportError`."""
    name, colon, parameters = text.partition(":")
    for kind in TRANSPORTS:
        if kind.name == name and (found := kind.parse(parameters if colon else None)) is not None:
            return found
    *others, last = (kind.usage for kind in TRANSPORTS)
    raise TransportError(f"--transport is {text!r}, it must be {', '.join(others)} or {last}")


def open_transport(session: Session, tables: Sequence[BufferTable]) -> Transport:
    """The transport ``session.transport``, with its buffers made and its ranks connected in pairs.

    All ranks must call it together. Raises :class:`~weft.runtime.transports.interface.TransportError` where that
    transport does not exist or cannot work.
    """
    return parse_transport(session.transport).open(session, tables)


def device_for(transport: str | None) -> torch.device:
    """Where a rank's stages run under ``transport`` (``None``: none is named, and the device decides)."""
    import torch

    devices = Devices.OWN_GPU if transport is None else parse_transport(transport).devices
    count = torch.cuda.device_count() if devices is not Devices.CPU and torch.cuda.is_available() else 0
    if not count or (devices is Devices.OWN_GPU and count < int(os.environ.get("LOCAL_WORLD_SIZE", "1"))):
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local % count if devices is Devices.ANY_GPU else local)

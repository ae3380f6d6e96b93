"""How tensors move between two ranks: gloo from CPU memory, NCCL from GPU memory, behind one small face.

Messages between two ranks arrive in the order in which they were sent, and carry no tag: a checked program starts them
in the same order on both sides. NCCL would hang otherwise, gloo would deliver the wrong tensor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from runtime.program import Recv, Send

__all__ = ["Transfer", "receive", "send"]

LOOK = 20e-6  # seconds between two looks at a GPU transfer


@dataclass(frozen=True)
class Transfer:
    """A transfer under way. Keep it, and thereby its ``parcel``, until :meth:`wait` returns."""

    instruction: Send | Recv
    parcel: Mapping[str, Tensor]
    handles: tuple[dist.Work, ...]

    def wait(self) -> None:
        """Wait, on the host, until it is over. Raises ``ConnectionError`` if the peer is gone.

        On a GPU the wait is on the host too, rather than in the stream alone, so that the watchdog can say which
        transfer a hanging program waits for.
        """
        try:
            for tensor, handle in zip(self.parcel.values(), self.handles, strict=True):
                while tensor.is_cuda and not handle.is_completed():
                    time.sleep(LOOK)
                handle.wait()
        except RuntimeError as error:
            raise _gone(self.instruction, error) from None


def send(parcel: Mapping[str, Tensor], instruction: Send, peer: int) -> Transfer:
    """Start sending ``parcel``, tensor by tensor, to the process ``peer``. Raises ``ConnectionError`` if it is gone."""
    parcel = {name: tensor.contiguous() for name, tensor in parcel.items()}
    try:
        return Transfer(instruction, parcel, tuple(_begun(dist.isend(tensor, peer)) for tensor in parcel.values()))
    except RuntimeError as error:
        raise _gone(instruction, error) from None


def receive(parcel: Mapping[str, Tensor], instruction: Recv, peer: int) -> Transfer:
    """Start receiving into ``parcel``, whose tensors the process ``peer`` sends in the same order. Raises
    ``ConnectionError`` if it is gone."""
    try:
        return Transfer(instruction, parcel, tuple(_begun(dist.irecv(tensor, peer)) for tensor in parcel.values()))
    except RuntimeError as error:
        raise _gone(instruction, error) from None


def _begun(handle: dist.Work | None) -> dist.Work:
    assert handle is not None  # it is None only on a rank outside the group
    return handle


def _gone(instruction: Send | Recv, error: RuntimeError) -> ConnectionError:
    reason = str(error).splitlines()[0].split(". ")[0].removeprefix("[").partition("] ")[2] or type(error).__name__
    return ConnectionError(f"lost rank {instruction.peer} ({reason})")

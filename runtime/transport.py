"""How tensors move between two ranks: gloo from CPU memory, NCCL from GPU memory, behind one small face.

Messages between two ranks arrive in the order in which they were sent, and carry no tag: a checked program starts them
in the same order on both sides. NCCL would hang otherwise, gloo would deliver the wrong tensor.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from runtime.program import Recv, Send

__all__ = ["Transfer", "receive", "send"]

LOOK = 20e-6  # seconds between two looks at a GPU transfer


@dataclass(frozen=True)
class Transfer:
    """A transfer under way. Keep it, and thereby ``tensor``, until :meth:`wait` returns."""

    instruction: Send | Recv
    tensor: Tensor
    handle: dist.Work

    def wait(self) -> None:
        """Wait, on the host, until it is over. Raises ``ConnectionError`` if the peer is gone.

        On a GPU the wait is on the host too, rather than in the stream alone, so that the watchdog can say which
        transfer a hanging program waits for.
        """
        try:
            if self.tensor.is_cuda:
                while not self.handle.is_completed():
                    time.sleep(LOOK)
            self.handle.wait()
        except RuntimeError as error:
            raise _gone(self.instruction, error) from None


def send(tensor: Tensor, instruction: Send) -> Transfer:
    """Start sending ``tensor``. Raises ``ConnectionError`` if the peer is gone."""
    tensor = tensor.contiguous()
    try:
        return Transfer(instruction, tensor, _begun(dist.isend(tensor, instruction.peer)))
    except RuntimeError as error:
        raise _gone(instruction, error) from None


def receive(buffer: Tensor, instruction: Recv) -> Transfer:
    """Start receiving into ``buffer``. Raises ``ConnectionError`` if the peer is gone."""
    try:
        return Transfer(instruction, buffer, _begun(dist.irecv(buffer, instruction.peer)))
    except RuntimeError as error:
        raise _gone(instruction, error) from None


def _begun(handle: dist.Work | None) -> dist.Work:
    assert handle is not None  # it is None only on a rank outside the group
    return handle


def _gone(instruction: Send | Recv, error: RuntimeError) -> ConnectionError:
    reason = str(error).splitlines()[0].split(". ")[0].removeprefix("[").partition("] ")[2] or type(error).__name__
    return ConnectionError(f"lost rank {instruction.peer} ({reason})")

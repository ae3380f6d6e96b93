"""The vocabulary of a PyTorch schedule: ``torch.distributed.pipelining``'s CSV, one row a rank, one cell an action.

==============================  ========================================================================================
cell                            meaning
==============================  ========================================================================================
``2F0``                         forward of stage 2 on micro-batch 0
``2B0``                         full backward
``2I0``, ``2W0``                input gradient, weight gradient. On stage 0 PyTorch's I does nothing, W a full backward
``2SEND_F0``, ``3RECV_F0``      stage 2's activation leaves for stage 3 and is received there: each names its own stage
``3SEND_B0``, ``2RECV_B0``      stage 3's input gradient leaves for stage 2 and is received there
``2REDUCE_GRAD``                ends stage 2's gradients; with ``scale_grads`` divides them by the micro-batches
``2WAIT_SEND_F0`` and so on     from 2.15 on: what was begun is waited for
``2UNSHARD``, ``2RESHARD``      FSDP's all-gather and its undoing
``(0F5;7B3)OVERLAP_F_B``        two actions that run as one; unless told otherwise PyTorch runs them one after the other
(empty)                         a bubble, in a schedule without communication only
==============================  ========================================================================================

Read from PyTorch's sources of 2.6, 2.8, 2.9.1, 2.10, 2.13 and 2.15; :class:`TorchVersion` has the differences between
versions. PyTorch reads a cell as far as it understands it (``0F2typo`` is ``0F2``); here all of it must be an action.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Actions that compute.
COMPUTE = ("F", "B", "I", "W")
_WITH_MICRO_BATCH = (*COMPUTE, "SEND_F", "RECV_F", "SEND_B", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B")
_WITHOUT = ("REDUCE_GRAD", "WAIT_REDUCE_GRAD", "UNSHARD", "RESHARD")
_ACTION = re.compile(rf"([0-9]+)(?:({'|'.join(_WITH_MICRO_BATCH)})([0-9]+)|({'|'.join(_WITHOUT)}))", re.ASCII)
_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B", re.ASCII)


class TorchAction(NamedTuple):
    """One action; ``micro_batch`` is ``None`` for those of a stage as a whole."""

    stage: int
    kind: str
    micro_batch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.micro_batch is None else self.micro_batch}"


class TorchVersion(NamedTuple):
    """A PyTorch version, as far as the text of a schedule depends on it."""

    major: int
    minor: int

    @classmethod
    def of(cls, text: str) -> TorchVersion:
        """The version ``text`` (``2.13``, ``2.13.0+cpu``). Raises ``ValueError`` for anything before 2.6, whose
        schedules are not known here, and for anything but a version."""
        match = re.match(r"(\d{1,4})\.(\d{1,4})(?![0-9])", text, re.ASCII)
        version = cls(int(match[1]), int(match[2])) if match else None
        if version is None or version < (2, 6):
            raise ValueError(f"the PyTorch version is {text!r}, it must be 2.6 or newer, as 2.13")
        return version

    @property
    def reduces_gradients(self) -> bool:
        """Whether it ends a stage's gradients at ``REDUCE_GRAD`` (from 2.10 on) and nowhere else."""
        return self >= (2, 10)

    @property
    def waits(self) -> bool:
        """Whether every send and reduction must be waited for (from 2.15 on)."""
        return self >= (2, 15)


def parse_cell(text: str) -> tuple[TorchAction, ...]:
    """The actions of one cell, in the order in which they run; none for a bubble.

    Raises ``ValueError`` for anything else, with a sentence that starts with the text.
    """
    text = text.strip()
    if not text:
        return ()
    overlap = _OVERLAP.fullmatch(text)
    actions = tuple(_action(part.strip()) for part in (overlap[1].split(";") if overlap else [text]))
    if any(action is None for action in actions):
        raise ValueError(f"{text!r:.60} is no action of a PyTorch schedule, it must look like 2F0, 2B0, 2I0, 2W0, "
                         "2SEND_F0, 2REDUCE_GRAD or (0F5;7B3)OVERLAP_F_B")
    return tuple(action for action in actions if action is not None)


def _action(text: str) -> TorchAction | None:
    match = _ACTION.fullmatch(text)
    if match is None or max(map(len, re.findall("[0-9]+", text))) > 9:
        return None
    return TorchAction(int(match[1]), match[2], int(match[3])) if match[2] else TorchAction(int(match[1]), match[4])

"""Faults that must stop a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor


class RunError(RuntimeError):
    """A run that must not go on: all ranks end with its sentence and exit code 1."""


def require_finite(losses: Mapping[tuple[int, str, int], Tensor], step: int) -> None:
    """Raise :class:`RunError`, naming the micro-batch, if one of batch ``step``'s ``losses`` is infinite or no number.

    They stand by stage, name and micro-batch. It stands before the optimizer's step, and before a checkpoint.
    """
    for (_, _, micro_batch), loss in sorted(losses.items()):
        value = sum(loss.detach().reshape(-1).tolist())  # one number, or a sum and a count
        if not math.isfinite(value):
            raise RunError(f"the loss of micro-batch {micro_batch} in batch {step} is {value}: nothing of this batch "
                           "is kept")

"""Losses as a sum and a count: a batch's loss is the mean over its count, such as the number of tokens with a label,
even if its micro-batches are unequal.

Let micro-batch m have the sum s_m and the count c_m. The loss of a batch is (sum_m s_m) / (sum_m c_m), and its gradient
(sum_m grad s_m) / (sum_m c_m), as counts have no gradient. Both need the count of the whole batch, over all replicas,
which is unknown at the first backward: so sums are differentiated, and gradients are divided once, after the last
backward. Between stages and executor the two are one tensor, in a shape that no unreduced loss has, and in double
precision, which represents any count exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SHAPE = (2, 1, 1)


class LossError(ValueError):
    """The loss is not a sum and a count; the message is to follow the name of its source."""


def counted(total: Tensor, count: Tensor | float) -> Tensor:
    """``total``, the sum of a micro-batch's losses, and ``count``, their number, as one loss: for a stage's value that
    is named in ``Training.losses``.

    Raises :class:`LossError` for anything but numbers.
    """
    if not isinstance(total, Tensor) or total.numel() != 1 or not total.is_floating_point():
        raise LossError(f"the loss is (sum, count), but its sum is {_looks(total)}: give a tensor with one "
                        "floating-point number")
    number = isinstance(count, int | float) and not isinstance(count, bool)
    if not number and not (isinstance(count, Tensor) and count.numel() == 1 and not count.is_complex()):
        raise LossError(f"the loss is (sum, count), but its count is {_looks(count)}: give one number")
    plain = torch.as_tensor(count, device=total.device).detach()
    return torch.stack([total.reshape(1, 1).double(), plain.reshape(1, 1).double()])


def one_tensor(loss: Any) -> Any:
    """``loss`` as one tensor if it is a tuple ``(sum, count)``; anything else unchanged.

    Raises :class:`LossError` for a tuple of other things.
    """
    if not isinstance(loss, tuple):
        return loss
    if len(loss) != 2:
        raise LossError(f"the loss is a tuple of {len(loss)}, it must be one number, or (sum, count)")
    return counted(*loss)


def is_counted(loss: Tensor) -> bool:
    """Whether ``loss`` is a result of :func:`counted`."""
    return tuple(loss.shape) == _SHAPE


def _looks(value: object) -> str:
    return f"of shape {tuple(value.shape)} and type {value.dtype}" if isinstance(value, Tensor) else type(
        value).__name__

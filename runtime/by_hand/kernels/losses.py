"""Losses."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.runtime.by_hand.kernels.registry import KERNELS, back_of, of


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError(f"cross_entropy: a target is not one of 0 to {logits.shape[-1] - 1}: targets that are ignored "
                         "are not known here")
    return torch.logsumexp(logits, -1) - logits.gather(-1, targets.long()[..., None])[..., 0]


KERNELS.update({"cross_entropy": of(_cross_entropy), "cross_entropy_grad": back_of(lambda call: _cross_entropy)})

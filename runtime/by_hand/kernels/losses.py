"""Losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, back_of


def _cross_entropy(call: KernelCall) -> Callable[[Tensor, Tensor], Tensor]:
    def run(logits: Tensor, targets: Tensor) -> Tensor:
        ignored, classes = call.attributes.get("ignored", -100), logits.shape[-1]
        found = targets.long()
        counts = found != ignored
        if (counts & ((found < 0) | (found >= classes))).any():
            raise ValueError(f"cross_entropy: a target is not one of 0 to {classes - 1}, nor {ignored}, which is "
                             "ignored")
        at = found.where(counts, torch.zeros_like(found))
        each = torch.logsumexp(logits, -1) - logits.gather(-1, at[..., None])[..., 0]
        return each.where(counts, torch.zeros_like(each))

    return run


KERNELS.update({"cross_entropy": lambda inputs, call: (_cross_entropy(call)(inputs[0], inputs[1]),),
                "cross_entropy_grad": back_of(_cross_entropy)})

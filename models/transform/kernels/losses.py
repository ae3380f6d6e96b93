"""Losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.transform.annotation import PlanError
from weft.models.transform.kernels.attention import softmax_over
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Kernel, of_input


def _cross_entropy(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    logits, targets = arrays[0], arrays[1].astype(int)
    if targets.size and not 0 <= targets.min() <= targets.max() < logits.shape[-1]:
        raise PlanError(f"cross_entropy: a target is {targets.min() if targets.min() < 0 else targets.max()}, it must "
                        f"be 0 to {logits.shape[-1] - 1}: targets that are ignored are not known here")
    high = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - high).sum(axis=-1)) + high[..., 0]
    return (total - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0],)


def _cross_entropy_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, logits, targets = arrays
    back = softmax_over(logits, (logits.ndim - 1,))
    at = targets.astype(int)[..., None]
    np.put_along_axis(back, at, np.take_along_axis(back, at, -1) - 1, axis=-1)
    return (back * gradient[..., None],)


KERNELS.update({
    "cross_entropy": Kernel(_cross_entropy, of_input("cross_entropy_grad", ("i0", "i1"))),
    "cross_entropy_grad": Kernel(_cross_entropy_grad),
})

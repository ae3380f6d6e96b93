"""Losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.transform.annotation import PlanError
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Kernel, of_input
from weft.models.transform.kernels.softmax import softmax_over


def _counted(targets: Array, classes: int, call: Call) -> tuple[Array, Array]:
    """Targets as indices, and which of them count; of one that is ignored, the first class stands in."""
    found = targets.astype(int)
    counts = found != call.attributes.get("ignored", -100)
    wrong = found[counts & ((found < 0) | (found >= classes))]
    if wrong.size:
        raise PlanError(f"cross_entropy: a target is {wrong.flat[0]}, it must be 0 to {classes - 1}, or "
                        f"{call.attributes.get('ignored', -100)} where it is ignored")
    return np.where(counts, found, 0), counts


def _cross_entropy(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    logits = arrays[0]
    targets, counts = _counted(arrays[1], logits.shape[-1], call)
    high = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - high).sum(axis=-1)) + high[..., 0]
    return ((total - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]) * counts,)


def _cross_entropy_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, logits = arrays[:2]
    targets, counts = _counted(arrays[2], logits.shape[-1], call)
    back = softmax_over(logits, (logits.ndim - 1,))
    np.put_along_axis(back, targets[..., None], np.take_along_axis(back, targets[..., None], -1) - 1, axis=-1)
    return (back * (gradient * counts)[..., None],)


KERNELS.update({
    "cross_entropy": Kernel(_cross_entropy, of_input("cross_entropy_grad", ("i0", "i1"))),
    "cross_entropy_grad": Kernel(_cross_entropy_grad),
})

"""Optimizers' steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.transform.kernels.registry import KERNELS, Array, Call, Kernel


def _sgd(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (arrays[0] - call.attributes["rate"] * arrays[1],)


def _adam(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """The corrections are those of step ``step`` (default 1), or of the fifth input."""
    weight, gradient, mean, square = arrays[:4]
    one, two = call.attributes.get("betas", (0.9, 0.999))
    step = float(arrays[4]) if len(arrays) > 4 else call.attributes.get("step", 1)
    weight = weight * (1 - call.attributes["rate"] * call.attributes.get("decay", 0.0))
    mean = one * mean + (1 - one) * gradient
    square = two * square + (1 - two) * gradient**2
    move = (mean / (1 - one**step)) / (np.sqrt(square / (1 - two**step)) + call.attributes.get("eps", 1e-8))
    return weight - call.attributes["rate"] * move, mean, square


KERNELS.update({"sgd": Kernel(_sgd), "adam": Kernel(_adam)})

"""What parts compute, with torch: the kernels of :mod:`weft.models.transform.kernels` by the same names and files."""

from weft.runtime.by_hand.kernels import (  # noqa: F401
    along,
    attention,
    convolutions,
    elementwise,
    indices,
    losses,
    made,
    norms,
    pieces,
    pointwise,
    softmax,
    sums,
    tables,
    updates,
)
from weft.runtime.by_hand.kernels.registry import KERNELS, in_torch, run_kernel

__all__ = ["KERNELS", "in_torch", "run_kernel"]

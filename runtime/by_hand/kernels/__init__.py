"""What parts compute, with torch: the kernels of :mod:`weft.models.transform.kernels` by the same names and files."""

from weft.runtime.by_hand.kernels import (  # noqa: F401
    attention,
    convolutions,
    losses,
    norms,
    pieces,
    pointwise,
    sums,
    tables,
    updates,
)
from weft.runtime.by_hand.kernels.registry import KERNELS, run_kernel

__all__ = ["KERNELS", "run_kernel"]

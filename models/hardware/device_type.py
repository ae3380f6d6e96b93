"""A type of device: peaks, links, and the shares of them attained by kernels and collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias


class DeviceError(ValueError):
    """An unsupported request of a device, in one sentence."""


#: Kinds of kernels that attain a similar share of a device's peaks.
KernelClass: TypeAlias = Literal["gemm", "bmm", "attention", "convolution", "pointwise", "norm", "softmax", "embedding",
                                 "loss"]
Pass: TypeAlias = Literal["forward", "backward"]

_KINDS: Mapping[str, KernelClass] = {
    "linear": "gemm", "expert_linear": "gemm", "matmul": "bmm", "attention": "attention", "convolution": "convolution",
    "layer_norm": "norm", "rms_norm": "norm", "batch_norm": "norm", "softmax": "softmax", "embedding": "embedding",
    "embedding_bag": "embedding", "relative_bias": "embedding", "cross_entropy": "loss",
    # PyTorch's names
    "mm": "gemm", "addmm": "gemm", "bmm": "bmm", "baddbmm": "bmm", "einsum": "bmm", "conv1d": "convolution",
    "conv2d": "convolution", "conv3d": "convolution", "scaled_dot_product_attention": "attention", "group_norm": "norm",
    "instance_norm": "norm", "log_softmax": "softmax", "cross_entropy_loss": "loss", "nll_loss": "loss",
}


def kernel_class(kind: str) -> KernelClass:
    """The class of an operator of ``kind``; unknown kinds count as pointwise."""
    return _KINDS.get(kind, "pointwise")


@dataclass(frozen=True, slots=True)
class Reach:
    """Shares of the peak compute rate and of the memory bandwidth attained by a class of kernels, each in (0, 1]."""

    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class DeviceType:
    """One type of device.

    ``memory``: bytes reported by CUDA (for the CPU an assumption). ``flops``: operations a second of matrix products by
    dtype (on tensor cores if available). ``vector_flops``: of element-wise kernels. ``bandwidth``: bytes a second of
    its memory. ``link`` and ``link_latency``: bytes a second of one direction to a neighbour in the same machine, and
    seconds a message; ``network`` likewise to another machine. ``launch``: minimum seconds of an operator, by pass;
    ``hides_launches``: whether operators are launched while others run, so that longer ones hide it. ``reach``: by
    class and pass. ``origin``: the origin of the shares, a sentence. ``rings``: the share of ``link`` attained by
    collectives, by kind and number of devices (for others, the next smaller's); empty if equal to V100s
    (:data:`weft.models.layers.collectives.REACHED`). Measured, if available: ``collectives``, bytes and seconds by kind
    and number of devices in a machine; ``products``, operations and operations a second of matrix products by pass and
    dtype; both by rising size.
    """

    name: str
    memory: int
    flops: Mapping[str, float]
    vector_flops: float
    bandwidth: float
    link: float
    link_latency: float
    network: float
    network_latency: float
    launch: Mapping[Pass, float]
    reach: Mapping[tuple[KernelClass, Pass], Reach]
    origin: str
    rings: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    collectives: Mapping[tuple[str, int], Sequence[tuple[int, float]]] = field(default_factory=dict)
    products: Mapping[tuple[Pass, str], Sequence[tuple[float, float]]] = field(default_factory=dict)
    hides_launches: bool = False

    def peak(self, dtype: str) -> float:
        """Operations a second of matrix products in ``dtype``; those of element-wise kernels for types other than
        floating-point.

        Raises :class:`DeviceError` for a type of fewer than 16 bits not supported by the device.
        """
        if dtype not in self.flops and dtype.startswith("float8"):
            raise DeviceError(f"{self.name} does not compute in {dtype}, only in {', '.join(self.flops)}; take one of "
                              "these, or a device with FP8 (h100, h200, b200)")
        return self.flops.get(dtype, self.vector_flops)

    def product_rate(self, flops: float, dtype: str, which: Pass) -> float | None:
        """Measured operations a second of a matrix product of this size, interpolated linearly in the logarithm of
        sizes; ``None`` if none was measured."""
        points = self.products.get((which, dtype)) or self.products.get(("forward", dtype))
        if not points:
            return None
        if flops <= points[0][0] or len(points) == 1:
            return points[0][1]
        for (small, low), (large, high) in pairwise(points):
            if flops <= large:
                return low + (high - low) * math.log(flops / small) / math.log(large / small)
        return points[-1][1]

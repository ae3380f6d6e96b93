"""Device types: what they can do at most, and what share of it kernels reach.

*Peaks* are the vendors' (NVIDIA's data sheets for V100 SXM2, A100 SXM4, H100 SXM5, H200 SXM5 and HGX B200 at 1,000 W:
dense tensor-core rates, memory bandwidth, NVLink bandwidth of one direction). *Reached shares* (:class:`Reach`) are
fitted to measured operators by ``experiments/models/roofline.py``: V100's on Aceso's profile of T5-770M, judged on that
of GPT-1.3B. The other GPUs have no profile here, so theirs are V100's, with the matrix products of H100, H200 and B200
held to two thirds of the peak at most (which grew eight-fold and more, memory bandwidth less than nine-fold). That is a
model, not a measurement: on A100 its steps are within a tenth of eight published ones
(``experiments/models/published.py``), on the others its error is unknown; ``weft.estimate`` says so. *Launches* of the
V100 are fitted too, host included; the others' are what PyTorch takes on current hosts, 5 to 10 us, the longer of
these. ``v100`` and ``a100`` are the larger ones, of 32 and 80 GB. *Memory* is what CUDA reports as a device's total,
rounded down: less than the data sheet's, as the driver and error correction keep some (PyTorch's messages say 15.77,
31.74, 39.39 to 39.59, 79.10 to 79.25, 139.72 to 139.81 and 178.35 GiB). ``cpu`` is one core of a server CPU with
256-bit fused multiply-adds at 3 GHz (2 x 8 x 2 x 3e9 in fp32) and an even share of its memory bandwidth: for orders of
magnitude only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

__all__ = ["DEVICES", "DeviceType", "KernelClass", "Pass", "Reach", "kernel_class"]

#: Kinds of kernels that reach a like share of a device's peaks.
KernelClass: TypeAlias = Literal["gemm", "bmm", "attention", "convolution", "pointwise", "norm", "softmax", "embedding",
                                 "loss"]
Pass: TypeAlias = Literal["forward", "backward"]

GIB = 1024**3
_KINDS: Mapping[str, KernelClass] = {
    "linear": "gemm", "expert_linear": "gemm", "matmul": "bmm", "attention": "attention", "convolution": "convolution",
    "layer_norm": "norm", "rms_norm": "norm", "batch_norm": "norm", "softmax": "softmax", "embedding": "embedding",
    "embedding_bag": "embedding", "relative_bias": "embedding", "cross_entropy": "loss",
    # what PyTorch calls them
    "mm": "gemm", "addmm": "gemm", "bmm": "bmm", "baddbmm": "bmm", "einsum": "bmm", "conv1d": "convolution",
    "conv2d": "convolution", "conv3d": "convolution", "scaled_dot_product_attention": "attention", "group_norm": "norm",
    "instance_norm": "norm", "log_softmax": "softmax", "cross_entropy_loss": "loss", "nll_loss": "loss",
}


def kernel_class(kind: str) -> KernelClass:
    """The class of an operator of ``kind``; what is not known moves bytes, element by element."""
    return _KINDS.get(kind, "pointwise")


@dataclass(frozen=True, slots=True)
class Reach:
    """Shares of the peak compute rate and of the memory bandwidth that a class of kernels reaches, each in (0, 1]."""

    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class DeviceType:
    """One type of device.

    ``memory``: bytes that CUDA reports (of the CPU an assumption). ``flops``: operations a second by dtype, matrix
    products (tensor cores where there are some). ``vector_flops``: of element-wise kernels. ``bandwidth``: bytes a
    second of its memory. ``link`` and ``link_latency``: bytes a second of
    one direction to a neighbour in the same machine, and seconds a message; ``network`` likewise to another machine.
    ``launch``: seconds that an operator takes at least, by pass. ``reach``: by class and pass. ``origin``: where the
    shares come from, a sentence.
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


#: Fitted by experiments/models/roofline.py on T5-770M, micro-batches of 1, 2, 4 and 8
#: (experiments/results/roofline.json), but for fused attention and convolutions, which the profiles do not have: those
#: are assumed.
_V100_REACH: Mapping[tuple[KernelClass, Pass], Reach] = {
    ("gemm", "forward"): Reach(0.6824, 0.2104), ("gemm", "backward"): Reach(0.7983, 0.3503),
    ("bmm", "forward"): Reach(0.2662, 0.7676), ("bmm", "backward"): Reach(0.2995, 1.0),
    ("attention", "forward"): Reach(0.5, 0.8), ("attention", "backward"): Reach(0.4, 0.8),
    ("convolution", "forward"): Reach(0.5, 0.7), ("convolution", "backward"): Reach(0.5, 0.7),
    ("pointwise", "forward"): Reach(1.0, 0.7983), ("pointwise", "backward"): Reach(1.0, 0.9712),
    ("norm", "forward"): Reach(1.0, 1.0), ("norm", "backward"): Reach(1.0, 0.3789),
    ("softmax", "forward"): Reach(1.0, 0.7097), ("softmax", "backward"): Reach(1.0, 1.0),
    ("embedding", "forward"): Reach(1.0, 0.108), ("embedding", "backward"): Reach(1.0, 0.1168),
    ("loss", "forward"): Reach(1.0, 0.8634), ("loss", "backward"): Reach(1.0, 0.7983),
}


def _gib(amount: float) -> int:
    return round(amount * GIB)


_V100_LAUNCH: Mapping[Pass, float] = {"forward": 36e-6, "backward": 60e-6}
_LAUNCH: Mapping[Pass, float] = {"forward": 10e-6, "backward": 10e-6}

_V100 = DeviceType(
    "v100", _gib(31.7), {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12, "bfloat16": 15.7e12}, 15.7e12, 900e9,
    link=150e9, link_latency=20e-6, network=12.5e9, network_latency=30e-6, launch=_V100_LAUNCH, reach=_V100_REACH,
    origin="fitted to measured operators of T5-770M on a V100; on those of GPT-1.3B the median error is 8 % an "
           "operator and 7 % a layer, nine in ten are within 29 % and 32 %")


def _with_matrix_limit(limit: float) -> Mapping[tuple[KernelClass, Pass], Reach]:
    return {key: replace(reach, compute=min(reach.compute, limit)) for key, reach in _V100_REACH.items()}


_BORROWED = "shares of the peaks are those fitted on a V100, not measured on this device"
#: experiments/results/published.json.
_PUBLISHED = ("shares of the peaks are those fitted on a V100; eight published steps of GPT-22B to 1T come out between "
              "4 % short and 8 % long")

DEVICES: Mapping[str, DeviceType] = {device.name: device for device in (
    _V100,
    replace(_V100, name="v100-16gb", memory=_gib(15.7)),
    *(DeviceType(name, _gib(memory), {"float64": 9.7e12, "float32": 19.5e12, "float16": 312e12, "bfloat16": 312e12},
                 19.5e12, bandwidth, link=300e9, link_latency=15e-6, network=25e9, network_latency=25e-6,
                 launch=_LAUNCH, reach=_V100_REACH, origin=_PUBLISHED)
      for name, memory, bandwidth in (("a100", 79, 2039e9), ("a100-40gb", 39, 1555e9), ("a100-80gb", 79, 2039e9))),
    *(DeviceType(name, _gib(memory), {"float64": 33.5e12, "float32": 66.9e12, "float16": 989e12, "bfloat16": 989e12},
                 66.9e12, bandwidth, link=450e9, link_latency=12e-6, network=50e9, network_latency=20e-6,
                 launch=_LAUNCH, reach=_with_matrix_limit(2 / 3), origin=_BORROWED)
      for name, memory, bandwidth in (("h100", 79, 3350e9), ("h200", 139, 4800e9))),
    DeviceType("b200", _gib(178), {"float64": 40e12, "float32": 80e12, "float16": 2250e12, "bfloat16": 2250e12}, 80e12,
               8000e9, link=900e9, link_latency=12e-6, network=50e9, network_latency=20e-6, launch=_LAUNCH,
               reach=_with_matrix_limit(2 / 3), origin=_BORROWED),
    DeviceType("cpu", 16 * GIB, {"float64": 48e9, "float32": 96e9, "float16": 24e9, "bfloat16": 24e9}, 24e9, 10e9,
               link=5e9, link_latency=50e-6, network=1e9, network_latency=100e-6,
               launch={"forward": 5e-6, "backward": 10e-6}, reach=_V100_REACH, origin=_BORROWED),
)}

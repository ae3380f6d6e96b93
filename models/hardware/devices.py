"""Devices by name: their peaks, and the shares attained by kernels.

*Peaks* are the vendors', with the data sheet beside each device: dense tensor-core rates, memory bandwidth, NVLink
bandwidth of one direction. *Reached shares* (:class:`Reach`) are fitted to measured operators by
``experiments/models/roofline.py``: V100's on Aceso's profile of T5-770M, judged on that of GPT-1.3B. The other GPUs
have no profile here, so theirs are V100's, with the matrix products of H100 and H200 limited to two thirds of the peak
(which grew eight-fold, memory bandwidth four-fold), those of B200 by one published step. That is a model, not a
measurement; ``experiments/models/grids.py`` compares its steps with published ones, ``weft.estimate`` states where
shares are borrowed. ``v100`` and ``a100`` are the larger ones, of 32 and 80 GB. *Memory* is a device's total as
reported by CUDA, rounded down: less than the data sheet's, as the driver and error correction use some (PyTorch's
messages say 15.77, 31.74, 39.39 to 39.59, 79.10 to 79.25, 139.72 to 139.81 and 178.35 GiB).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from weft.models.hardware.device_files import TABLE_FILES, load_device_table
from weft.models.hardware.device_type import DeviceError, DeviceType, KernelClass, Pass, Reach, kernel_class

__all__ = ["DEVICES", "DeviceError", "DeviceType", "KernelClass", "Pass", "Reach", "kernel_class"]

GIB = 1024**3

#: Fitted by experiments/models/roofline.py on T5-770M, micro-batches of 1, 2, 4 and 8
#: (experiments/results/roofline.json), except for fused attention and convolutions, which the profiles lack: those are
#: assumed.
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


def _fp8(rate: float) -> Mapping[str, float]:
    return {"float8_e4m3fn": rate, "float8_e5m2": rate}


def _behind_switches(reduced: float, others: float, to_all: float) -> Mapping[str, Mapping[int, float]]:
    """Shares of NVLink's bandwidth of one direction attained by collectives if each GPU has all of its links to
    switches, independent of the number of participants: an all-reduce of all 8, which the switches may sum; rings; an
    all-to-all."""
    return {"all_reduce": {2: others, 8: reduced}, "all_gather": {2: others}, "reduce_scatter": {2: others},
            "all_to_all": {2: to_all}}


def _gib(amount: float) -> int:
    return round(amount * GIB)


#: Fitted with the attained shares, host included. For the others: PyTorch's time on current hosts, 5 to 10 us, the
#: longer of these.
_V100_LAUNCH: Mapping[Pass, float] = {"forward": 36e-6, "backward": 60e-6}
_LAUNCH: Mapping[Pass, float] = {"forward": 10e-6, "backward": 10e-6}

def _with_matrix_limit(limit: float) -> Mapping[tuple[KernelClass, Pass], Reach]:
    return {key: replace(reach, compute=min(reach.compute, limit)) for key, reach in _V100_REACH.items()}


_BORROWED = "shares of the peaks are those fitted on a V100, not measured on this device"
#: experiments/results/grids.json.
_PUBLISHED = ("shares of the peaks are those fitted on a V100; eight published steps of GPT-22B to 1T come out between "
              "6 % short and 6 % long")

_CALIBRATED = ("shares of the peaks are those fitted on a V100, matrix products held to the share at which one "
               "published step, of Llama-3-8B on 8 of these, comes out")

#: NVIDIA V100 SXM2 32 GB (data sheet, January 2020): 7.8 TFLOP/s fp64, 15.7 fp32, 125 fp16 in tensor cores, 900 GB/s,
#: NVLink 300 GB/s both ways. bfloat16 is computed in fp32: it has no tensor cores for it. Network: one card of 100
#: Gbit/s a GPU. Latencies of links, here and below, are assumptions: a collective or message in NCCL takes 10 to 30 us.
_V100 = DeviceType(
    "v100", _gib(31.7), {"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12, "bfloat16": 15.7e12}, 15.7e12, 900e9,
    link=150e9, link_latency=20e-6, network=12.5e9, network_latency=30e-6, launch=_V100_LAUNCH, reach=_V100_REACH,
    origin="fitted to measured operators of T5-770M on a V100; on those of GPT-1.3B the median error is 8 % an "
           "operator and 7 % a layer, nine in ten are within 29 % and 32 %")
#: NVIDIA A100 SXM4 (data sheet, 2021): 9.7 TFLOP/s fp64, 19.5 fp32, 312 fp16 and bf16; 1,555 GB/s (40 GB), 2,039
#: (80 GB); NVLink 600 GB/s both ways. Network: one card of 200 Gbit/s a GPU, as in a DGX A100. Rings of 8 reach 232.5
#: of NVLink's 300 GB/s (github.com/NVIDIA/nccl-tests, issue 175, an all-reduce); an all-to-all is taken to, too.
_A100 = DeviceType(
    "a100", _gib(79), {"float64": 9.7e12, "float32": 19.5e12, "float16": 312e12, "bfloat16": 312e12}, 19.5e12, 2039e9,
    link=300e9, link_latency=15e-6, network=25e9, network_latency=25e-6, launch=_LAUNCH, reach=_V100_REACH,
    origin=_PUBLISHED, rings=_behind_switches(0.78, 0.78, 0.78))
#: NVIDIA H100 SXM5 (data sheet, 2023; half of the figures with sparsity): 34 TFLOP/s fp64, 67 fp32, 989 fp16 and bf16,
#: 1,979 FP8; 3.35 TB/s; NVLink 900 GB/s both ways. Network: one card of 400 Gbit/s a GPU, as in a DGX H100.
#: Of NVLink's 450 GB/s rings reach 370, an all-reduce that the switches add up 480 as nccl-tests count it (NCCL's
#: authors, github.com/NVIDIA/nccl-tests, issue 212), an all-to-all 335 (github.com/NVIDIA/nccl, issue 2169).
_H100 = DeviceType(
    "h100", _gib(79), {"float64": 33.5e12, "float32": 66.9e12, "float16": 989e12, "bfloat16": 989e12, **_fp8(1979e12)},
    66.9e12, 3350e9, link=450e9, link_latency=12e-6, network=50e9, network_latency=20e-6, launch=_LAUNCH,
    reach=_with_matrix_limit(2 / 3), origin=_BORROWED, rings=_behind_switches(1.07, 0.82, 0.74))



class _Devices(dict[str, DeviceType]):
    """Devices by name. The path of a table written by ``weft calibrate`` is a name, too: the file is read on first use,
    and cached. Raises :class:`DeviceError` for an invalid table."""

    def __missing__(self, name: str) -> DeviceType:
        if not name.endswith(TABLE_FILES):
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = load_device_table(name).device_type()
        return self._read[name]

    _read: ClassVar[dict[str, DeviceType]] = {}


DEVICES: Mapping[str, DeviceType] = _Devices({device.name: device for device in (
    _V100,
    replace(_V100, name="v100-16gb", memory=_gib(15.7)),
    _A100,
    replace(_A100, name="a100-40gb", memory=_gib(39), bandwidth=1555e9),
    replace(_A100, name="a100-80gb"),
    _H100,
    # NVIDIA H800 SXM5: an H100 for China with 400 GB/s of NVLink both ways. All-to-alls within a machine reach 153, and
    # with 50 GB/s a GPU between machines 43 to 46 (github.com/deepseek-ai/DeepEP, of 160 usable); rings are taken to.
    replace(_H100, name="h800", link=200e9, rings=_behind_switches(0.77, 0.77, 0.77)),
    # NVIDIA H200 SXM (data sheet, 2024): an H100 with 141 GB at 4.8 TB/s.
    replace(_H100, name="h200", memory=_gib(139), bandwidth=4800e9),
    # NVIDIA HGX B200 (data sheet, 2024; at 1,000 W, an eighth of the board, half of the figures with sparsity): 40
    # TFLOP/s fp64, 80 fp32, 2,250 fp16 and bf16, 4,500 FP8; 8 TB/s; NVLink 1,800 GB/s both ways. Of 900 GB/s
    # NCCL counts 722 for rings and an all-reduce reaches 830 (github.com/NVIDIA/nccl, issue 1807). The limit
    # of products is set by one row of experiments/results/grids.json: Llama-3-8B in 8 bits, 30,624 tokens a second.
    DeviceType("b200", _gib(178), {"float64": 40e12, "float32": 80e12, "float16": 2250e12, "bfloat16": 2250e12,
                                   **_fp8(4500e12)}, 80e12, 8000e9, link=900e9, link_latency=12e-6, network=50e9,
               network_latency=20e-6, launch=_LAUNCH, reach=_with_matrix_limit(0.574), origin=_CALIBRATED,
               rings=_behind_switches(0.92, 0.8, 0.8)),
    # One core of a server CPU with 256-bit fused multiply-adds at 3 GHz (2 x 8 x 2 x 3e9 in fp32) and an even share of
    # its memory bandwidth: for orders of magnitude only.
    DeviceType("cpu", 16 * GIB, {"float64": 48e9, "float32": 96e9, "float16": 24e9, "bfloat16": 24e9}, 24e9, 10e9,
               link=5e9, link_latency=50e-6, network=1e9, network_latency=100e-6,
               launch={"forward": 5e-6, "backward": 10e-6}, reach=_V100_REACH, origin=_BORROWED),
)})

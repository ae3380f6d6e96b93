"""The roofline model of operator times (Williams, Waterman and Patterson, CACM 2009).

A pass of an operator takes the device's launch time plus the longer of its computation and its memory traffic, each at
the share of the peak attained by kernels of its class (:mod:`weft.models.hardware.devices`).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.graph.operators import Operator, OperatorGraph, Work
from weft.models.hardware.devices import DeviceType, Pass, Reach, kernel_class
from weft.models.times.operator_times import OperatorTime, Origin

_MATRIX = ("gemm", "bmm", "attention", "convolution")


@dataclass(frozen=True, slots=True)
class Roofline:
    """Modelled times on one type of device."""

    device: DeviceType

    def times(self, graph: OperatorGraph) -> dict[str, OperatorTime]:
        """The modelled time of every operator of ``graph``."""
        return {operator.name: self.time(operator, dtype_of(graph, operator)) for operator in graph.operators}

    def time(self, operator: Operator, dtype: str) -> OperatorTime:
        """The modelled time of one operator whose matrix products are in ``dtype``. A view takes none."""
        forward = self._seconds(operator.kind, operator.forward, dtype, "forward")
        inner = self._seconds(operator.kind, operator.input_grad, dtype, "backward")
        outer = self._seconds(operator.kind, operator.weight_grad, dtype, "backward",
                              launches=operator.deferred is not None or operator.input_grad is None)
        if operator.weight_grad is not None and operator.deferred is None:
            inner, outer = inner + outer, 0.0  # computed in the input-gradient pass
        return OperatorTime(forward, inner, outer, Origin.MODELLED)

    def notes(self, graph: OperatorGraph) -> list[str]:
        """The origin of the model's constants."""
        return [f"times on {self.device.name} are modelled (roofline): {self.device.origin}"]

    def _seconds(self, kind: str, work: Work | None, dtype: str, which: Pass, *, launches: bool = True) -> float:
        if work is None or not (work.flops or work.bytes_read or work.bytes_written):
            return 0.0
        return round(pass_seconds(self.device, kind, work, dtype, which, launches=launches), 9)


def pass_seconds(device: DeviceType, kind: str, work: Work, dtype: str, which: Pass, *, reach: Reach | None = None,
                 launches: bool = True) -> float:
    """Seconds of one pass; ``reach`` replaces the device's own."""
    group = kernel_class(kind)
    shares = reach or device.reach[group, which]
    peak = device.peak(dtype) if group in _MATRIX else device.vector_flops
    rate = device.product_rate(work.flops, dtype, which) if group == "gemm" and reach is None else None
    computing = work.flops / (rate or peak * shares.compute)
    moving = (work.bytes_read + work.bytes_written) / (device.bandwidth * shares.memory)
    launch, running = device.launch[which] if launches else 0.0, max(computing, moving)
    return max(launch, running) if device.hides_launches else launch + running


def dtype_of(graph: OperatorGraph, operator: Operator) -> str:
    """The type in which an operator computes: that of its first floating-point input, else of its first output."""
    read = [graph.tensors[name].dtype for name in operator.inputs]
    for dtype in (*read, *(tensor.dtype for tensor in operator.outputs)):
        if "float" in dtype:
            return dtype
    return "float32"

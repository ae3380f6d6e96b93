"""The time of one device's part of an operator: measured if profiles have it, else scaled by the roofline.

A profile's rows for several devices (:meth:`weft.models.times.profile_times.ProfileTimes.rows_together`) include the
collectives required by the split itself: the sum of terms after an operator whose output is terms, and the sum of
gradients of an input that every device reads whole. Exchanges are separate operators here, at the times of the measured
collectives; so these are subtracted from a row, and part and exchange together take the measured time. If a collective
alone takes longer than its row, the part has no measurement, and the modelled time is used.

Between parts, tensors are converted from their layout to the required one. A layout is
:data:`weft.models.graph.operators.Layout`: *whole* on every device, *partial* (every device has terms of a sum), or cut
along an axis. For each pair of layouts one conversion moves the least:

=========  ==========  ==================================================================
lies       is needed   what happens
=========  ==========  ==================================================================
any        the same    nothing
whole      axis        every device takes its slice; nothing is sent
partial    whole       all-reduce
partial    axis        reduce-scatter
axis       whole       all-gather
axis       other axis  all-to-all
=========  ==========  ==================================================================

Layouts of gradients follow from the use of their tensors: a divided operator that reads a tensor whole computes on
every device only the terms of its own part; and the producer of terms of a sum needs the sum's gradient whole, since it
is that of every term. The same conversion, from the gradient's layout to the required one, applies in the backward (the
pairs f and g of Shoeybi et al., "Megatron-LM", 2019, section 3, are two cases of it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from weft.models.graph.operators import Layout, Operator, OperatorError, OperatorGraph, Parameter, Split, Tensor, Work
from weft.models.layers.collectives import Collective
from weft.models.times.operator_times import OperatorTime, Origin
from weft.models.times.profile_times import MeasuredRow
from weft.models.times.roofline import Roofline, dtype_of

Step: TypeAlias = Collective | Literal["none", "slice"]

#: Seconds of a collective by kind and the bytes on each device before it.
Timer: TypeAlias = Callable[[Collective, int], float]


@dataclass(frozen=True, slots=True)
class TensorNeed:
    """A reader's requirement for a tensor: its layout, and whether the reader's work is ``divided`` among the
    devices."""

    layout: Layout
    divided: bool

    @property
    def gradient(self) -> Layout:
        """The layout of the gradient returned by the reader."""
        return "partial" if self.layout == "whole" and self.divided else self.layout


@dataclass(frozen=True, slots=True)
class TensorExchange:
    """The steps between a tensor's producer and a reader, forward and (``"none"`` without one) backward.

    ``forward_bytes`` and ``backward_bytes``: bytes on each device before the step.
    """

    forward: Step
    backward: Step
    forward_bytes: int
    backward_bytes: int

    @property
    def collectives(self) -> tuple[tuple[Collective, int] | None, tuple[Collective, int] | None]:
        """Forward and backward, each with its bytes; slices are views."""
        ahead, back = (None if kind == "none" or kind == "slice" else (kind, size) for kind, size in (
            (self.forward, self.forward_bytes), (self.backward, self.backward_bytes)))
        return ahead, back

    def seconds(self, timer: Timer) -> tuple[float, float]:
        """Forward and backward."""
        ahead, back = (0.0 if found is None else timer(*found) for found in self.collectives)
        return ahead, back


def step(before: Layout, after: Layout) -> Step:
    """The step from one layout to another. Raises :class:`OperatorError` if ``after`` is "partial": no operator reads
    terms of a sum."""
    if before == after:
        return "none"
    if after == "partial":
        raise OperatorError("a tensor is needed as terms of a sum, but no step makes terms; make it whole or cut it")
    if before == "whole":
        return "slice"
    if before == "partial":
        return "all_reduce" if after == "whole" else "reduce_scatter"
    return "all_gather" if after == "whole" else "all_to_all"


def gradient_needed(layout: Layout) -> Layout:
    """The gradient layout required by the producer of a tensor in ``layout``."""
    return "whole" if layout == "partial" else layout


def step_bytes(before: Layout, size: int, degree: int) -> int:
    """Bytes on each device of a tensor of ``size`` bytes in ``before``."""
    return size if before in ("whole", "partial") else -(-size // degree)


def exchange(produced: Layout, need: TensorNeed, size: int, degree: int, *, gradient: bool) -> TensorExchange:
    """The exchange between a producer and a reader of a tensor of ``size`` bytes; ``gradient``: whether there is
    one."""
    back: Step = step(need.gradient, gradient_needed(produced)) if gradient else "none"
    return TensorExchange(step(produced, need.layout), back, step_bytes(produced, size, degree),
                          step_bytes(need.gradient, size, degree))


def layout_of(option: Split | None, tensor: str, side: str) -> Layout:
    """The layout of ``tensor`` on the ``side`` ("inputs" or "outputs") of an operator under ``option``."""
    if option is None:
        return "whole"
    return (option.inputs if side == "inputs" else option.outputs).get(tensor, "whole")


def laid_out(tensor: Tensor, layout: Layout, degree: int) -> Tensor:
    """What each of ``degree`` devices has of ``tensor``."""
    if not isinstance(layout, int):
        return tensor
    shape = tuple(-(-size // degree) if axis == layout else size for axis, size in enumerate(tensor.shape))
    return replace(tensor, bytes=-(-tensor.bytes // degree), shape=shape)


def outputs_of(operator: Operator, option: Split | None, degree: int) -> tuple[Tensor, ...]:
    """What each of ``degree`` devices makes of the outputs of ``operator``."""
    return tuple(laid_out(tensor, layout_of(option, tensor.name, "outputs"), degree) for tensor in operator.outputs)


def parameters_of(operator: Operator, option: Split | None, degree: int) -> tuple[Parameter, ...]:
    """What each of ``degree`` devices has of the parameters of ``operator``."""
    return tuple(p if option is None or p.name not in option.parameters else
                 Parameter(p.name, -(-p.count // degree), -(-p.bytes // degree)) for p in operator.parameters)


def has_gradient(graph: OperatorGraph, tensor: str) -> bool:
    """Whether ``tensor`` has a gradient."""
    producer = graph.producer.get(tensor)
    if producer is None or "float" not in graph.tensors[tensor].dtype:
        return False
    operator = graph.by_name[producer]
    return operator.input_grad is not None or operator.weight_grad is not None


class PartTimes:
    """The times of the parts of a graph's operators on ``parts`` devices, or in ``parts`` pieces in sequence.

    ``times``: of the whole operators. ``measured``: rows of a profile on that number of devices, and ``timer`` the
    seconds of the collectives in them.
    """

    def __init__(self, graph: OperatorGraph, times: Mapping[str, OperatorTime], parts: int, roofline: Roofline,
                 measured: Sequence[MeasuredRow] = (), timer: Timer | None = None) -> None:
        self.graph, self.times, self.parts, self.roofline = graph, times, parts, roofline
        self._measured: dict[tuple[str, str], OperatorTime] = {}
        for row in measured:
            assert timer is not None
            self._measured |= self._without_collectives(row, timer)

    def of(self, operator: Operator, option: Split | None) -> OperatorTime:
        """The time of one part of ``operator`` under ``option``; ``None``: of all of it."""
        if option is None:
            return self.times[operator.name]
        return self._measured.get((operator.name, option.dimension)) or self._modelled(operator, option)

    def work(self, operator: Operator, option: Split | None, work: Work | None) -> Work | None:
        """The part of a pass: its operations are divided, its bytes as far as its tensors and weights are divided.

        A lookup moves the selected rows, not its table: weights count if a pass moves at least their bytes.
        """
        if work is None or option is None:
            return work
        weights = sum(p.bytes for p in operator.parameters)
        moved = work.bytes_read + work.bytes_written
        total = part = 0.0
        for tensors, side in (([self.graph.tensors[name] for name in operator.inputs], "inputs"),
                              (operator.outputs, "outputs")):
            for tensor in tensors:
                total += tensor.bytes
                is_cut = isinstance(layout_of(option, tensor.name, side), int)
                part += tensor.bytes / (self.parts if is_cut else 1)
        if moved >= weights:
            for parameter in operator.parameters:
                total += parameter.bytes
                part += parameter.bytes / (self.parts if parameter.name in option.parameters else 1)
        share = part / total if total else 1 / self.parts
        return Work(work.flops / self.parts, math.ceil(work.bytes_read * share), math.ceil(work.bytes_written * share))

    def collectives(self, operator: Operator, split: Split, timer: Timer) -> tuple[float, float]:
        """Seconds of the sums required by a part itself: forward of its output's terms, and backward of the terms of
        the gradients of its whole inputs."""
        ahead = sum(timer("all_reduce", tensor.bytes) for tensor in operator.outputs
                    if layout_of(split, tensor.name, "outputs") == "partial")
        whole = [name for name in dict.fromkeys(operator.inputs)
                 if layout_of(split, name, "inputs") == "whole" and has_gradient(self.graph, name)]
        behind = 0.0 if operator.input_grad is None else sum(
            timer("all_reduce", self.graph.tensors[name].bytes) for name in whole)
        return ahead, behind

    def _modelled(self, operator: Operator, option: Split) -> OperatorTime:
        """The whole time scaled by the roofline's ratio."""
        known = self.times[operator.name]
        dtype = dtype_of(self.graph, operator)
        whole = self.roofline.time(operator, dtype)
        part = self.roofline.time(replace(
            operator, forward=self.work(operator, option, operator.forward) or Work(),
            input_grad=self.work(operator, option, operator.input_grad),
            weight_grad=self.work(operator, option, operator.weight_grad)), dtype)

        def less(time: float, divided: float, all_of_it: float) -> float:
            return round(time * divided / all_of_it, 9) if all_of_it else time

        return OperatorTime(less(known.forward, part.forward, whole.forward),
                            less(known.input_grad, part.input_grad, whole.input_grad),
                            less(known.weight_grad, part.weight_grad, whole.weight_grad), Origin.MODELLED)

    def _without_collectives(self, row: MeasuredRow, timer: Timer) -> dict[tuple[str, str], OperatorTime]:
        """The times of a row's operators under the splits that it was measured with; none if those do not exist or do
        not give weights of its size."""
        found: list[tuple[Operator, Split]] = []
        for name, dimension in row.dimensions.items():
            operator = self.graph.by_name[name]
            split = next((s for s in operator.splits if s.dimension == dimension and s.size % self.parts == 0), None)
            if split is None:
                return {}
            found.append((operator, split))
        weights = sum(p.bytes / (self.parts if p.name in split.parameters else 1)
                      for operator, split in found for p in operator.parameters if len(p.shape) > 1)
        if abs(weights - row.weights_bytes) > 0.01 * max(weights, row.weights_bytes):
            return {}
        spent = [self.collectives(operator, split, timer) for operator, split in found]
        forward = row.forward - sum(ahead for ahead, _ in spent)
        backward = row.backward - sum(behind for _, behind in spent)
        modelled = [self._modelled(operator, split) for operator, split in found]
        ahead = sum(time.forward for time in modelled)
        behind = sum(time.input_grad + time.weight_grad for time in modelled)
        if (ahead and forward <= 0) or (behind and backward <= 0):
            return {}
        return {(operator.name, split.dimension): OperatorTime(
            round(forward * time.forward / ahead, 9) if ahead else 0.0,
            round(backward * time.input_grad / behind, 9) if behind else 0.0,
            round(backward * time.weight_grad / behind, 9) if behind else 0.0, row.origin)
            for (operator, split), time in zip(found, modelled, strict=True)}

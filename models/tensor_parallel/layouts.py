"""The conversion of a tensor from its layout to the required one.

A layout is :data:`weft.models.graph.operators.Layout`: *whole* on every device, *partial* (every device has terms of a
sum), or cut along an axis. For each pair of layouts one conversion moves the least:

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft.models.graph.operators import Layout, OperatorError
from weft.models.layers.collectives import Collective

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

    def seconds(self, timer: Timer) -> tuple[float, float]:
        """Forward and backward; slices are views and take none."""
        return (0.0 if self.forward == "none" or self.forward == "slice" else timer(self.forward, self.forward_bytes),
                0.0 if self.backward == "none" or self.backward == "slice" else
                timer(self.backward, self.backward_bytes))


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

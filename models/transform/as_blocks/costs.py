"""Costs of a program's operators: seconds and bytes of a part, for the search of plans.

A part's cost is that of the operator at the part's own sizes, so replicated work costs each device the whole, and a
part of a split its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from weft.models.graph.operators import Work, causal_share
from weft.models.hardware.devices import DEVICES, DeviceType
from weft.models.times.roofline import pass_seconds
from weft.models.transform.program import Annotation, PlanError, PlanOperation, PlanProgram

#: Kernels by the roofline's classes of kernels.
_KINDS = {"norm": "layer_norm", "softmax": "softmax", "log_softmax": "softmax", "attention": "attention",
          "embedding": "embedding", "cross_entropy": "cross_entropy", "convolution": "convolution"}
_DTYPES = {2: "float16", 4: "float32", 8: "float64"}


class OperatorCosts(Protocol):
    """Seconds of a part of an operator."""

    def seconds(self, program: PlanProgram, operation: PlanOperation, sizes: Mapping[str, int]) -> float:
        """Of the part with the given number of indices of each name."""


def part_work(program: PlanProgram, operation: PlanOperation, sizes: Mapping[str, int]) -> Work:
    """Operations and bytes of a part.

    Products and sums over names (einsum, attention, convolutions) count two operations for each combination of indices;
    all others one for each element read or written. Attention is two products over its rows and columns, with heads as
    wide as the wider of keys and values; each of its gradients is three. Causal attention skips masked products.
    """
    how = operation.annotation
    shapes = [[math.prod(Annotation.shape(tensor, sizes)) for tensor in side] for side in (how.inputs, how.outputs)]
    given, made = ([count * program.tensors[name].itemsize for name, count in zip(names, side, strict=True)]
                   for names, side in ((operation.inputs, shapes[0]), (operation.outputs, shapes[1])))
    every = math.prod(sizes[name] for name in how.names)
    if operation.kind == "einsum":
        flops = (2 if any(how.role(name) == "reduction" for name in how.names) else 1) * every
    elif operation.kind.startswith("attention"):
        heads = {name for tensor in how.inputs if len(tensor) > 2 for name in tensor[-1]}  # of keys, and of values
        flops = (4 if operation.kind == "attention" else 6) * every // max((sizes[name] for name in heads), default=1)
        if operation.attributes.get("causal"):
            keys = how.inputs[1 if operation.kind == "attention" else 2]  # gradients read the output's first
            seen = (math.prod(operation.sizes[name] for name in axes) for axes in (how.inputs[0][-2], keys[-2]))
            flops = round(flops * causal_share(*seen))
    elif operation.kind.startswith("convolution"):
        image = how.outputs[0] if operation.kind == "convolution" else how.inputs[0]
        weights = how.outputs[0] if operation.kind.endswith("weight") else how.inputs[1]
        window = math.prod(Annotation.shape(weights[1:], sizes))
        flops = 2 * math.prod(Annotation.shape(image, sizes)) * window
    else:
        flops = max(sum(shapes[0]), sum(shapes[1]))
    return Work(float(flops), sum(given), sum(made))


@dataclass(frozen=True)
class ModelledCosts:
    """The roofline of a device (:mod:`weft.models.times.roofline`), by its name in
    :data:`weft.models.hardware.devices.DEVICES`. Raises :class:`~weft.models.transform.program.PlanError` for
    another name."""

    device: str

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise PlanError(f"there is no device {self.device!r}; there are {', '.join(DEVICES)}")

    @property
    def type(self) -> DeviceType:
        """The device."""
        return DEVICES[self.device]

    def seconds(self, program: PlanProgram, operation: PlanOperation, sizes: Mapping[str, int]) -> float:
        """The roofline's time for :func:`part_work`."""
        kind = operation.kind
        if kind == "einsum":
            weights = any(program.tensors[name].source == "parameter" for name in operation.inputs)
            reduced = any(operation.annotation.role(name) == "reduction" for name in operation.annotation.names)
            kind = ("linear" if weights or operation.phase == "backward" else "matmul") if reduced else "pointwise"
        else:
            kind = next((name for known, name in _KINDS.items() if kind.startswith(known)), kind)
        dtype = _DTYPES.get(program.tensors[operation.outputs[0]].itemsize, "float32")
        which = "backward" if operation.phase == "backward" else "forward"
        return pass_seconds(self.type, kind, part_work(program, operation, sizes), dtype, which)  # type: ignore[arg-type]


@dataclass(frozen=True)
class GivenCosts:
    """Seconds of whole operators, by shell pattern; the first match counts. A part takes its share by the indices of
    all names of its annotation. ``other``: seconds of operators without a match."""

    given: Mapping[str, float]
    other: float = 0.0
    exact: Mapping[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for pattern, seconds in {**self.given, "other": self.other}.items():
            if not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0):
                raise PlanError(f"costs: {pattern!r} takes {seconds!r} seconds, it must be a finite number of 0 or "
                                "more")
        object.__setattr__(self, "exact", {name: seconds for name, seconds in self.given.items()
                                           if not set(name) & set("*?[")})

    def seconds(self, program: PlanProgram, operation: PlanOperation, sizes: Mapping[str, int]) -> float:
        """The operator's seconds, times the part's share."""
        whole = self.exact.get(operation.name)
        if whole is None:
            whole = next((seconds for pattern, seconds in self.given.items() if fnmatchcase(operation.name, pattern)),
                         self.other)
        names = operation.annotation.names
        return whole * math.prod(sizes[name] for name in names) / math.prod(operation.sizes[name] for name in names)

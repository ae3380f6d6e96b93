"""A graph like AmoebaNet-D's (Real et al., AAAI 2019): normal and reduction cells with two inputs each.

Like it in shape, not a copy: a cell brings both its inputs to its width, makes five sums of two operations each from
what it has so far, and joins the sums that nothing reads. Which states an operation reads follows AmoebaNet's pattern;
its 1 x 7 and 7 x 1 convolutions are one 3 x 3 in a bottleneck here. A cell reads the two cells before it, so tensors
pass every cell by.
"""

from __future__ import annotations

import math

from weft.models.graph.operators import OperatorGraph, Tensor
from weft.models.zoo.lib.blocks import cross_entropy, linear, pointwise
from weft.models.zoo.lib.builder import Builder, Passes
from weft.models.zoo.lib.convolutions import batch_norm, convolution, pool

__all__ = ["amoebanet_like"]

#: (first operation, state), (second operation, state) of each sum; states 0 and 1 are the cell's inputs.
_NORMAL = ((("pool", 1), ("same", 0)), (("conv1", 1), ("conv3", 0)), (("same", 0), ("conv1", 2)),
           (("conv3", 2), ("conv1", 1)), (("pool", 3), ("conv3", 4)))
_REDUCTION = ((("pool", 0), ("conv3", 0)), (("pool", 1), ("conv1", 1)), (("conv3", 1), ("pool", 0)),
              (("same", 2), ("conv1", 3)), (("same", 3), ("conv3", 4)))


def amoebanet_like(batch: int, *, cells: int = 18, width: int = 1024, image: int = 224, classes: int = 1000,
                   dtype: str = "float16") -> OperatorGraph:
    """Three groups of ``cells`` / 3 normal cells, a reduction before each that doubles the channels: ``width`` / 8
    in the stem, ``width`` in the last group."""
    b = Builder("amoebanet-like", dtype=dtype, training=True, dropout=False)
    images = b.input("images", (batch, 3, image, image))
    labels = b.input("labels", (batch,), "int64")
    channels = width // 8
    with b.layer("stem"):
        before = here = _convolved(b, images, channels, 3, "conv", stride=2)
    for group in range(3):
        channels *= 2
        for i in range(cells // 3 + 1):
            with b.layer(f"group{group}.cell{i}"):
                before, here = here, _cell(b, before, here, channels, reduction=i == 0)
    with b.layer("head"):
        logits = linear(b, pool(b, here, "pool", "mean"), classes, "classes")
        return b.graph(cross_entropy(b, logits, labels))


def _cell(b: Builder, before: Tensor, here: Tensor, channels: int, *, reduction: bool) -> Tensor:
    shrink = before.shape[2] // here.shape[2]
    states = [_convolved(b, here, channels, 1, "enter"),
              _convolved(b, before, channels, 1, "enter before", stride=shrink)]
    read: set[int] = set()
    for number, pair in enumerate(_REDUCTION if reduction else _NORMAL):
        parts = []
        for side, (operation, state) in enumerate(pair):
            stride = 2 if reduction and state < 2 else 1
            parts.append(_operation(b, states[state], operation, f"sum{number}.{side}", stride))
            read.add(state)
        states.append(pointwise(b, "add", f"sum{number}", parts))
    free = [states[k] for k in range(2, len(states)) if k not in read]
    return _joined(b, free)


def _operation(b: Builder, x: Tensor, operation: str, name: str, stride: int) -> Tensor:
    if operation == "same":
        return x
    if operation == "pool":
        return pool(b, x, name, "max", stride)
    if operation == "conv1":
        return _convolved(b, x, x.shape[1], 1, name, stride=stride)
    inner = _convolved(b, x, x.shape[1] // 4, 1, f"{name}.down")
    inner = _convolved(b, inner, x.shape[1] // 4, 3, f"{name}.inner", stride=stride)
    return _convolved(b, inner, x.shape[1], 1, f"{name}.up")


def _convolved(b: Builder, x: Tensor, channels: int, kernel: int, name: str, *, stride: int = 1) -> Tensor:
    x = pointwise(b, "relu", f"{name}.relu", [x], keeps="output") if x.dtype != "int64" and x.name != "images" else x
    return batch_norm(b, convolution(b, x, channels, kernel, name, stride=stride), f"{name}.norm")


def _joined(b: Builder, parts: list[Tensor]) -> Tensor:
    first = parts[0]
    y = b.tensor("joined", (first.shape[0], sum(part.shape[1] for part in parts), *first.shape[2:]))
    b.add("concat", "joined", parts, [y], work=Passes(float(math.prod(y.shape))))
    return y

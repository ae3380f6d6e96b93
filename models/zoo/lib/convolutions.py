"""Convolutions and what stands beside them; activations are (batch, channels, height, width).

Split by height and width would need the neighbours' rows (halos); it is not offered.
"""

from __future__ import annotations

import math
from typing import Literal

from weft.models.graph.operators import Split, Tensor, Work
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved


def convolution(b: GraphBuilder, x: Tensor, channels: int, kernel: int, name: str, *, stride: int = 1,
                bias: bool = False) -> Tensor:
    """A square convolution padded so that height and width are the input's over ``stride``."""
    batch, inner, height, width = x.shape
    y = b.tensor(name, (batch, channels, -(-height // stride), -(-width // stride)))
    matrix = b.parameter(f"{name}.weight", channels, inner, kernel, kernel)
    vector = (b.parameter(f"{name}.bias", channels),) if bias else ()
    b.add("convolution", name, [x], [y],
          work=Passes(2.0 * math.prod(y.shape) * inner * kernel**2,
                      input_grad=Work(2.0 * math.prod(y.shape) * inner * kernel**2, y.bytes + matrix.bytes, x.bytes)),
          parameters=(matrix, *vector), saved=Saved([x], deferred=[x]),
          splits=[b.along("batch", 0, [x], [y]),
                  Split("output", channels, {}, {y.name: 1}, frozenset(p.name for p in (matrix, *vector))),
                  Split("input", inner, {x.name: 1}, {y.name: "partial"}, frozenset({matrix.name}))])
    return y


def frames(b: GraphBuilder, x: Tensor, width: int, kernel: int, name: str, *, stride: int = 1) -> Tensor:
    """A convolution along the sequence of (batch, sequence, channels), whose length falls by ``stride``."""
    batch, count, inner = x.shape
    y = b.tensor(name, (batch, -(-count // stride), width))
    parameters = (b.parameter(f"{name}.weight", width, inner, kernel), b.parameter(f"{name}.bias", width))
    b.add("convolution", name, [x], [y], work=Passes(2.0 * math.prod(y.shape) * inner * kernel), parameters=parameters,
          saved=Saved([x], deferred=[x]),
          splits=[b.along("batch", 0, [x], [y]),
                  Split("output", width, {}, {y.name: 2}, frozenset(p.name for p in parameters))])
    return y


def batch_norm(b: GraphBuilder, x: Tensor, name: str) -> Tensor:
    """Normalisation by channel with the statistics of the micro-batch; cut by batch they would be each device's own."""
    channels = x.shape[1]
    y = b.tensor(name, x.shape)
    statistics = b.tensor(f"{name}.statistics", (channels, 2), "float32")
    parameters = [b.parameter(f"{name}.weight", channels), b.parameter(f"{name}.bias", channels)]
    b.add("batch_norm", name, [x], [y],
          work=Passes(5.0 * math.prod(x.shape), input_flops=8.0 * math.prod(x.shape),
                      # the statistics first, then the normalisation
                      forward=Work(5.0 * math.prod(x.shape), 2 * x.bytes, y.bytes),
                      input_grad=Work(8.0 * math.prod(x.shape), 2 * (x.bytes + y.bytes), x.bytes),
                      weight_grad=Work(0.0, 0, sum(p.bytes for p in parameters))), parameters=parameters,
          saved=Saved([x, statistics], internal=[statistics]),
          splits=[b.along("batch", 0, [x], [y]), b.along("channels", 1, [x], [y], parameters)])
    return y


def pool(b: GraphBuilder, x: Tensor, name: str, kind: Literal["max", "mean"], stride: int = 2) -> Tensor:
    """``max`` over 3 x 3 at every ``stride``, or the ``mean`` over all of height and width."""
    batch, channels, height, width = x.shape
    if kind == "mean":
        y = b.tensor(name, (batch, channels))
        b.add("mean_pool", name, [x], [y], work=Passes(float(math.prod(x.shape))),
              splits=[b.along("batch", 0, [x], [y]), b.along("channels", 1, [x], [y])])
        return y
    y = b.tensor(name, (batch, channels, -(-height // stride), -(-width // stride)))
    places = b.tensor(f"{name}.places", y.shape, "int64")
    b.add("max_pool", name, [x], [y], work=Passes(9.0 * math.prod(y.shape)),
          saved=Saved([x, places], internal=[places]),
          splits=[b.along("batch", 0, [x], [y]), b.along("channels", 1, [x], [y])])
    return y


def patches(b: GraphBuilder, images: Tensor, width: int, patch: int, name: str, *, bias: bool = True) -> Tensor:
    """Images cut into patches, each mapped to ``width`` numbers: a convolution without overlap, laid out as tokens."""
    batch, channels, height, across = images.shape
    y = b.tensor(name, (batch, (height // patch) * (across // patch), width))
    vector = (b.parameter(f"{name}.bias", width),) if bias else ()
    parameters = (b.parameter(f"{name}.weight", width, channels, patch, patch), *vector)
    b.add("convolution", name, [images], [y], work=Passes(2.0 * math.prod(y.shape) * channels * patch**2),
          parameters=parameters, saved=Saved([images], deferred=[images]),
          splits=[b.along("batch", 0, [images], [y]),
                  Split("output", width, {}, {y.name: 2}, frozenset(p.name for p in parameters))])
    return y

"""Convolutions: windows are frozen, channels are sums."""

from __future__ import annotations

from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, UnknownError, Writer, rule

__all__ = ["pair"]


@rule("conv2d")
def _convolution(w: Writer, step: Step) -> None:
    call = Arguments(step)
    x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
    stride, padding, dilation = (call.at(i, name, default) for i, name, default in (
        (3, "stride", [1, 1]), (4, "padding", [0, 0]), (5, "dilation", [1, 1])))
    if len(w.shape(x)) != 4 or call.at(6, "groups", 1) != 1 or set(pair(dilation)) != {1} or isinstance(padding, str):
        raise UnknownError
    n, c, y, z, o, p, q, u, v = (w.fresh(name) for name in "ncyzopquv")
    given = step.outputs[0]
    assert given is not None
    high, wide = w.exported.metas[given].shape[2:]
    out: list[Axis] = [(n,), (o,), (u,), (v,)]
    bias = call.at(2, "bias")
    made = w.add(step, "convolution", [(x, [(n,), (c,), (y,), (z,)]), (weight, [(o,), (c,), (p,), (q,)])], out,
                 reduced=[c, p, q], frozen=[p, q, y, z, u, v], sizes={u: high, v: wide}, last=bias is None,
                 name=step.name if bias is None else f"{step.name}.product", stride=pair(stride),
                 padding=pair(padding))
    if bias is not None:
        w.add(step, "add", [(made, [(n,), (o,), (u,), (v,)]), (w.tensor(bias), [(o,)])], out)


def pair(value: Any) -> tuple[int, int]:
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    return (found[0], found[0]) if len(found) == 1 else (found[0], found[1])

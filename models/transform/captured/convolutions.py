"""Convolutions over one to three axes: places are frozen, channels are sums, groups are independent."""

from __future__ import annotations

from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule

__all__ = ["repeated"]


def repeated(value: Any, rank: int) -> tuple[int, ...]:
    """One number for each of ``rank`` axes."""
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    return found * rank if len(found) == 1 else found


def _padding(given: Any, rank: int, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[Any, ...]:
    """Before and behind, as torch pads for ``same``."""
    if given == "valid":
        return (0,) * rank
    if given == "same":
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in whole)
    return repeated(given, rank)


def _convolution(rank: int, *, transposed: bool = False) -> Rule:
    def known(w: Writer, step: Step) -> None:
        call = Arguments(step)
        x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
        if len(w.shape(x)) != rank + 2:
            raise UnknownError
        stride, groups, dilation = (call.at(i, name, 1) for i, name in (
            (3, "stride"), *(((6, "groups"), (7, "dilation")) if transposed else ((6, "groups"), (5, "dilation")))))
        kernel, dilation = w.shape(weight)[2:], repeated(dilation, rank)
        padding = _padding(call.at(4, "padding", 0), rank, kernel, dilation)
        g = (w.fresh("g"),) if groups > 1 else ()
        n, c, o = (w.fresh(name) for name in "nco")
        places, windows, made = ([w.fresh(name) for _ in range(rank)] for name in "ypu")
        given = step.outputs[0]
        assert given is not None
        sizes = dict(zip(made, w.exported.metas[given].shape[2:], strict=True)) | {name: groups for name in g}
        first, second = ((*g, c), (o,)) if transposed else ((*g, o), (c,))
        weights: list[Axis] = [first, second, *((name,) for name in windows)]
        output: list[Axis] = [(n,), (*g, o), *((name,) for name in made)]
        bias = call.at(2, "bias")
        product = w.add(
            step, "convolution_transposed" if transposed else "convolution",
            [(x, [(n,), (*g, c), *((name,) for name in places)]), (weight, weights)], output, reduced=[c],
            frozen=[*places, *windows, *made], sizes=sizes, last=bias is None,
            name=step.name if bias is None else f"{step.name}.product", stride=repeated(stride, rank), padding=padding,
            dilation=dilation, **({"groups": g[0]} if g else {}))
        if bias is not None:
            w.add(step, "add", [(product, output), (w.tensor(bias), [(*g, o)])], output, sizes=dict.fromkeys(g, groups))

    return known


for _rank in (1, 2, 3):
    rule(f"conv{_rank}d")(_convolution(_rank))
    rule(f"conv_transpose{_rank}d")(_convolution(_rank, transposed=True))

"""Products of matrices and convolutions; a bias is an operator of its own, so that a product whose sum is cut adds it
once. Places of convolutions are frozen, channels are sums, groups are independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.captured.writer import UnknownError, Writer, rule
from weft.models.transform.program import Axis


@rule("linear")
def _linear(w: Writer, step: Step) -> None:
    x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
    bias = step.at(2, "bias")
    axes, out, inner = w.axes(w.shape(x)[:-1]), w.fresh("n"), w.fresh("k")
    biased(w, step, bias, [*axes, (out,)], [(x, [*axes, (inner,)]), (weight, [(out,), (inner,)])], inner)


@rule("addmm")
def _addmm(w: Writer, step: Step) -> None:
    if step.keywords.get("alpha", 1) != 1 or step.keywords.get("beta", 1) != 1:
        raise UnknownError
    bias, x, weight = step.arguments[:3]
    rows, columns, inner = (w.fresh(name) for name in "mnk")
    biased(w, step, bias, [(rows,), (columns,)],
            [(w.tensor(x), [(rows,), (inner,)]), (w.tensor(weight), [(inner,), (columns,)])], inner)


def biased(w: Writer, step: Step, bias: Any, output: Sequence[Axis], inputs: Sequence[tuple[str, Sequence[Axis]]],
            inner: str) -> None:
    if bias is None:
        w.add(step, "einsum", inputs, output, reduced=[inner])
        return
    product = w.add(step, "einsum", inputs, output, reduced=[inner], name=".product")
    given = w.tensor(bias)
    w.add(step, "add", [(product, output), (given, output[len(output) - len(w.shape(given)):])], output)


@rule("einsum")
def _einsum(w: Writer, step: Step) -> None:
    """Letters are names; one that stands twice in a tensor, and an ellipsis, are not known."""
    equation, tensors = step.arguments[0].replace(" ", ""), [w.tensor(one) for one in step.arguments[1]]
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or any(len(set(term)) < len(term) for term in (*terms, right)):
        raise UnknownError
    letters = {letter: w.fresh(letter) for letter in left if letter.isalpha()}
    inputs = []
    for tensor, term in zip(tensors, terms, strict=True):
        inputs.append((tensor, [() if size == 1 else (letters[letter],) for letter, size in zip(
            term, w.shape(tensor), strict=True)]))
    there = {name for _, axes in inputs for axis in axes for name in axis}
    output = [(letters[letter],) if letters[letter] in there else () for letter in right]
    w.add(step, "einsum", inputs, output, reduced=[name for name in there if (name,) not in output])


@rule("matmul", "mm", "bmm")
def _matmul(w: Writer, step: Step) -> None:
    a, b = (w.tensor(step.arguments[i]) for i in (0, 1))
    one, other = w.shape(a), w.shape(b)
    if not one or not other:
        raise UnknownError
    rows, columns, inner = (w.fresh(name) for name in "mnk")
    row: list[Axis] = [(rows,)] if len(one) > 1 else []
    column: list[Axis] = [(columns,)] if len(other) > 1 else []
    left, right, batch = broadcast(w, one[:-2], other[:-2])
    w.add(step, "einsum", [(a, [*left, *row, (inner,)]), (b, [*right, (inner,), *column])],
          [*batch, *row, *column], reduced=[inner])


def broadcast(w: Writer, one: Sequence[int], other: Sequence[int]) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """Axes of two shapes, aligned at their ends, and of what comes out."""
    (left, right), output = broadcast_all(w, [one, other])
    return left, right, output


def broadcast_all(w: Writer, shapes: Sequence[Sequence[int]]) -> tuple[list[list[Axis]], list[Axis]]:
    """Axes of any number of shapes, aligned at their ends, and of what comes out."""
    rank = max((len(shape) for shape in shapes), default=0)
    sides: list[list[Axis]] = [[] for _ in shapes]
    output: list[Axis] = []
    for i in range(rank):
        sizes = [shape[i - rank + len(shape)] if i >= rank - len(shape) else None for shape in shapes]
        most = next((size for size in sizes if size not in (None, 1)), 1)
        axis: Axis = () if most == 1 else (w.fresh(),)
        output.append(axis)
        for side, size in zip(sides, sizes, strict=True):
            if size is not None:
                side.append(axis if size != 1 else ())
    return sides, output


def expanded(w: Writer, step: Step, x: str, shape: Sequence[int], name: str | None = None) -> str:
    """``x`` in a shape that it is broadcast to, which the step gives but where it has a ``name``."""
    output: list[Axis] = [(w.fresh(),) for _ in shape]
    own = output[len(shape) - len(w.shape(x)):]
    axes: list[Axis] = [() if size == 1 else axis for size, axis in zip(w.shape(x), own, strict=True)]
    return w.add(step, "einsum", [(x, axes)], output, name=name,
                 sizes={axis[0]: size for axis, size in zip(output, shape, strict=True)})


def upright(w: Writer, step: Step, x: str, axis: int, name: str = ".upright") -> str:
    """``x`` with another dimension, of one element."""
    w.used = set()
    axes = w.axes(w.shape(x))
    return w.add(step, "einsum", [(x, axes)], [*axes[:axis], (), *axes[axis:]], name=name)


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


@rule(*(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)))
def _convolution(w: Writer, step: Step) -> None:
    rank, transposed = int(step.kind[-2]), "transpose" in step.kind
    x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
    if len(w.shape(x)) != rank + 2:
        raise UnknownError
    stride, groups, dilation = (step.at(i, name, 1) for i, name in (
        (3, "stride"), *(((6, "groups"), (7, "dilation")) if transposed else ((6, "groups"), (5, "dilation")))))
    kernel, dilation = w.shape(weight)[2:], repeated(dilation, rank)
    padding = _padding(step.at(4, "padding", 0), rank, kernel, dilation)
    g = (w.fresh("g"),) if groups > 1 else ()
    n, c, o = (w.fresh(name) for name in "nco")
    places, windows, made = ([w.fresh(name) for _ in range(rank)] for name in "ypu")
    sizes = dict(zip(made, w.given(step).shape[2:], strict=True)) | {name: groups for name in g}
    first, second = ((*g, c), (o,)) if transposed else ((*g, o), (c,))
    weights: list[Axis] = [first, second, *((name,) for name in windows)]
    output: list[Axis] = [(n,), (*g, o), *((name,) for name in made)]
    bias = step.at(2, "bias")
    product = w.add(
        step, "convolution_transposed" if transposed else "convolution",
        [(x, [(n,), (*g, c), *((name,) for name in places)]), (weight, weights)], output, reduced=[c],
        frozen=[*places, *windows, *made], sizes=sizes,
        name=None if bias is None else ".product", stride=repeated(stride, rank), padding=padding,
        dilation=dilation, **({"groups": g[0]} if g else {}))
    if bias is not None:
        w.add(step, "add", [(product, output), (w.tensor(bias), [(*g, o)])], output, sizes=dict.fromkeys(g, groups))

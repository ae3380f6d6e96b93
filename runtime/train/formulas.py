"""The formulas of torch's operators: their weights' gradients, from the tensors that they kept.

The kernels are those that torch's own backward calls, so that the numbers are the same, except for the last bits of
some products of three dimensions: for them ``torch.matmul`` chooses its kernel also by whether the weight requires a
gradient, and here it does not. Weights come in the operator's order, without missing ones.

Some are *light* (:data:`LIGHT`): norms, scales and biases. Their weight gradient reads each number once or twice, and
keeps as many until W. On a CPU, 2,048 tokens of 1,024 numbers, that of a layer norm takes 0.3 ms, that of a square
linear layer of the same width 63 ms; both keep 16 MiB. So they are deferred only on request, and most have no formula
of their own: W runs them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.runtime.train.deferred import Again, Formula

_aten = torch.ops.aten
#: By the number of dimensions, minus one.
_PLAIN: Sequence[Callable[..., Tensor]] = (torch.conv1d, torch.conv2d, torch.conv3d)
_TRANSPOSED: Sequence[Callable[..., Tensor]] = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
Found = Sequence[Tensor | None]


class Linear(Formula):
    """``x @ weight.T``, with or without a bias."""

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        return torch.nn.functional.linear(xs[0], *weights), (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        rows = _rows(gradient)
        found = [rows.T @ _rows(kept[0]).to(rows.dtype) if wanted[0] else None]
        return [*found, *(rows.sum(0) if want else None for want in wanted[1:])]


class Product(Formula):
    """``x @ weight``, with or without a bias: matrices, or as many products of two as the weight has matrices."""

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        weight, x = weights[0], xs[0]
        if len(weights) == 1:
            return torch.matmul(x, weight), (x,)
        return (torch.addmm if weight.dim() == 2 else torch.baddbmm)(weights[1], x, weight), (x,)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        found: list[Tensor | None] = [None] * len(weights)
        x = kept[0].to(gradient.dtype)
        if wanted[0]:
            found[0] = (_rows(x).T @ _rows(gradient) if weights[0].dim() == 2 else _summed(
                torch.matmul(x.transpose(-1, -2), gradient), weights[0]))
        if len(weights) > 1 and wanted[1]:
            found[1] = _new_sum(gradient, weights[1])
        return found


class ProductOfWeight(Formula):
    """``weight @ x``: a matrix by one matrix or several."""

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        return torch.matmul(weights[0], xs[0]), (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        return [_summed(torch.matmul(gradient, kept[0].to(gradient.dtype).transpose(-1, -2)), weights[0])]


class Einsum(Formula):
    """``einsum(equation, ...)`` of one input and one weight; ``first``: whether the weight comes first. The equation
    names each dimension (no ``...``), no letter twice in one operand, and each of the weight's also in the input or the
    result: :meth:`fits`."""

    def __init__(self, equation: str, first: bool) -> None:
        self.equation, self.first = equation.replace(" ", ""), first
        given, self.result = self.equation.split("->")
        operands = given.split(",")
        self.weight, self.x = operands if first else operands[::-1]

    @staticmethod
    def fits(equation: str, first: bool) -> bool:
        """Whether the equation has this form."""
        given, arrow, result = equation.replace(" ", "").partition("->")
        operands = given.split(",")
        if not arrow or len(operands) != 2 or "." in equation:
            return False
        weight, x = operands if first else operands[::-1]
        return all(len(set(own)) == len(own) for own in (weight, x, result)) and set(weight) <= {*x, *result}

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        pair = (weights[0], xs[0]) if self.first else (xs[0], weights[0])
        return torch.einsum(self.equation, *pair), (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        return [torch.einsum(f"{self.x},{self.result}->{self.weight}", kept[0].to(gradient.dtype), gradient)]


class GroupedProduct(Formula):
    """The products of experts: row i of the first input times the matrix of its group; the second input has the ends of
    groups. ``operator`` computes it."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        x, ends = xs
        return self.operator(x, weights[0], offs=ends), (x, ends)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        x, ends = kept
        x = x.to(gradient.dtype)
        if x.is_cuda:
            found: Tensor = _aten._grouped_mm(x.transpose(-1, -2), gradient, offs=ends)
            return [found]
        total = torch.zeros(weights[0].shape, dtype=gradient.dtype)
        begin = 0
        for group, end in enumerate(ends.tolist()):
            torch.mm(x[begin:end].T, gradient[begin:end], out=total[group])
            begin = end
        return [total]


class Convolution(Formula):
    """A convolution in one to three dimensions, with the settings of ``aten.convolution``; ``pad``: zeros that are
    added before, as for ``torch.nn.functional.pad``."""

    def __init__(self, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
                 output_padding: Sequence[int], groups: int, pad: Sequence[int] = ()) -> None:
        self.settings = (list(stride), list(padding), list(dilation), transposed, list(output_padding), groups)
        self.pad = list(pad)

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        weight, bias = (*weights, None)[:2]
        assert weight is not None
        stride, padding, dilation, transposed, output_padding, groups = self.settings
        x, dims = self._padded(xs[0]), weight.dim() - 3
        if transposed:  # by the functions that autocast knows
            return _TRANSPOSED[dims](x, weight, bias, stride, padding, output_padding, groups, dilation), (xs[0],)
        return _PLAIN[dims](x, weight, bias, stride, padding, dilation, groups), (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        found: list[Tensor | None] = [None] * len(weights)
        if gradient.dim() < weights[0].dim():  # of one sample
            kept, gradient = [kept[0][None]], gradient[None]
        if wanted[0]:
            x = self._padded(kept[0]).to(gradient.dtype)
            found[0] = _aten.convolution_backward(gradient, x, weights[0].to(gradient.dtype), None, *self.settings,
                                                  [False, True, False])[1]
        if len(weights) > 1 and wanted[1]:
            found[1] = gradient.sum([i for i in range(gradient.dim()) if i != 1])
        return found

    def _padded(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, self.pad) if self.pad else x


class Table(Formula):
    """Rows of the weight, selected by integers; ``padding`` is the row that is not trained, -1 if all are."""

    def __init__(self, padding: int = -1) -> None:
        self.padding = padding

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        return _aten.embedding(weights[0], xs[0], self.padding), (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        return [_aten.embedding_dense_backward(gradient, kept[0], len(weights[0]), self.padding, False)]


# -- light ones --------------------------------------------------------------------------------------------------------


class BatchNorm(Formula):
    """A batch norm in training: the inputs after the first are its running statistics, which it writes."""

    def __init__(self, momentum: float, eps: float) -> None:
        self.momentum, self.eps = momentum, eps

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        mean, variance = (*xs[1:], None, None)[:2]
        weight, bias = (*weights, None)[:2]
        return torch.batch_norm(xs[0], weight, bias, mean, variance, True, self.momentum, self.eps, True), (xs[0],)

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        x = kept[0].to(gradient.dtype)
        _, mean, scale = torch.native_batch_norm(x, None, None, None, None, True, self.momentum, self.eps)
        mask = [False, wanted[0], len(wanted) > 1 and wanted[1]]
        found: Found = _aten.native_batch_norm_backward(gradient, x, weights[0], None, None, mean, scale, True,
                                                        self.eps, mask)[1:]
        return found[:len(weights)]


class Shift(Formula):
    """``x + weight``, element by element, with the weight broadcast: only the gradient is kept."""

    def run(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See :class:`Formula`."""
        return xs[0] + weights[0], ()

    def gradients(self, kept: Sequence[Tensor], gradient: Tensor, weights: Sequence[Tensor],
                  wanted: Sequence[bool]) -> Found:
        """See :class:`Formula`."""
        return [_new_sum(gradient, weights[0])]


def same_padding(whole: Sequence[int]) -> tuple[list[int], list[int]]:
    """The padding that a convolution adds on both sides of each dimension, and the zeros that are added before, where
    ``whole`` is the number of zeros of each: an odd one goes to the end."""
    odd = [zeros for total in reversed(whole) for zeros in (0, total % 2)]
    return [total // 2 for total in whole], odd if any(odd) else []


#: Formulas whose weight gradients are not worth keeping their inputs, unless requested.
LIGHT: tuple[type[Formula], ...] = (Again, BatchNorm, Shift)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])  # -1 cannot be inferred for a tensor without elements


def _summed(gradient: Tensor, weight: Tensor) -> Tensor:
    return gradient.sum_to_size(weight.shape).to(weight.dtype)


def _new_sum(gradient: Tensor, weight: Tensor) -> Tensor:
    """The same, in separate memory."""
    found = _summed(gradient, weight)
    return found.clone() if found.untyped_storage().data_ptr() == gradient.untyped_storage().data_ptr() else found

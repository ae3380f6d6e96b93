"""Operators on weights whose weight gradient can wait, beside ``nn.Linear``: what a captured graph calls.

Each is a module of one tensor in and one out, so that a stage's graph can call it and a split backward can leave its
weight gradient for later: the input gradient is made at once, from the output's and the weights; the weight gradient
from the input and the output's gradient, which are kept until then. The kernels are those that torch's own backward
calls, so that the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Convolution", "DeferredOperator", "Product", "Table"]

_aten = torch.ops.aten


class DeferredOperator(nn.Module):
    """An operator on a tensor and on parameters of its own: ``weight``, and perhaps ``bias``."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor | None:
        """The gradient of ``x``; ``None`` where there can be none."""
        raise NotImplementedError

    def weight_gradient(self, parameter: nn.Parameter, x: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of ``parameter``, the weight or the bias."""
        raise NotImplementedError


class Product(DeferredOperator):
    """``x @ weight``, with a ``bias`` added: matrices, or as many products of two as the weight has matrices."""

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        if self.bias is not None:
            return torch.addmm(self.bias, x, self.weight)
        return torch.matmul(x, self.weight)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        """See :class:`DeferredOperator`."""
        return torch.matmul(gradient, self.weight.transpose(-1, -2))

    def weight_gradient(self, parameter: nn.Parameter, x: Tensor, gradient: Tensor) -> Tensor:
        """See :class:`DeferredOperator`."""
        if parameter is self.bias:
            return gradient.sum_to_size(parameter.shape)
        if self.weight.dim() == 2:
            return x.reshape(-1, x.shape[-1]).T @ gradient.reshape(-1, gradient.shape[-1])
        return torch.bmm(x.transpose(-1, -2), gradient)


class Convolution(DeferredOperator):
    """A convolution in one to three dimensions, with its settings as ``aten.conv1d`` to ``conv3d`` have them."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, stride: Sequence[int], padding: Sequence[int],
                 dilation: Sequence[int], groups: int) -> None:
        super().__init__(weight, bias)
        dims = weight.dim() - 2
        self.settings = (_each(stride, dims), _each(padding, dims), _each(dilation, dims), False, [0] * dims, groups)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        y: Tensor = _aten.convolution(x, self.weight, self.bias, *self.settings)
        return y

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        """See :class:`DeferredOperator`."""
        found: Tensor = self._backward(x, gradient, 0)
        return found

    def weight_gradient(self, parameter: nn.Parameter, x: Tensor, gradient: Tensor) -> Tensor:
        """See :class:`DeferredOperator`."""
        if parameter is self.bias:
            return gradient.sum([i for i in range(gradient.dim()) if i != 1])
        return self._backward(x, gradient, 1)

    def _backward(self, x: Tensor, gradient: Tensor, which: int) -> Tensor:
        wanted = [place == which for place in range(3)]
        found: Any = _aten.convolution_backward(gradient, x, self.weight, None, *self.settings, wanted)
        return found[which]  # type: ignore[no-any-return]


class Table(DeferredOperator):
    """Rows of ``weight``, picked by whole numbers; ``padding`` is the row that is not trained, -1 if all are."""

    def __init__(self, weight: nn.Parameter, padding: int = -1) -> None:
        super().__init__(weight)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """The rows."""
        y: Tensor = _aten.embedding(self.weight, x, self.padding)
        return y

    def input_gradient(self, x: Tensor, gradient: Tensor) -> None:
        """Whole numbers have none."""

    def weight_gradient(self, parameter: nn.Parameter, x: Tensor, gradient: Tensor) -> Tensor:
        """See :class:`DeferredOperator`."""
        found: Tensor = _aten.embedding_dense_backward(gradient, x, len(parameter), self.padding, False)
        return found


def _each(values: Sequence[int], dims: int) -> list[int]:
    return list(values) * dims if len(values) == 1 else list(values)

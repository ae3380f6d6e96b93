"""A model with a backward of its own is refused: an export would go back another way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.captured.captured import Captured, CaptureError


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


_rounded = Rounded.apply


class Own(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 4), kind
        if kind == "module":
            self.layer.register_full_backward_hook(lambda module, gradients, given: None)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if self.kind == "bound":
            return _rounded(y)  # type: ignore[no-untyped-call,no-any-return]
        if self.kind == "function":
            return Rounded.apply(y)  # type: ignore[no-untyped-call,no-any-return]
        y = y.tanh()
        y.register_hook(lambda gradient: 2 * gradient)  # type: ignore[no-untyped-call]
        return y


@pytest.mark.parametrize(("kind", "said"), [
    ("function", "torch.autograd.Function Rounded"), ("bound", "torch.autograd.Function Rounded"),
    ("tensor", "a hook on a tensor"), ("module", "a backward hook on layer")])
def test_it_is_refused_in_one_sentence(kind: str, said: str) -> None:
    x = torch.randn(2, 4)
    with pytest.raises(CaptureError, match=f"Own has a backward of its own, {said}, .*split="):
        Captured.of(Own(kind), (x,))
    assert Rounded.apply(x).shape == x.shape  # type: ignore[no-untyped-call]
    Captured.of(nn.Linear(4, 4), (x,))

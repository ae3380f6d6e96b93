"""What an export refuses is said with the user's line and with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.errors import split_advice
from weft.runtime.captured.inputs.batch_dims import leaves_of


class Model(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)]), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.layers[0](x))


def decides(model: Any, h: Tensor) -> Tensor:
    return h * 2 if h.sum() > 0 else h


def counts(model: Any, h: Tensor) -> Tensor:
    for _ in range(int(h.abs().sum())):
        h = model.layers[1](h)
    return h


class Own:
    def __init__(self, h: Tensor) -> None:
        self.h = h


LINE = r"at test_errors\.py:\d+ \("


@pytest.mark.parametrize(("function", "said"), [
    (decides, rf"cannot be exported: Python looks at the numbers of a tensor, {LINE}return h \* 2 if .*\): "
              r"torch.export must follow the whole forward, so .* split=\[\"layers.2\"\]$"),
    (counts, rf"Python looks at the numbers of a tensor, {LINE}for _ in range\(int"),
    (lambda model, h: h * h.sum().item(), rf"operator item of the model \(Model\) {LINE}.* a number that depends on"),
    (lambda model, h: h[h.sum(-1) > 0].sum(), rf"operator index .*{LINE}.* whose shape depends on data: use torch"),
    (lambda model, h: h.nonzero(), rf"operator nonzero .*{LINE}.* whose shape depends on data"),
    (lambda model, h: h * float(h.detach().numpy().sum()), rf"numpy is called, which an export cannot follow, {LINE}"),
    (lambda model, h: Own(h), "in output.*: give it and let it return tensors in .* use_cache=False among kwargs"),
    (lambda model, h: h + model.missing, rf"Model cannot be run on the example: AttributeError: .*'missing', {LINE}"),
    (lambda model, h: h.reshape(7), rf"Model cannot be run on the example: shape .* is invalid .*, {LINE}")])
def test_the_line_and_what_to_do(function: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said) as found:
        Captured.of(Model(function), (torch.randn(2, 3),)).require_fixed()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("args", "kwargs", "said"), [
    ((), {}, "Model is not called so, missing a required argument: 'x': give args and kwargs as its forward"),
    ((), {"y": torch.zeros(3)}, "Model is not called so, .*'x'|Model is not called so, .*'y'"),
    ((1, 2), {}, "too many positional arguments"),
    ((torch.zeros(3).numpy(),), {}, "x is a numpy ndarray: give torch.as_tensor of it")])
def test_arguments_that_the_forward_does_not_take(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        leaves_of(Model(decides), args, kwargs)


def test_names_are_those_of_the_forward_and_of_the_way_inside() -> None:
    class Nested(nn.Module):
        def forward(self, x: Any, *rest: Tensor, scale: int = 1) -> None: ...

    found = leaves_of(Nested(), ({"a": torch.zeros(1), "b": (torch.zeros(1), 2)}, torch.zeros(1)), {"scale": 3})
    assert [(leaf.argument, leaf.place, leaf.name) for leaf in found] == [
        ("x", 0, "x['a']"), ("x", 0, "x['b'][0]"), ("x", 0, "x['b'][1]"), ("argument 1", 1, "argument 1"),
        ("scale", None, "scale")]


def test_the_advice_names_a_layer_in_the_middle() -> None:
    assert split_advice(Model(decides)) == 'split=["layers.2"]'
    assert split_advice(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))) == 'split=["1"]'
    assert split_advice(nn.Linear(1, 1)) == "split=[names of the submodules that begin a stage]"

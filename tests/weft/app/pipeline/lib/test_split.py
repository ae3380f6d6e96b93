"""A model captured for another shape has the stages of the first capture, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from weft.app.pipeline.lib.split import divided, divided_alike
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.purity import Purity


class Placed(nn.Module):
    """Expands a tensor where there are several samples, as models with positions do; long texts pass one more
    operator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.places = nn.Parameter(torch.ones(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + (self.places.expand(len(x), 1, 4) if len(x) != len(self.places) else self.places)
        return x.tanh() if x.shape[1] > 5 else x


def test_a_batch_of_one_may_lack_what_repeats_a_tensor() -> None:
    model = Placed()

    def captured(*shape: int) -> Captured:
        return Captured.of(model, (torch.ones(*shape, 4),), {})

    two = captured(2, 1)
    purity = Purity(two)
    allowed = [place for place in range(1, len(two.calls)) if place not in purity.forbidden()]
    assert len(captured(1, 1).calls) < len(two.calls)
    for place in allowed:
        wanted, one = divided(two, (place,), purity), captured(1, 1)
        if any("expand" in name for ports in wanted.stages(()).ports.values() for name in ports.takes):
            with pytest.raises(CaptureError, match="exchange other values"):
                divided_alike(one, wanted, Purity(one))
            continue
        found = divided_alike(one, wanted, Purity(one))
        x, modules = torch.ones(1, 1, 4), found.stages((0, 1)).modules
        assert torch.equal(modules[1](*modules[0](x))[0], model(x))
        longer = captured(1, 6)
        with pytest.raises(CaptureError, match=r"something else for this shape: tanh .* in place of nothing"):
            divided_alike(longer, wanted, Purity(longer))

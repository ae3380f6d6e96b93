"""A model on the meta device gives the graph of one with numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.captured_models import CASES, made
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.faked import is_on_meta


class Rotary(nn.Module):
    """A buffer that only ``__init__`` makes, which is an attribute too."""

    angles: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4)
        self.register_buffer("angles", torch.arange(4.0), persistent=False)
        self.first = self.angles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.into(x) * self.angles.cos() + self.first  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_same_and_reads_the_models_own(name: str) -> None:
    real, meta = (made(name, 4, device=device) for device in ("cpu", "meta"))
    wanted, found = (Captured.of(case.model, real.args, real.kwargs) for case in (real, meta))
    assert found.digest == wanted.digest and is_on_meta(meta.model) and not is_on_meta(real.model)
    own = {id(tensor) for tensor in (*meta.model.parameters(), *meta.model.buffers())}
    assert all(id(found.attribute(node)) in own for node in found.graph_module.graph.find_nodes(op="get_attr"))
    assert all(tensor.is_meta for tensor in (*meta.model.parameters(), *meta.model.buffers()))


def test_attributes_that_are_buffers_and_tensors_with_numbers_are_taken_along() -> None:
    with torch.device("meta"):
        module = Rotary()
    found = Captured.of(module, (torch.ones(2, 4),))
    assert {str(node.target) for node in found.graph_module.graph.find_nodes(op="get_attr")} >= {
        "into.weight", "into.bias"} and module.first is module.angles and module.angles.is_meta
    module.into = nn.Linear(4, 4)
    mixed = Captured.of(module, (torch.ones(2, 4),))
    assert mixed.digest == found.digest and not module.into.weight.is_meta


def test_a_tensor_on_meta_that_is_no_buffer_is_refused() -> None:
    with torch.device("meta"):
        module = Rotary()
        module.first = torch.arange(4.0)
    with pytest.raises(CaptureError, match=r"Rotary cannot be .*: .*meta is not on the expected device"):
        Captured.of(module, (torch.ones(2, 4),))

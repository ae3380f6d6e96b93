"""Operators of stages that peers compute together: those that torch has no rule for, or cannot do on shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.tensor_parallel import _Operator

attention = torch.ops.aten.scaled_dot_product_attention.default


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,))
    finally:
        dist.destroy_process_group()


def test_heads_that_are_no_whole_number_for_each_rank_are_refused(mesh: Any) -> None:
    x = DTensor.from_local(torch.ones(4, 5, 6), mesh, [Shard(2)])
    with pytest.raises(CaptureError, match=r"operator view of layers\.0 .Attend. cannot be computed on shares .Cannot "
                                           "unflatten .*whole number of heads"):
        _Operator(torch.ops.aten.view.default, "view", " of layers.0 (Attend)", mesh)(x, [4, 5, 3, 4])


@pytest.mark.parametrize(("mask", "is_local"), [(None, True), (torch.ones(2, 1, 5, 5).bool(), True),
                                                (torch.ones(2, 4, 5, 5).bool(), False)])
def test_each_rank_attends_by_its_own_heads_unless_they_differ_in_their_mask(mesh: Any, mask: Any,
                                                                             is_local: bool) -> None:
    own = [torch.randn(2, 2, 5, 3) for _ in range(3)]
    given = None if mask is None else DTensor.from_local(mask, mesh, [Replicate()])
    found = _Operator(attention, "scaled_dot_product_attention", "", mesh)(
        *(DTensor.from_local(x, mesh, [Shard(1)]) for x in own), given)
    assert found.shape == (2, 4, 5, 3) and found.placements == (Shard(1) if is_local else Replicate(),)
    if is_local:
        assert torch.equal(found.to_local(), attention(*own, mask))


def test_what_is_to_be_computed_whole_is(mesh: Any) -> None:
    called = []

    def draw(x: torch.Tensor) -> torch.Tensor:
        called.append(type(x))
        return x

    one = _Operator(draw, "draw", "", mesh, whole=True)
    assert one(DTensor.from_local(torch.ones(3), mesh, [Replicate()])).placements == (Replicate(),)
    assert called == [torch.Tensor]

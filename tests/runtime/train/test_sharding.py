"""What of a divided tensor counts for a rank, and what cannot be divided; trainings are in ``ranks/test_within``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.runtime.ranks.session import SessionError
from weft.runtime.train.sharding import Sharding, is_divided, own_share, shared_as, whole_of


@pytest.fixture
def second() -> Iterator[Any]:
    """A mesh of two ranks, of which this is the second."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,))
    finally:
        dist.destroy_process_group()


def test_each_number_counts_once_on_all_ranks_together(second: Any) -> None:
    plain = torch.ones(4, 2)
    assert own_share(plain) is plain and not is_divided(plain) and whole_of(plain) is shared_as(plain, plain) is plain
    shares = DTensor.from_local(torch.ones(2, 2), second, [Shard(0)])
    copies = DTensor.from_local(torch.ones(2, 2), second, [Replicate()])
    assert is_divided(shares) and own_share(shares).shape == (2, 2) and not own_share(copies).numel()


@pytest.mark.parametrize(("parameter", "why"), [
    (torch.tensor(1.0), "is one number"), (torch.ones(2, 3).t(), "does not lie row by row"),
    (torch.ones(2, dtype=torch.complex64), "is complex")])
def test_what_cannot_be_divided_is_named(parameter: torch.Tensor, why: str) -> None:
    with pytest.raises(SessionError, match=f"cannot divide the parameter 'scale' of stage 0, which {why}"):
        Sharding({(0,): [nn.Parameter(parameter)]}, [0, 1], torch.device("cpu"), lambda p: "'scale' of stage 0")

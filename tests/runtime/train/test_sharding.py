"""What of a divided tensor counts for a rank, and what cannot be divided; trainings are in ``ranks/test_within``. What
no loss depends on has no gradient, as in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support import finished
from weft.app.pipeline.of_module import pipeline
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


class Beside(nn.Module):
    """Two rows of layers, in both of which a weight is read twice; the loss is of the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.row, self.idle = (nn.ModuleList(nn.Linear(4, 4) for _ in range(2)) for _ in range(2))
        self.tied, self.idle_tied = nn.Parameter(torch.eye(4)), nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x
        for layer, other in zip(self.row, self.idle, strict=True):
            x, y = layer(x).tanh() @ self.tied, other(y).tanh() @ self.idle_tied
        return x, y


def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return (output[0] - target).square().mean()


def require_gradients(copies: int, **options: Any) -> None:
    """Gradients of three steps are those of one process, whichever rank has the parameter."""
    x, plain = torch.arange(32.0).reshape(8, 4) / 32, Beside()
    loss(plain(x), x.flip(1)).backward()  # type: ignore[no-untyped-call]
    rows = x.chunk(copies)
    with pipeline(Beside(), (rows[0],), loss=loss, target=rows[0], micro_batches=2, schedule="1f1b", cuts=[6],
                  time_limit=1.0, **options) as pipe:
        own = rows[pipe.session.replica]
        for _ in range(3):
            pipe.step(own, target=own.flip(1))
            for name, parameter in pipe.named_parameters():
                wanted, found = plain.get_parameter(name).grad, parameter.grad
                assert (found is None) == (wanted is None) == ("idle" in name), name
                assert found is None or wanted is None or torch.allclose(whole_of(found), wanted, atol=1e-6), name
            pipe.zero_grad()


@pytest.mark.slow
def test_what_no_loss_depends_on_has_no_gradient_where_it_is_tied_or_divided() -> None:
    finished(2, __name__, "1")
    finished(4, __name__, "2", "divided")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    require_gradients(int(sys.argv[1]), **({} if sys.argv[1] == "1" else {"data": 2}))
    if "divided" in sys.argv:
        require_gradients(2, data=2, fully_shard=True)
    dist.destroy_process_group()

"""Which ranks a mesh, a group and ``data=`` mean, and what is refused of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from weft.app.pipeline.lib.mesh import Places, places_of, require_unwrapped
from weft.app.pipeline.lib.options import PipelineOptions
from weft.runtime.captured.captured import CaptureError


@pytest.fixture
def four() -> Iterator[None]:
    """A process group of four ranks, of which this is number 2."""
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


def asked(**options: Any) -> PipelineOptions:
    return PipelineOptions(micro_batches=2, **options)


def mesh(table: list[Any], *names: str) -> Any:
    return DeviceMesh("cpu", table, mesh_dim_names=names or None, _init_backend=False)


def test_without_a_group_ranks_are_those_that_will_join() -> None:
    assert places_of(asked()) == Places(None, 1) and places_of(asked(data=2)) == Places(None, 2)
    with pytest.raises(CaptureError, match="need a process group: call"):
        places_of(asked(mesh=object()))


@pytest.mark.usefixtures("four")
def test_a_mesh_is_read_copy_after_copy_whichever_dimension_comes_first() -> None:
    assert places_of(asked()) == Places((0, 1, 2, 3), 1)
    assert places_of(asked(data=2)) == Places((0, 1, 2, 3), 2)
    assert places_of(asked(mesh=mesh([3, 2]))) == Places((3, 2), 1)
    assert places_of(asked(mesh=mesh([[0, 1], [2, 3]], "data", "pipeline"))) == Places((0, 1, 2, 3), 2)
    assert places_of(asked(mesh=mesh([[0, 1], [2, 3]], "pp", "dp"), data=2)) == Places((0, 2, 1, 3), 2)
    shares: Any = {"tensor_parallel": {}}
    assert places_of(asked(mesh=mesh([[0, 1], [2, 3]], "pp", "tp"), **shares)) == Places((0, 2, 1, 3), 1, 2)
    assert places_of(asked(mesh=mesh([[[0], [2]], [[1], [3]]], "tp", "dp", "pp"), **shares)) == Places(
        (0, 1, 2, 3), 2, 2)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(("said", "make"), [
    ("data is 0, it must be a whole number of copies", lambda: {"data": 0}),
    ("data is 3, but 4 ranks cannot be 3 copies of equal size", lambda: {"data": 3}),
    ("mesh and group are both given", lambda: {"mesh": mesh([0, 2]), "group": dist.group.WORLD}),
    ("mesh is list, it must be a torch.distributed.device_mesh.DeviceMesh", lambda: {"mesh": [0, 1]}),
    ("has 2 dimensions, named a, b: it must have one, or one that is",
     lambda: {"mesh": mesh([[0, 1], [2, 3]], "a", "b")}),
    ("has 3 dimensions, named data, pipeline, x: it", lambda: {"mesh": mesh([[[0], [2]]], "data", "pipeline", "x")}),
    ("has 2 ranks along tp, but nothing says what they divide", lambda: {"mesh": mesh([[0, 2]], "pp", "tp")}),
    ("that is named tensor or tp: mesh has data, pp$",
     lambda: {"mesh": mesh([[0, 2]], "data", "pp"), "tensor_parallel": {}}),
    ("that is named tensor or tp: mesh has none", lambda: {"tensor_parallel": {}}),
    ("data is 4, but the mesh has 2 copies", lambda: {"mesh": mesh([[0, 1], [2, 3]], "dp", "pp"), "data": 4}),
    ("rank 2 is not of the mesh or group, whose ranks are 0, 1", lambda: {"mesh": mesh([0, 1])})])
def test_what_does_not_fit_is_refused_in_one_sentence(said: str, make: Any) -> None:
    with pytest.raises(CaptureError, match=said):
        places_of(asked(**make()))


@pytest.mark.usefixtures("four")
def test_a_model_that_is_wrapped_is_refused() -> None:
    plain = nn.Sequential(nn.Linear(2, 2))
    require_unwrapped(plain)
    with pytest.raises(CaptureError, match="the model is wrapped in DistributedDataParallel already, which"):
        require_unwrapped(DistributedDataParallel(plain, init_sync=False))
    with pytest.raises(CaptureError, match="0 is wrapped in fully_shard already"):
        require_unwrapped(nn.Sequential(_sharded(plain[0])))


@pytest.mark.usefixtures("four")
def test_shares_of_parameters_are_refused() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    shared = parallelize_module(nn.Sequential(nn.Linear(4, 4)), init_device_mesh("cpu", (4,)), {"0": ColwiseParallel()})
    with pytest.raises(CaptureError, match=r"the parameter 0\.weight is a DTensor, sharded .* as tensor_parallel="):
        require_unwrapped(shared)


def _sharded(module: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=init_device_mesh("cpu", (4,)))  # type: ignore[return-value]

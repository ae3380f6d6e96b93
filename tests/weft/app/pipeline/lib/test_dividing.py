"""What ``tensor_parallel=`` says of parameters, and what is refused of it; trainings are in ``ranks/test_within``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.support.captured_models import GPT
from weft.app.pipeline.lib.dividing import in_shares, peers_of, require_plan_of_shares
from weft.app.pipeline.lib.options import PipelineOptions
from weft.runtime.captured.captured import Captured, CaptureError

IDS = torch.zeros(2, 5, dtype=torch.int64)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two ranks with shares, of which this is the second."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        yield init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp"))
    finally:
        dist.destroy_process_group()


def asked(plan: Any, mesh: Any = None, **options: Any) -> PipelineOptions:
    return PipelineOptions(micro_batches=2, mesh=mesh, tensor_parallel=plan, **options)


def test_a_rank_holds_its_shares_and_the_model_is_captured_as_a_whole(mesh: Any) -> None:
    model = GPT(words=24)
    whole = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    plan = {"layers.*.wide": ColwiseParallel(), "layers.0.narrow": RowwiseParallel(), "words": RowwiseParallel()}
    before = Captured.of(model, (IDS,))
    found = in_shares(before, asked(plan, mesh))
    parameters: dict[str, Any] = dict(model.named_parameters())
    assert {name: parameter.placements for name, parameter in parameters.items() if parameter.placements != (
        Replicate(),)} == {**{f"layers.{i}.wide.{kind}": (Shard(0),) for i in range(3) for kind in ("weight", "bias")},
                           "layers.0.narrow.weight": (Shard(1),), "words.weight": (Shard(0),)}
    for name, parameter in parameters.items():
        how, value = parameter.placements[0], whole[name]
        own = value.chunk(2, how.dim)[1] if how.is_shard() else value
        assert torch.equal(parameter.to_local(), own) and parameter.shape == value.shape
    assert model.head.weight is model.words.weight  # a tie stays one
    assert found.names.keys() == {id(p) for p in parameters.values()}
    assert Captured.of(model, (IDS,)).digest == before.digest
    layer: Any = model.layers[0]
    assert not layer.wide._forward_hooks  # what styles register is not on the model


def test_a_function_may_lay_parameters_as_it_likes(mesh: Any) -> None:
    def own(name: str, module: nn.Module, mesh: Any) -> None:
        for key, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(module, nn.LayerNorm):
                module.register_parameter(key, nn.Parameter(DTensor.from_local(parameter, mesh, [Partial()])))

    model = GPT()
    with pytest.raises(CaptureError, match=r"places layers\.0\.before\.weight as Partial"):
        in_shares(Captured.of(model, (IDS,)), asked(lambda model, mesh: distribute_module(model, mesh, own), mesh))
    assert peers_of(asked(None)) is None


@pytest.mark.parametrize(("said", "options"), [
    ("names 'layers.*.broad', which is no submodule of GPT: it has words, places, layers",
     {"plan": {"layers.*.broad": ColwiseParallel()}}),
    (r"\['layers.0'\] is str, it must be a ParallelStyle", {"plan": {"layers.0": "colwise"}}),
    ("is int, it must be styles by submodule, or a function", {"plan": 3})])
def test_what_says_nothing_of_the_model_is_refused(said: str, options: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match=said):
        require_plan_of_shares(GPT(), asked(**options))


@pytest.mark.parametrize(("said", "plan"), [
    (r"divides words\.weight, of \(23, 16\), along dimension 0 among 2 ranks: it must be a multiple of that",
     {"words": RowwiseParallel()}),
    ("cannot be applied: ColwiseParallel currently only support", {"norm": ColwiseParallel()}),
    (r"head\.weight as Shard\(dim=0\), which conflicts with another placement", lambda model, mesh: parallelize_module(
        model, mesh, {"words": ColwiseParallel(), "head": ColwiseParallel()}))])
def test_a_plan_that_cannot_be_done_is_refused(mesh: Any, said: str, plan: Any) -> None:
    with pytest.raises(CaptureError, match=said):
        in_shares(Captured.of(GPT(), (IDS,)), asked(plan, mesh))

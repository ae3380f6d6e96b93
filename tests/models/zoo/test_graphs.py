"""The zoo's operator graphs: work, what is kept, sharing, branches, and the ways to split."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.support.loading import loaded_after
from weft.models import PUBLISHED, OperatorGraph
from weft.models.spec.base import Section
from weft.models.spec.families import FAMILIES, GptModel, T5Model
from weft.models.spec.model_sections import GraphModel
from weft.models.zoo.graphs import GRAPHS, model_graph

SMALL: dict[str, Section] = {
    "gpt": GptModel(family="gpt", layers=2, hidden=64, heads=4, vocabulary=100, sequence=16),
    "t5": T5Model(family="t5", encoder_layers=2, decoder_layers=2, hidden=64, heads=4, feed_forward=128, vocabulary=96,
                  sequence=16, target=8),
    **{name: PUBLISHED[name] for name in ("swin-t", "resnet50", "uno-auc", "dlrm-mlperf", "graphpipe-mmt",
                                          "graphpipe-dlrm", "flava")},
    "moe": PUBLISHED["mixtral-8x7b"].model_copy(update={"layers": 2, "hidden": 64, "sequence": 16}),
    "llama": PUBLISHED["llama-3-8b"].model_copy(update={"layers": 2, "hidden": 64, "sequence": 16}),
    "neox": PUBLISHED["gpt-neox-20b"].model_copy(update={"layers": 2, "hidden": 128, "sequence": 16}),
    "evoformer": PUBLISHED["evoformer"].model_copy(update={"blocks": 2, "residues": 16, "sequences": 8}),
}


@pytest.fixture(params=SMALL)
def graph(request: pytest.FixtureRequest) -> OperatorGraph:
    return model_graph(SMALL[request.param], 4)


def test_every_split_cuts_axes_that_it_divides(graph: OperatorGraph) -> None:
    for operator in graph.operators:
        assert len({split.dimension for split in operator.splits}) == len(operator.splits), operator.name
        for split in operator.splits:
            for name, layout in {**split.inputs, **split.outputs}.items():
                if isinstance(layout, int):
                    assert graph.tensors[name].shape[layout] % split.size == 0, (operator.name, split.dimension, name)
            assert all(graph.parameters[name].count % split.size == 0 for name in split.parameters), operator.name


def test_a_batch_split_leaves_no_tensor_of_the_batch_whole(graph: OperatorGraph) -> None:
    for operator in graph.operators:
        for split in (split for split in operator.splits if split.dimension == "batch"):
            for name in operator.inputs:
                if graph.tensors[name].shape[:1] == (4,) and graph.tensors[name].shape[0] == split.size:
                    assert split.inputs.get(name) == 0, (operator.name, name)


@pytest.mark.parametrize(("name", "giga"), [("resnet50", 4.09), ("resnet152", 11.51), ("wide-resnet50-2", 11.40),
                                            ("swin-t", 4.49), ("swin-b", 15.43)])
def test_multiplications_are_as_many_as_published(name: str, giga: float) -> None:
    """GFLOPS in torchvision's documentation: multiply-adds of convolutions and matrix products, one image."""
    operators = model_graph(PUBLISHED[name]).operators
    flops = sum(o.forward.flops for o in operators if o.kind in {"linear", "matmul", "convolution"})
    assert flops / 2e9 == pytest.approx(giga, rel=0.01)


def test_a_gpt_layer_computes_and_keeps_what_the_published_formulas_say() -> None:
    """Korthikanti et al. 2022: 24 b s h^2 + 4 b s^2 h operations (appendix A), 34 s b h + 5 a s^2 b bytes (4.1)."""
    s, h, a, batch = 256, 512, 8, 2
    graph = model_graph(GptModel(family="gpt", layers=3, hidden=h, heads=a, vocabulary=1000, sequence=s), batch)
    layer = [operator for operator in graph.operators if operator.layer == "layer1"]
    flops = sum(o.forward.flops for o in layer if o.kind in {"linear", "matmul"})
    assert flops == 24 * batch * s * h**2 + 4 * batch * s**2 * h
    statistics = 2 * (2 * batch * s * 4)
    assert graph.saved_bytes(o.name for o in layer) == 34 * s * batch * h + 5 * a * s**2 * batch + statistics


def test_a_gpt_layer_keeps_what_pytorch_keeps() -> None:
    """The same layer in PyTorch, in fp32: equal to the byte, parameters left out (dropout as GPUs have it: with a mask
    of one byte an element)."""
    s, h, a = 16, 32, 4
    graph = model_graph(GptModel(family="gpt", layers=1, hidden=h, heads=a, vocabulary=50, sequence=s), dtype="float32")
    ours = graph.saved_bytes(o.name for o in graph.operators if o.layer == "layer0")

    weights = {"n1": (h,), "b1": (h,), "n2": (h,), "b2": (h,), "qkv": (3 * h, h), "qkvb": (3 * h,), "d": (h, h),
               "db": (h,), "u": (4 * h, h), "ub": (4 * h,), "w": (h, 4 * h), "wb": (h,)}
    p = {name: torch.randn(shape, requires_grad=True) for name, shape in weights.items()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(1, s, h, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = functional.layer_norm(x, (h,), p["n1"], p["b1"])
        q, k, v = (t.view(1, s, a, h // a).transpose(1, 2)
                   for t in functional.linear(y, p["qkv"], p["qkvb"]).chunk(3, -1))
        scores = torch.native_dropout(torch.softmax(q @ k.transpose(2, 3), -1), 0.1, True)[0]
        y = functional.linear((scores @ v).transpose(1, 2).flatten(2), p["d"], p["db"])
        z = x + torch.native_dropout(y, 0.1, True)[0]
        y = functional.linear(functional.layer_norm(z, (h,), p["n2"], p["b2"]), p["u"], p["ub"])
        y = functional.linear(functional.gelu(y), p["w"], p["wb"])
        (z + torch.native_dropout(y, 0.1, True)[0]).sum()
    for parameter in p.values():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) == ours


def test_recycled_runs_share_their_parameters_and_come_first() -> None:
    graph = model_graph(SMALL["evoformer"])
    once = model_graph(SMALL["evoformer"].model_copy(update={"recycles": 0}))
    assert graph.parameter_count() == once.parameter_count()
    assert graph.saved_bytes() == once.saved_bytes()
    assert sum(o.forward.flops for o in graph.operators) > 3.9 * sum(o.forward.flops for o in once.operators)


def test_building_graphs_loads_neither_torch_nor_a_solver() -> None:
    assert loaded_after("import weft.models.zoo.graphs", "torch", "ortools", "altair") == []


@pytest.mark.parametrize("dimension", ["batch", "sequence"])
def test_splits_along_the_data_meet_without_an_exchange(dimension: str) -> None:
    """What every operator can be cut along, all of a feed-forward part can."""
    graph = model_graph(SMALL["gpt"], 4)
    for operator in graph.operators:
        if operator.layer == "layer0" and (dimension == "batch" or "attention" not in operator.name):
            (split,) = [split for split in operator.splits if split.dimension == dimension]
            axis = {"batch": 0, "sequence": 1}[dimension]
            assert all(split.inputs[name] == axis for name in operator.inputs), operator.name
            assert all(split.outputs[tensor.name] == axis for tensor in operator.outputs)
            assert not split.parameters


def test_every_family_of_a_spec_has_a_graph_and_its_own_name() -> None:
    assert set(GRAPHS) == set(FAMILIES.values())
    assert {type(model) for model in PUBLISHED.values()} == set(GRAPHS)
    with pytest.raises(TypeError, match="GraphModel is no family"):
        model_graph(GraphModel(graph="a.json"))

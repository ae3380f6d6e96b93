"""What a device keeps of a transformer layer that several compute together."""

import pytest

from weft.models.hardware.devices import DEVICES
from weft.models.layers.collectives import collective_time
from weft.models.layers.costs import LayerCost
from weft.models.layers.layering import layers_of
from weft.models.spec.families import GptModel
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.tensor_parallel.shard import Sharded, shard
from weft.models.times.roofline import Roofline
from weft.models.zoo.gpt import gpt_graph

SEQUENCE, HIDDEN, HEADS, BATCH = 512, 1024, 16, 2
SBH = SEQUENCE * BATCH * HIDDEN


def sharded(degree: int, *, sliced: bool, attention: str = "unfused") -> Sharded:
    model = GptModel.model_validate({"family": "gpt", "layers": 2, "hidden": HIDDEN, "heads": HEADS, "vocabulary": 4096,
                                     "sequence": SEQUENCE, "attention": attention})
    graph, device = gpt_graph(model, BATCH), DEVICES["a100"]
    times = Roofline(device).times(graph)
    return shard(graph, PartTimes(graph, times, degree, Roofline(device)),
                 lambda kind, size: collective_time(kind, size, degree, device).seconds, sliced=sliced)


def layer(found: Sharded) -> LayerCost:
    return layers_of(found.graph, found.times, training=True)[1]


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
@pytest.mark.parametrize("attention", ["unfused", "fused"])
def test_activations_are_those_of_the_published_formulas(degree: int, attention: str) -> None:
    """Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, table 2; fused
    attention keeps no scores, as selective recomputation."""
    scores = 5 * HEADS * SEQUENCE / HIDDEN if attention == "unfused" else 0
    together = SBH * (10 + 24 / degree + scores / degree)
    sequence_parallel = SBH * (34 + scores) / degree
    for sliced, formula in ((False, together), (True, sequence_parallel)):
        kept = layer(sharded(degree, sliced=sliced, attention=attention)).activation_bytes
        assert kept == pytest.approx(formula, rel=0.01)


def test_nothing_is_cut_along_samples_or_positions_where_all_is_to_be_whole() -> None:
    """Rings that reach the same share make a reduce-scatter and an all-gather as quick as an all-reduce."""
    device = DEVICES["a100"]
    graph = gpt_graph(GptModel(family="gpt", layers=2, hidden=6144, heads=64, vocabulary=51200, sequence=2048), 4)
    parts = PartTimes(graph, Roofline(device).times(graph), 8, Roofline(device))
    free, whole = (shard(graph, parts, lambda kind, size: collective_time(kind, size, 8, device).seconds, whole=whole)
                   for whole in (False, True))
    cut = {"batch", "sequence"}
    assert cut & {choice.dimension for choice in free.choices.values() if choice is not None}
    assert not cut & {choice.dimension for choice in whole.choices.values() if choice is not None}
    assert layer(whole).activation_bytes > layer(free).activation_bytes


def test_what_is_gathered_again_is_in_the_workspace_and_takes_time_beyond_the_input_gradient() -> None:
    found = sharded(4, sliced=True)
    parts = {name: operator for name, operator in found.graph.by_name.items() if operator.slices}
    assert {name.rsplit(".", 1)[-1] for name in parts} == {"qkv", "up", "logits"}
    for operator in parts.values():
        assert set(operator.slices) <= set(operator.keeps) & set(operator.deferred or ())
        (slice_, whole), = operator.slices.items()
        assert whole == 4 * found.graph.tensors[slice_].bytes
    cost = layer(found)
    assert cost.workspace_weight_grad >= max(sum(p.bytes for p in o.parameters) + sum(o.slices.values())
                                             for o in parts.values() if o.layer == cost.name)

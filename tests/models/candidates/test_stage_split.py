"""The split of layers onto GPUs."""

from __future__ import annotations

import pytest

from weft.models.candidates.stage_split import NoSplit, split_layers
from weft.models.candidates.stages import MemoryRule, stage_device
from weft.models.layers.costs import LayerCost


def layer(load: int, memory: int = 0, parameters: int = 0) -> LayerCost:
    return LayerCost("layer", load * 1e-9, 0.0, 0.0, 0.0, parameters, memory, 0, 0)


def test_the_bottleneck_is_least() -> None:
    split = split_layers("chain", [layer(load) for load in (3, 3, 3, 1, 1, 4)], [10, 10, 10])
    assert max(split.loads) == pytest.approx(6e-9)
    assert split.devices == (0, 1, 2)


def test_memory_moves_a_cut() -> None:
    layers = [layer(1, memory=5) for _ in range(6)]
    assert split_layers("chain", layers, [100, 100]).cuts == (0, 3, 6)
    assert split_layers("chain", layers, [100, 10]).cuts == (0, 4, 6)
    assert split_layers("chain", layers, [100, 20], in_flight=[1, 2]).cuts == (0, 4, 6)


def test_two_stages_a_gpu_share_its_load_evenly() -> None:
    layers = [layer(1) for _ in range(8)]
    assert split_layers("v", layers, [1, 1]).cuts == (0, 2, 4, 6, 8)
    assert split_layers("v", layers, [1, 1]).devices == (0, 1, 1, 0)
    assert split_layers("loop", layers, [1, 1]).cuts == (0, 2, 4, 6, 8)
    assert split_layers("loop", layers, [1, 1]).devices == (0, 1, 0, 1)


def test_no_split_names_the_gpu_and_the_least_memory() -> None:
    layers = [layer(1, memory=4, parameters=1) for _ in range(4)]
    with pytest.raises(NoSplit, match=r"gpu\d with its 9 B lacks 3 B; the least memory per GPU .* is 12 B") as caught:
        split_layers("chain", layers, [9, 9], rule=MemoryRule(bytes_per_parameter=1, reserve=2))
    assert (caught.value.missing, caught.value.least) == (3, 12)
    assert max(split_layers("chain", layers, [12, 12], rule=MemoryRule(bytes_per_parameter=1, reserve=2)).memory) == 10


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="3 layers cannot fill 4 stages"):
        split_layers("v", [layer(1)] * 3, [1, 1])


def test_a_large_model_is_cut_as_well() -> None:
    split = split_layers("chain", [layer(1 + i % 7) for i in range(500)], [1] * 32)
    assert len(set(split.cuts)) == 33


def test_the_stages_of_each_shape() -> None:
    assert stage_device("chain", 3) == (0, 1, 2)
    assert stage_device("v", 3) == (0, 1, 2, 2, 1, 0)
    assert stage_device("loop", 3) == (0, 1, 2, 0, 1, 2)
    assert stage_device("loop", 2, 3) == (0, 1, 0, 1, 0, 1)
    assert stage_device("wave", 2) == (0, 1, 1, 0, 0, 1)
    assert stage_device("wave", 2, 4) == (0, 1, 1, 0, 0, 1, 1, 0)

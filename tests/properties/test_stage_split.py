"""The split of layers onto GPUs, alike or unequal, against every way of cutting."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.models.candidates.stage_split import NoSplit, StageSplit, split_at, split_layers
from weft.models.candidates.stages import (
    Backward,
    MemoryRule,
    Shape,
    StageCost,
    Stages,
    peak_bytes,
    stage_device,
    static_bytes,
)
from weft.models.layers.costs import LayerCost

BYTES_PER_PARAMETER = 3

#: Per GPU its stages, in order.
Rows = list[list[StageCost]]
#: Shape, layers of each GPU, memory of each GPU, micro-batches in flight of each stage, backward, borders.
Case = tuple[Shape, list[list[LayerCost]], list[int], list[int], Backward, frozenset[int]]


@st.composite
def layer(draw: st.DrawFn, gradients: dict[str, int]) -> LayerCost:
    """``gradients``: the bytes of each that layers may share, one size whichever layer has it."""
    small, sizes = st.integers(0, 5), st.integers(0, 9)
    input_grad, weight_grad = draw(small) * 1e-9, draw(st.integers(1, 5)) * 1e-9
    return LayerCost(
        "layer", draw(st.integers(1, 9)) * 1e-9, round(input_grad + weight_grad, 9), input_grad, weight_grad,
        parameters=draw(sizes), activation_bytes=draw(sizes), weight_grad_bytes=draw(sizes),
        output_bytes=0, workspace_forward=draw(small), workspace_backward=draw(small),
        workspace_weight_grad=draw(small), working_set=draw(sizes),
        held_gradients=tuple((name, gradients[name]) for name in draw(st.sets(st.sampled_from("ab"), max_size=2))))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape: Shape = draw(st.sampled_from(("chain", "v", "loop")))
    gpus = draw(st.integers(1, 3))
    stages = len(stage_device(shape, gpus))
    gradients = {name: draw(st.integers(0, 9)) for name in "ab"}
    layers = draw(st.lists(layer(gradients), min_size=stages, max_size=max(7, stages)))
    memory = draw(st.lists(st.integers(10, 150), min_size=gpus, max_size=gpus))
    in_flight = draw(st.lists(st.integers(1, 3), min_size=stages, max_size=stages))
    inner = st.integers(1, len(layers) - 1) if len(layers) > 1 else st.nothing()
    borders = draw(st.frozensets(inner, max_size=min(2, stages - 1)))
    by_kind = [layers, [replace(one, forward=draw(st.integers(1, 9)) * 1e-9) for one in layers]]
    kinds = draw(st.lists(st.integers(0, 1), min_size=gpus, max_size=gpus))
    backward: Backward = draw(st.sampled_from(("full", "split", "none")))
    return shape, [by_kind[kind] for kind in kinds], memory, in_flight, backward, borders


def every_split(shape: Shape, layers: list[list[LayerCost]], borders: frozenset[int]) -> list[Rows]:
    gpus, count = len(layers), len(layers[0])
    devices, stages = stage_device(shape, gpus), [Stages(own) for own in layers]
    return [[[stages[gpu].stage(first, last) for (first, last), device in zip(pairwise((0, *cuts, count)), devices,
                                                                              strict=True) if device == gpu]
             for gpu in range(gpus)]
            for cuts in combinations(range(1, count), len(devices) - 1) if borders.issubset(cuts)]


def needs(shape: Shape, rows: Rows, in_flight: list[int], backward: Backward) -> list[int]:
    devices = stage_device(shape, len(rows))
    return [static_bytes(row, BYTES_PER_PARAMETER)
            + peak_bytes(row, [n for n, device in zip(in_flight, devices, strict=True) if device == gpu], backward)
            for gpu, row in enumerate(rows)]


@for_all(cases(), tries=150)
def test_split_is_the_best_of_all_that_fit(case: Case) -> None:
    shape, layers, memory, in_flight, backward, borders = case

    def value(rows: Rows) -> tuple[int, int, int]:
        need = needs(shape, rows, in_flight, backward)
        return (max(sum(stage.load for stage in row) for row in rows),
                0 if shape == "chain" else max(stage.load for row in rows for stage in row),
                max(amount - capacity for amount, capacity in zip(need, memory, strict=True)))

    def solve() -> StageSplit:
        return split_layers(shape, layers, memory, in_flight,
                            MemoryRule(backward, BYTES_PER_PARAMETER), borders=borders)

    values = [value(rows) for rows in every_split(shape, layers, borders)]
    fitting = [entry for entry in values if entry[2] <= 0]
    if not fitting:
        with pytest.raises(NoSplit) as caught:
            solve()
        assert caught.value.missing == min(shortfall for _, _, shortfall in values)
        assert caught.value.least == memory[caught.value.device] + caught.value.missing
        return
    split = solve()
    rows = [[stage for stage, device in zip(split.stages, split.devices, strict=True) if device == gpu]
            for gpu in range(len(memory))]
    assert value(rows) == min(fitting)
    assert split.cuts[0] == 0 and split.cuts[-1] == len(layers[0]) and sorted(set(split.cuts)) == list(split.cuts)
    assert list(split.memory) == needs(shape, rows, in_flight, backward)
    assert max(split.loads) == pytest.approx(min(fitting)[0] * 1e-9)
    assert split == split_layers(shape, layers, memory, in_flight, MemoryRule(backward, BYTES_PER_PARAMETER),
                                 borders=borders, least_load=max(split.loads))
    assert split == split_at(shape, layers, split.cuts, memory, in_flight, MemoryRule(backward, BYTES_PER_PARAMETER))


@for_all(cases(), tries=60)
def test_the_least_memory_named_is_exactly_enough(case: Case) -> None:
    shape, layers, memory, in_flight, backward, borders = case

    def solve(capacity: int) -> StageSplit:
        return split_layers(shape, layers, [capacity] * len(memory), in_flight,
                            MemoryRule(backward, BYTES_PER_PARAMETER), borders=borders)

    try:
        solve(0)
    except NoSplit as error:
        assert max(solve(error.least).memory) == error.least
        with pytest.raises(NoSplit):
            solve(error.least - 1)

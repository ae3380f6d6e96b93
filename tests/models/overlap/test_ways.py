"""The steps of a stage are what its costs are the sums of."""

from __future__ import annotations

import pytest

from weft.models.overlap.flow import serial
from weft.models.overlap.ways import LayerSteps, Ways
from weft.models.spec.spec import parse_spec
from weft.models.tensor_parallel.parts import stage_cost
from weft.models.tensor_parallel.shapes import together
from weft.models.tensor_parallel.space import Space

GPT = """
name: small
model: {{family: {family}, layers: 3, hidden: 512, heads: 8, sequence: 256, vocabulary: 1000}}
costs: roofline
cluster: {{gpus: 4, memory: 16 GiB, device: {device}}}
training: {{micro_batches: 4, micro_batch_size: 4, recompute: {recompute}}}
placement: {{shapes: [tensor]}}
"""


def space_of(family: str = "gpt", *, recompute: bool = False, device: str = "v100") -> Space:
    family += ", experts: 4" if family == "moe" else ""
    found = together(parse_spec(GPT.format(family=family, recompute=str(recompute).lower(), device=device)))
    assert found is not None
    return found[0]


def steps_of(space: Space, degree: int, between: str = "whole") -> LayerSteps:
    return Ways(space, "full").steps(degree, between)  # type: ignore[arg-type]


@pytest.mark.parametrize("between", ["whole", "sliced"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ["gpt", "moe"])
def test_steps_add_up_to_what_layers_cost(family: str, recompute: bool, between: str) -> None:
    space = space_of(family, recompute=recompute)
    for degree in (2, 4):
        steps = steps_of(space, degree, between)
        costs = space.costs[degree] if between == "whole" else space.sliced(degree)[1]
        for layers in ([1], range(len(space.layers))):
            whole = stage_cost(costs, list(layers))
            assert serial(steps.forward(layers)) * 1e9 == pytest.approx(whole.forward, abs=50)
            assert serial(steps.backward(layers, weights=True)) * 1e9 == pytest.approx(whole.backward, abs=50)
            assert serial(steps.backward(layers, weights=False)) * 1e9 == pytest.approx(whole.input_grad, abs=50)


def test_attention_is_cut_along_samples_but_not_along_positions() -> None:
    steps = {step.name: step for step in steps_of(space_of(), 4).forward([1])}
    assert steps["layer0.attention.score"].divides == {"batch": 4}
    assert steps["layer0.mlp.up"].divides == {"batch": 4, "sequence": 256}
    summed = steps["layer0.mlp.down (whole): all_reduce"]
    assert summed.is_sent and summed.divides == {"batch": 4, "sequence": 256}
    assert summed.pieces[2] < summed.seconds < 2 * summed.pieces[2]


def test_in_slices_a_sum_is_scattered_and_gathered_and_slices_are_what_is_cut() -> None:
    row = steps_of(space_of(), 4, "sliced").forward([1])
    assert [step.name.rpartition(": ")[2] for step in row if step.is_sent] == [
        "all_gather", "reduce_scatter", "all_gather", "reduce_scatter"]
    assert {step.divides["sequence"] for step in row if step.is_sent} == {64}
    norm = next(step for step in row if step.name == "layer0.norm2")
    assert norm.divides == {"batch": 4, "sequence": 64}


def test_weight_gradients_follow_the_collective_that_they_run_beside() -> None:
    row = steps_of(space_of(), 4).backward([1], weights=True)
    names = [step.name for step in row]
    sums = [number for number, step in enumerate(row) if step.is_sent]
    assert len(sums) == 2
    assert "layer0.mlp.up, weights" in names[sums[0] + 1:sums[1]]
    assert "layer0.attention.qkv, weights" in names[sums[1] + 1:]
    readers = {source for step in row for source in step.waits}
    assert not any(name.endswith("weights") and number in readers for number, name in enumerate(names))

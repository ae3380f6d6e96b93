"""A spec's training on all GPUs at once."""

from __future__ import annotations

import pytest

from weft.models.share.data_parallel import data_parallel_job, why_not_data_parallel
from weft.models.share.job import SharingError
from weft.models.spec.spec import parse_spec
from weft.solver.problem import BlockKind

SPEC = """
name: tiny
model:
  layers:
    - {name: block, repeat: 8, forward: 1 ms, backward: 2 ms, activation_memory: 100 MiB, parameters: 10000000,
       output: 1 MiB}
cluster: {gpus: 2, memory: 8 GiB, reserve: 0 GiB, bandwidth: 10 GB/s, latency: 20 us}
training: {micro_batches: 2, gradient_bytes: 4}
"""


def test_sums_run_behind_the_backward_of_their_layers() -> None:
    problem = data_parallel_job(parse_spec(SPEC), "tiny").problem
    by_name = {block.name: block for block in problem.blocks}
    assert [device.name for device in problem.devices] == ["gpu0", "gpu0 network", "gpu1", "gpu1 network"]
    assert by_name["F0"].devices == (0, 2) and by_name["S3"].devices == (1, 3)
    assert by_name["S3"].kind == BlockKind.COLLECTIVE
    assert [wait.block for wait in by_name["S2"].after] == ["B2"]
    assert [(wait.block, wait.distance) for wait in by_name["F0"].after] == [(f"S{s}", 1) for s in range(4)]
    assert sum(block.of_class(None).duration for block in problem.blocks if 0 in block.devices) == pytest.approx(
        8 * 3e-3)
    # 20 million parameters of 4 bytes around a ring of two: half of it, twice, at 10 GB/s.
    assert by_name["S0"].duration == pytest.approx(80e6 / 10e9, rel=0.01)


def test_memory_is_that_of_the_whole_model() -> None:
    problem = data_parallel_job(parse_spec(SPEC), "tiny").problem
    assert problem.devices[0].static == 80_000_000 * 18
    assert problem.devices[0].memory == 8 * 2**30 - 80_000_000 * 18
    blocks = [block.of_class(None) for block in problem.blocks if 0 in block.devices]
    assert sum(block.memory[0] for block in blocks) == 0
    assert all(block.memory == (200 * 2**20,) * 2 for block in blocks if block.name[0] == "F")


def test_micro_batches_before_the_last_are_one_block() -> None:
    problem = data_parallel_job(parse_spec(SPEC.replace("micro_batches: 2", "micro_batches: 6")), "tiny").problem
    assert problem.blocks[0].name == "accumulate" and problem.blocks[0].duration == pytest.approx(2 * 8 * 3e-3)
    assert [wait.distance for wait in problem.blocks[0].after] == [1] * 4
    assert [wait.block for wait in problem.blocks[1].after] == ["accumulate"]


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("training: {micro_batches: 2, gradient_bytes: 4}", "inference: {micro_batches: 2}", "has no gradients to sum"),
    ("micro_batches: 2", "micro_batches: 3", "3 micro-batches cannot be divided over 2 GPUs; give a multiple of 2"),
    ("gpus: 2", "gpus: 1", "cluster.gpus is 1"),
    ("memory: 8 GiB", "memory: 2 GiB", "on each GPU needs .* more than there is"),
])
def test_why_a_spec_is_not_trained_so(old: str, new: str, reason: str) -> None:
    spec = parse_spec(SPEC.replace(old, new))
    with pytest.raises(SharingError, match=reason):
        data_parallel_job(spec, "tiny")
    assert why_not_data_parallel(spec)


def test_layers_that_share_parameters_hold_them_once() -> None:
    text = """
name: small GPT
model: {family: gpt, layers: 4, hidden: 64, heads: 4, vocabulary: 1000, sequence: 32}
costs: roofline
cluster: {gpus: 2, memory: 8 GiB, device: v100}
training: {micro_batches: 2}
"""
    from weft.models.candidates.gpu_costs import gpu_costs

    spec = parse_spec(text)
    layers = gpu_costs(spec).layers[0]
    shared = {name: count for layer in layers for name, count in layer.shared_parameters}
    again = sum(count for layer in layers for _, count in layer.shared_parameters) - sum(shared.values())
    assert again > 0  # embedding and head
    own = sum(layer.parameters for layer in layers) - again
    per_parameter = data_parallel_job(spec, "a").problem.devices[0].static / own
    assert per_parameter == round(per_parameter)

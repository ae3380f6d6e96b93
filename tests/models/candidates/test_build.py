"""The block problems that a spec becomes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from weft.models.candidates.build import ModelCandidate, bytes_per_parameter, candidates, first_candidates, layer_costs
from weft.models.candidates.stage_split import NoSplit
from weft.models.candidates.stages import Stages, peak_bytes
from weft.models.spec.spec import Spec, SpecError, demo_spec, parse_spec
from weft.solver import BlockKind, Schedule, time_orders
from weft.solver.pipeline import Pipeline

LAYERS = """\
name: small
model:
  layers:
    - {{name: embedding, forward: 1 ms, input_grad: 0, weight_grad: 1 ms, activation_memory: 10, output: 1000}}
    - {{name: block, repeat: 6, forward: 1 ms, input_grad: 2 ms, weight_grad: 1 ms, activation_memory: 100,
       weight_grad_memory: {held}, parameters: 10, workspace: 7, output: 1000}}
    - {{name: head, forward: 2 ms, input_grad: 1 ms, weight_grad: 1 ms, activation_memory: 50, parameters: 20}}
cluster: {{gpus: {gpus}, memory: {memory}, reserve: 0, bandwidth: 1 MB/s}}
{run}
"""


def small(gpus: int = 2, memory: object = 100_000, held: int = 40, run: str = "training: {micro_batches: 8}",
          extra: str = "") -> Spec:
    return parse_spec(LAYERS.format(gpus=gpus, memory=memory, held=held, run=run) + extra)


def sequential(candidate: ModelCandidate, micro_batches: int) -> Schedule:
    """One micro-batch after the other, each weight gradient right after its input gradient."""
    problem = candidate.problem
    orders = [[(block, m) for m in range(micro_batches) for block in row] for row in problem.blocks_on]
    return Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), makespan_bound=0)


@pytest.mark.parametrize("spec", [small(), small(held=400), small(run="inference: {micro_batches: 3}"),
                                  small(run="training: {micro_batches: 3, recompute: true}"), demo_spec()],
                         ids=["split", "input gradient takes memory", "inference", "recompute", "demo"])
def test_every_candidate_is_a_pipeline_of_its_shape_that_runs_one_micro_batch_at_a_time(spec: Spec) -> None:
    for candidate in candidates(spec):
        problem = candidate.problem
        pipeline = Pipeline.of(problem)
        assert pipeline.shape == candidate.shape
        assert tuple(stage.device for stage in pipeline.stages) == candidate.stage_device
        assert pipeline.is_split == (candidate.backward == "split")
        assert pipeline.has_backward == (spec.training is not None)
        schedule = sequential(candidate, 2)
        for device, peak in zip(problem.devices, schedule.peak_memory, strict=True):
            assert device.memory is not None and peak <= device.memory
        for number in range(len(problem.devices)):
            assert schedule.memory_profile(number)[-1][1] == 0  # all is given back
        for block in problem.blocks:
            assert all(isinstance(amount, int) for amount in (*block.memory, *block.workspace))
            assert block.duration == round(block.duration, 9) > 0


@pytest.mark.parametrize("held", [40, 400])
def test_the_split_counts_the_memory_that_the_blocks_take(held: int) -> None:
    """What :func:`peak_bytes` says of one micro-batch is what running it alone reaches."""
    spec = small(held=held)
    for candidate in candidates(spec):
        costs = Stages(layer_costs(spec))
        starts = [0]
        for names in candidate.layers_of_stage:
            starts.append(starts[-1] + len(names))
        stages = [costs.stage(first, last) for first, last in pairwise(starts)]
        for device, peak in enumerate(sequential(candidate, 1).peak_memory):
            mine = [stage for stage, where in zip(stages, candidate.stage_device, strict=True) if where == device]
            assert peak == peak_bytes(mine, [1] * len(mine), candidate.backward)


def test_a_device_has_what_reserve_and_weights_leave() -> None:
    spec = demo_spec()
    for candidate in candidates(spec):
        for device, static in zip(candidate.problem.devices, candidate.static_memory, strict=True):
            assert device.memory == 24 * 1024**3 - spec.cluster.reserve - static
        assert sum(candidate.static_memory) == sum(layer.parameters for layer in layer_costs(spec)) * 16
    assert bytes_per_parameter(spec) == 16


def test_an_embedding_alone_has_a_weight_gradient_only() -> None:
    spec = small(gpus=4, extra="placement: {shapes: [v], backward: [split]}\n")
    problem = next(c for c in candidates(spec) if c.layers_of_stage[0] == ("embedding",)).problem
    kinds = {block.name: block.kind for block in problem.blocks}
    assert "I0" not in kinds and kinds["W0"] == BlockKind.WEIGHT_GRAD
    assert Pipeline.of(problem).is_split


def test_a_split_that_leaves_room_for_1f1b_is_offered_where_it_differs() -> None:
    spec = small(memory=[1000, 2000], extra="placement: {shapes: [chain], backward: [full]}\n")
    spread = {candidate.in_flight: [len(names) for names in candidate.layers_of_stage]
              for candidate in candidates(spec)}
    assert set(spread) == {"least", "1f1b"}
    assert spread["1f1b"][0] < spread["least"][0]


def test_a_spec_that_fits_nowhere_says_what_would_do() -> None:
    with pytest.raises(NoSplit) as caught:
        candidates(small(memory="700 B"))
    assert caught.value.least > 700
    assert candidates(small(memory=caught.value.least))
    with pytest.raises(NoSplit):
        candidates(small(memory=caught.value.least - 1))


@pytest.mark.parametrize(("spec", "words"), [
    (small(gpus=9), "model has 8 layers, too few for cluster.gpus: 9"),
    (small(extra="placement: {chunks: 5}\n"), "placement.chunks is 5, on 2 GPUs 10 stages, but model has 8 layers"),
    (small(gpus=5, extra="placement: {shapes: [v, loop]}\n"), "placement.shapes is v, loop, two stages on each of 5"),
])
def test_too_few_layers_are_refused(spec: Spec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        candidates(spec)


@pytest.mark.parametrize("spec", [small(), small(gpus=4), small(run="inference: {micro_batches: 4}"),
                                  small(extra="placement: {cut: [4, 4]}"), small(extra="placement: {shapes: [v]}")])
def test_the_first_candidates_are_among_all(spec: Spec) -> None:
    first, every = list(first_candidates(spec)), candidates(spec)
    assert first and all(candidate in every for candidate in first)

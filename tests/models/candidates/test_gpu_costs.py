"""What layers cost on GPUs that are not alike, and the stages cut for them."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from weft.models import Spec, SpecError, estimate_spec, parse_spec, spec_candidates
from weft.models.candidates.build import candidates
from weft.models.candidates.gpu_costs import families_by_gpu, layer_costs, layer_costs_by_gpu
from weft.models.candidates.placement_sources import spec_problem
from weft.models.tensor_parallel.shapes import together

LISTED = """\
name: listed
model:
  layers:
    - {name: embed, forward: 1 ms, input_grad: 0 ms, weight_grad: 2 ms, activation_memory: 10, output: 1000}
    - {name: block, forward: 2 ms, input_grad: 2 ms, weight_grad: 2 ms, activation_memory: 20, output: 1000, repeat: 9}
    - {name: head, forward: 3 ms, input_grad: 3 ms, weight_grad: 1 ms, activation_memory: 20}
cluster: {gpus: 4, memory: 1 MiB, reserve: 0, bandwidth: 1 GB/s, speed: [1, 1, 2, 2]}
training: {micro_batches: 8}
"""
GPT = """\
name: gpt
model: {family: gpt, layers: 6, hidden: 256, heads: 8, vocabulary: 1024, sequence: 128}
cluster: {gpus: 4, memory: 8 GiB, device: [v100, v100, h100, h100]}
training: {micro_batches: 8}
"""
MEASURED = """\
name: measured
model: {family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}
cluster: {gpus: 4, memory: 32 GiB, links: nvlink-v100, speed: [1, 1, 1, 0.5]}
training: {micro_batches: 8}
"""


def spec_of(text: str, *changes: tuple[str, str]) -> Spec:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_spec(text, "a.yaml")


def test_modelled_layers_take_on_each_gpu_what_its_device_takes() -> None:
    by_gpu = layer_costs_by_gpu(spec_of(GPT))
    assert by_gpu[0] is by_gpu[1] and by_gpu[2] is by_gpu[3]
    for gpu, device in ((0, "v100"), (2, "h100")):
        assert by_gpu[gpu] == layer_costs(spec_of(GPT, ("[v100, v100, h100, h100]", device)))
    slow, fast = (sum(layer.forward for layer in by_gpu[gpu]) for gpu in (0, 2))
    assert fast < slow


def test_a_list_of_one_kind_is_that_kind() -> None:
    listed, plain = spec_of(GPT, ("h100, h100", "v100, v100")), spec_of(GPT, ("[v100, v100, h100, h100]", "v100"))
    assert layer_costs(listed) == layer_costs(plain)
    found, alike = together(listed), together(plain)
    assert found is not None and alike is not None and len(found[1]) == len(alike[1]) > 0


@pytest.mark.parametrize("text", [LISTED, MEASURED], ids=["listed", "measured"])
def test_times_are_divided_by_speed_and_sizes_stay(text: str) -> None:
    spec = spec_of(text)
    plain = layer_costs(spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"speed": None})}))
    for speed, layers in zip(spec.cluster.speeds, layer_costs_by_gpu(spec), strict=True):
        for layer, before in zip(layers, plain, strict=True):
            assert layer.forward == pytest.approx(before.forward / speed, abs=1e-9)
            assert layer.backward == pytest.approx(before.backward / speed, abs=2e-9)
            assert layer.input_grad is not None and layer.weight_grad is not None
            assert layer.input_grad + layer.weight_grad == pytest.approx(layer.backward, abs=1e-12)
            assert (layer.activation_bytes, layer.parameters, layer.output_bytes) == (
                before.activation_bytes, before.parameters, before.output_bytes)


def test_the_cut_follows_the_speeds() -> None:
    spec = spec_of(LISTED)
    by_gpu = layer_costs_by_gpu(spec)

    def bottleneck(cut: tuple[int, ...]) -> float:
        return max(sum(layer.forward + layer.backward for layer in layers[first:last])
                   for layers, (first, last) in zip(by_gpu, pairwise(cut), strict=True))

    chain = next(found for found in candidates(spec) if found.shape == "chain")
    counts = [len(names) for names in chain.layers_of_stage]
    cut = tuple(sum(counts[:s]) for s in range(5))
    assert bottleneck(cut) == pytest.approx(min(bottleneck((0, *inner, 11)) for inner in combinations(range(1, 11), 3)))
    assert sum(counts[:2]) < sum(counts[2:])
    assert bottleneck(cut) == pytest.approx(12e-3)  # four GPUs of speed 1 have 18 ms at best
    rows = {row.stage: row for row in chain.stages}
    for s, (first, last) in enumerate(pairwise(cut)):
        assert rows[s].forward == pytest.approx(sum(layer.forward for layer in by_gpu[s][first:last]))


def test_an_estimate_is_of_each_gpu() -> None:
    found = estimate_spec(spec_of(GPT))
    by_gpu = layer_costs_by_gpu(spec_of(GPT))
    forward = [{layer.name: layer.forward for layer in layers} for layers in by_gpu]
    for stage in found.stages:
        assert stage.forward == pytest.approx(sum(forward[stage.device][name] for name in stage.layers), abs=1e-8)
    assert any("v100" in note for note in found.notes) and any("h100" in note for note in found.notes)
    assert any("in the order" in note for note in found.notes)


def test_gpus_of_several_kinds_compute_no_layer_together() -> None:
    assert together(spec_of(GPT)) is None
    assert together(spec_of(GPT, ("[v100, v100, h100, h100]", "v100, speed: [1, 1, 1, 2]"))) is None
    only = spec_of(GPT + "placement: {shapes: [groups]}\n")
    with pytest.raises(SpecError, match="several GPUs of one kind and of equal memory; allow chain"):
        candidates(only)
    with pytest.raises(SpecError, match="several GPUs of one kind and of equal memory; give those or leave it out"):
        together(spec_of(GPT + "placement: {co_shard: [2]}\n"))


@pytest.mark.parametrize(("text", "use", "words"), [
    (GPT, layer_costs, "one list of layers needs GPUs of one kind, but cluster.device says that they differ"),
    (LISTED, layer_costs, "one list of layers needs GPUs of one kind, but cluster.speed says that they differ"),
    (GPT + "placement: {memory: decide}\n", spec_candidates, "placement.memory: decide needs GPUs of one kind"),
    (LISTED + "placement: {memory: decide}\n", spec_candidates, "placement.memory: decide needs GPUs of one kind"),
    (GPT, lambda spec: spec_problem(spec, replicate=True), "replication of stages needs GPUs of one kind"),
], ids=["device", "speed", "memory of devices", "memory of speeds", "replicas"])
def test_what_needs_equal_gpus_says_so(text: str, use: object, words: str) -> None:
    assert callable(use)
    with pytest.raises(SpecError) as caught:
        use(spec_of(text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_operators_have_the_times_of_each_gpus_device() -> None:
    families = families_by_gpu(spec_of(GPT))
    assert families[0] is families[1] and families[0].times != families[2].times
    assert [operator.name for operator in families[0].graph.operators] == [
        operator.name for operator in families[2].graph.operators]

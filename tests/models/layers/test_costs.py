"""Costs of layers: measured profiles, what is modelled from them, and transfers."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from weft.models.candidates.build import layer_costs
from weft.models.layers.cluster import AffineLink, MeasuredLink, model_cluster
from weft.models.layers.costs import LayerCost
from weft.models.spec.spec import Spec, SpecError, demo_spec, parse_spec
from weft.models.times.profiles import PROFILES, ProfileError, load_p2p_curve

MIB = 1024**2
HIDDEN, HEADS, SEQUENCE, VOCABULARY = 2048, 32, 2048, 51200


def gpt(micro_batch_size: int = 1, layers: int = 24, recompute: bool = False, costs: str = "gpt-1.3b-v100",
        folder: Path | None = None, **others: int) -> Spec:
    sizes = {"hidden": HIDDEN, "heads": HEADS, "vocabulary": VOCABULARY, "sequence": SEQUENCE} | others
    return parse_spec(f"""\
name: x
model: {{family: gpt, layers: {layers}, {", ".join(f"{key}: {value}" for key, value in sizes.items())}}}
costs: {costs}
cluster: {{gpus: 1, memory: 1 B}}
training: {{micro_batches: 1, micro_batch_size: {micro_batch_size}, recompute: {str(recompute).lower()}}}
""", folder=folder)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("size", sorted(PROFILES["gpt-1.3b-v100"]))
def test_the_two_gradients_add_up_to_the_backward(size: int, recompute: bool) -> None:
    for layer in layer_costs(gpt(size, recompute=recompute)):
        assert layer.input_grad is not None and layer.weight_grad is not None
        assert round((layer.input_grad + layer.weight_grad) * 1e9) == round(layer.backward * 1e9)
        for time in (layer.forward, layer.backward, layer.input_grad, layer.weight_grad):
            assert time == round(time, 9) >= 0


def test_a_transformer_layer_keeps_what_the_published_formula_says() -> None:
    """34 sbh + 5 a s^2 b bytes in fp16 with dropout: Korthikanti et al., section 4.1."""
    for size in (1, 2, 4, 8):
        block = layer_costs(gpt(size))[1]
        formula = 34 * SEQUENCE * size * HIDDEN + 5 * HEADS * SEQUENCE**2 * size
        assert block.activation_bytes == pytest.approx(formula, rel=1e-4)


def test_sizes_of_the_layers() -> None:
    embedding, block, head = layer_costs(gpt(layers=1))
    state, logits = 2 * SEQUENCE * HIDDEN, 2 * SEQUENCE * VOCABULARY
    assert embedding.parameters == (VOCABULARY + SEQUENCE) * HIDDEN
    assert block.parameters == 12 * HIDDEN**2
    assert head.parameters == VOCABULARY * HIDDEN  # its own copy of the tied embedding
    assert (embedding.output_bytes, block.output_bytes, head.output_bytes) == (state, state, 0)
    assert block.weight_grad_bytes == 16 * state and head.weight_grad_bytes == state + logits
    assert embedding.input_grad == 0  # nobody waits for it


def test_recomputation_keeps_the_input_and_runs_the_forward_again() -> None:
    kept, again = layer_costs(gpt())[1], layer_costs(gpt(recompute=True))[1]
    assert again.activation_bytes == kept.input_bytes == 8 * MIB
    assert again.backward == pytest.approx(kept.backward + kept.forward, abs=1e-12)
    assert again.input_grad == pytest.approx((kept.input_grad or 0) + kept.forward, abs=1e-12)
    assert again.weight_grad == kept.weight_grad
    assert again.activation_bytes + again.workspace_backward >= kept.activation_bytes + kept.workspace_backward
    assert layer_costs(gpt())[0] == layer_costs(gpt(recompute=True))[0]  # the embedding is not run again


@pytest.mark.parametrize(("field", "value"), [("hidden", 4096), ("heads", 16), ("vocabulary", 50304),
                                              ("sequence", 1024)])
def test_other_sizes_than_the_profile_s_are_refused(field: str, value: int) -> None:
    with pytest.raises(SpecError, match=rf"model.{field} is {value}, but the costs in the profile gpt-1.3b-v100 are "
                                        rf"measured for {field} \d+; .*model.layers"):
        layer_costs(gpt(1, 24, False, "gpt-1.3b-v100", None, **{field: value}))


@pytest.mark.parametrize(("changed", "said"), [
    ({"micro_batch_size": 3}, "micro_batch_size is 3, but the profile gpt-1.3b-v100 is measured for 1, 2"),
    ({"costs": "gpt-13b"}, "costs is 'gpt-13b', it must be a shipped profile .gpt-1.3b-v100, t5-770m")])
def test_sizes_and_profiles_that_were_not_measured_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        layer_costs(gpt(**changed))


def test_a_profile_of_ones_own_stands_beside_the_spec(tmp_path: Path) -> None:
    source = resources.files("weft.models") / "data" / "aceso" / "gpt_1_3B_mbs2_tp1_algo0.csv"
    text = source.read_text()
    profile = tmp_path / "mine.csv"
    spec = gpt(2, layers=2, costs="mine.csv", folder=tmp_path)
    with pytest.raises(SpecError, match=r"costs is mine\.csv, but there is no file"):
        layer_costs(spec)
    profile.write_text(text)
    assert layer_costs(spec) == layer_costs(gpt(2, layers=2))
    for old, new, words in (("forward-compute", "fwd", "line 1: the columns are"),
                            ("63.090", "-63.090", "line 3: forward-compute is '-63.090', it must be a finite number"),
                            ("63.090", "nan", "it must be a finite number"),
                            ("63.090,", "", "line 3: has 8 columns"),
                            ("enc-MLP-gelu", "enc-MLP-GEMM-1", "the operator 'enc-MLP-GEMM-1' appears twice"),
                            ("enc-MLP-gelu", "relu", "the operator 'enc-MLP-gelu' is missing")):
        profile.write_text(text.replace(old, new, 1))
        with pytest.raises(ProfileError, match=words):
            layer_costs(spec)


def test_listed_layers_cost_what_they_say() -> None:
    layers = layer_costs(parse_spec("""\
name: x
model:
  layers:
    - {name: a, repeat: 2, forward: 1 ms, backward: 3 ms, activation_memory: 10, parameters: 5, output: 4}
    - {name: b, forward: 2 ms, input_grad: 1 ms, weight_grad: 2 ms, activation_memory: 1, weights: 7}
cluster: {gpus: 1, memory: 1 B}
training: {micro_batches: 1, parameter_bytes: 4}
"""))
    assert [layer.name for layer in layers] == ["a.0", "a.1", "b"]
    assert [layer.is_split for layer in layers] == [False, False, True]
    assert [layer.backward for layer in layers] == [3e-3, 3e-3, 3e-3]
    assert [layer.parameters for layer in layers] == [5, 5, 2]
    assert [layer.activation_bytes for layer in layers] == [10, 10, 1]
    assert [layer.input_bytes for layer in layers] == [0, 4, 4]
    assert layers[2].weight_grad_bytes == 1  # unless said otherwise, all of it waits for the weight gradient


def test_listed_layers_in_inference_have_no_backward() -> None:
    layers = layer_costs(parse_spec("name: x\nmodel: {layers: [{name: a, forward: 1 s, activation_memory: 10}]}\n"
                                    "cluster: {gpus: 1, memory: 1 B}\ninference: {micro_batches: 1}\n"))
    assert layers == [LayerCost("a", 1, 0, None, None, 0, 10, 10, 0, working_set=10)]


def test_an_affine_link() -> None:
    link = AffineLink(latency=10e-6, bandwidth=2e9)
    assert link.seconds(2_000_000) == pytest.approx(1010e-6)
    assert link.seconds(0) == 0


@pytest.mark.parametrize("file", ["p2p_intra_node.csv", "p2p_inter_node.csv"])
def test_a_measured_link_goes_through_its_points_and_rises_between_them(file: str) -> None:
    points = load_p2p_curve(file)
    link = MeasuredLink(points)
    for size, seconds in points:
        assert link.seconds(size) == pytest.approx(seconds, abs=1e-9)
    sizes = [0, 1, 1000, MIB // 2, MIB, 3 * MIB // 2, 2 * MIB, 100 * MIB, 1000 * MIB, 2000 * MIB]
    times = [link.seconds(size) for size in sizes]
    assert times == sorted(times) and times[0] == 0 < times[1]


def test_nvlink_moves_the_hidden_state_at_its_measured_speed() -> None:
    link = model_cluster(demo_spec().cluster).network.near
    assert link.seconds(8 * MIB) == pytest.approx(8 / 1024 / 35.88, abs=1e-9)


@pytest.mark.parametrize("more, entry", [
    ("model: {family: gpt, layers: 2, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}\ncosts: none.csv",
     "costs is none.csv"),
    ("model: {family: resnet, depths: [1]}\ncosts: none.csv", "costs is none.csv"),
    ("model: {family: resnet, depths: [1]}\ncosts: none.json", "costs is none.json"),
    ("model: {config: none/config.json}\ncosts: v100", "model.config is none/config.json"),
    ("model: {graph: none.json}\ncosts: v100", "model.graph is none.json"),
])
def test_a_file_that_is_not_there_is_named_with_its_entry(more: str, entry: str, tmp_path: Path) -> None:
    text = f"name: absent\n{more}\ncluster: {{gpus: 1, memory: 16 GiB}}\ntraining: {{micro_batches: 2}}\n"
    with pytest.raises(SpecError, match=f"^my.yaml: {re.escape(entry)}, but there is no file {tmp_path}"):
        layer_costs(parse_spec(text, "my.yaml", tmp_path))

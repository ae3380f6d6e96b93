"""What AdamA changes in a plan: no whole gradient is held, the largest layer's passes, tied ones stay."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.support import shows, written
from weft.models import Spec, SpecError, estimate_spec, parse_spec
from weft.models.candidates.build import candidates, layer_costs
from weft.models.candidates.stages import Stages, static_bytes
from weft.models.layers.costs import LayerCost, accumulated

MIB = 1024**2
LAYERS = """
name: small
model:
  layers:
    - {name: a, forward: 1 ms, input_grad: 1 ms, weight_grad: 1 ms, parameters: 1000, activation_memory: 500,
       workspace: 10}
    - {name: b, forward: 1 ms, input_grad: 1 ms, weight_grad: 1 ms, parameters: 3000, activation_memory: 500}
cluster: {gpus: 1, memory: 1 MiB, reserve: 0}
placement: {shapes: [chain]}
training: {micro_batches: 2, gradient_bytes: 4, optimizer: %s}
"""
GPT = """
name: GPT
model: {family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}
costs: %s
cluster: {gpus: 4, memory: %s, links: nvlink-v100}
training: {micro_batches: 4, optimizer: %s}
"""


def spec(text: str) -> Spec:
    return parse_spec(text)


def test_gradients_are_workspace_of_the_largest_layer() -> None:
    adam, adama = (candidates(spec(LAYERS % name)) for name in ("adam", "adama"))
    for before, after in zip(adam, adama, strict=True):
        assert before.static_memory == (4000 * (2 + 4 + 12),) and after.static_memory == (4000 * (2 + 12),)
        assert before.freed == () and after.freed == (4000 * 4,)
        for one, other in zip(before.problem.blocks, after.problem.blocks, strict=True):
            assert one.workspace_on(0) == 10
            # beside a's 10 there are a's 4 x 1000 bytes, beside b's none 4 x 3000
            assert other.workspace_on(0) == (10 if one.kind.letter == "F" else 12_000)
            assert one.memory == other.memory and one.duration == other.duration


def test_a_tied_gradient_is_held_once_in_each_stage() -> None:
    def layer(name: str, parameters: int, shared: int, copied: int) -> LayerCost:
        return accumulated(LayerCost(
            name, 1e-9, 2e-9, 1e-9, 1e-9, parameters, 0, 0, 0,
            shared_parameters=(("table", shared),) if shared else (),
            copied_parameters=(("word", copied),) if copied else ()), 4)

    stages = Stages([layer("a", 50, 20, 0), layer("b", 30, 0, 0), layer("c", 40, 20, 10)])
    assert [stages.stage(i, i + 1).held_gradients for i in range(3)] == [80, 0, 120]
    assert stages.stage(0, 3).held_gradients == 80 + 40  # the table is one
    assert [stages.stage(i, i + 1).workspace_backward for i in range(3)] == [4 * 30, 4 * 30, 4 * 10]
    assert static_bytes([stages.stage(0, 3)], 10) == 10 * (50 + 30 + 40 - 20) + 120


def test_a_layer_without_a_backward_has_no_gradient() -> None:
    layer = LayerCost("a", 1e-9, 0.0, None, None, 5, 0, 0, 0)
    assert accumulated(layer, 4) == layer


@pytest.mark.parametrize("costs", ["gpt-1.3b-v100", "v100"])
def test_the_tied_embedding_of_a_gpt_is_held(costs: str) -> None:
    layers = layer_costs(spec(GPT % (costs, "32 GiB", "adama")))
    word = 2 * 51200 * 2048
    assert [sum(size for _, size in layer.held_gradients) for layer in (layers[0], layers[1], layers[-1])] == [
        word, 0, word]
    plain = layer_costs(spec(GPT % (costs, "32 GiB", "adam")))
    assert not any(layer.held_gradients for layer in plain)
    assert layers[1].workspace_backward - plain[1].workspace_backward == 2 * layers[1].parameters


def test_an_estimate_says_what_is_left_of_gradients() -> None:
    adam, adama = (estimate_spec(spec(GPT % ("gpt-1.3b-v100", "32 GiB", name))) for name in ("adam", "adama"))
    word = 2 * 51200 * 2048
    assert [device.gradients for device in adama.devices] == [word, 0, 0, word]
    assert [stage.gradients for stage in adama.stages] == [word, 0, 0, word]
    assert all(a.needed > b.needed for a, b in zip(adam.devices, adama.devices, strict=True))
    assert "GiB less in all than with Adam" in adama.notes[0]
    assert "400 MiB of tied parameters' are held" in adama.notes[0]


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(SpecError, match=r"training\.optimizer is 'adamm', it must be adam or adama; did you mean"):
        spec(LAYERS % "adamm")


def test_less_memory_is_enough_and_the_comparison_says_so(tmp_path: Path) -> None:
    """Two layers on one GPU: 4,000 parameters at 18 bytes, or at 14 and 12,000 more while gradients are made."""
    tight = tmp_path / "tight.yaml"
    tight.write_text((LAYERS % "adama").replace("1 MiB", str(56_000 + 12_000 + 2 * 1_000 + 500)))
    found = weft.compare(tight, effort=0.5, time_limit=3000)
    assert isinstance(found.with_adam, str) and "lacks" in found.with_adam
    assert "with Adam in place of AdamA nothing fits: no split of 2 layers" in found.caption()
    assert "lacks" in found.to_json()["with_adam"]["infeasible"]
    roomy = written(tmp_path / "roomy.yaml", LAYERS % "adama")
    compared = weft.compare(roomy, effort=0.5, time_limit=3000)
    assert "against weft with Adam in place of AdamA (12.0 ms): a tie" in compared.caption()
    assert "keeps no whole gradients; with Adam they would take" in shows("solve", roomy, "--quiet", "--effort", "0.5")
    plain = written(tmp_path / "plain.yaml", LAYERS % "adam")
    assert weft.compare(plain, effort=0.5, time_limit=3000).with_adam is None
    assert "AdamA" not in shows("solve", plain, "--quiet", "--effort", "0.5")

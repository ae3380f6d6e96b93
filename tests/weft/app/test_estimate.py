"""The estimate of stages before any search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from tests.support import SPECS, refusal, shape, shows, written
from weft.models.spec.spec import demo_spec, parse_spec

GIB = 1024**3


def gpt(memory: str = "32 GiB", costs: str = "v100", more: str = "", run: str = "training") -> str:
    return f"""
name: GPT
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}}
costs: {costs}
cluster: {{gpus: 4, memory: {memory}, links: nvlink-v100}}
{run}: {{micro_batches: 8{more}}}
"""


def test_a_gpu_s_memory_is_the_sum_of_what_it_is_for() -> None:
    found = weft.estimate(parse_spec(gpt())).estimate
    assert found.fits and found.shape == "chain"
    assert [stage.in_flight for stage in found.stages] == [4, 3, 2, 1]
    for stage, device in zip(found.stages, found.devices, strict=True):
        assert (stage.weights, stage.gradients, stage.optimizer) == tuple(stage.parameters * n for n in (2, 2, 12))
        assert device.activations == stage.activation * stage.in_flight
        assert device.needed == (device.weights + device.gradients + device.optimizer + device.activations
                                 + device.workspace + device.reserve)
    assert found.stages[0].sent == 8 * 1024**2 and found.stages[-1].sent == 0
    assert [bool(stage.transfer) for stage in found.stages] == [True, True, True, False]


def test_an_estimate_is_what_the_search_works_with() -> None:
    """The device memory that a candidate's problem is left with, and its durations."""
    from weft.models.candidates.build import candidates

    spec = parse_spec(gpt())
    found = weft.estimate(spec).estimate
    layers = [stage.layers for stage in found.stages]
    (chain,) = [c for c in candidates(spec) if c.shape == "chain" and c.backward == "full"
                and [row.layers for row in c.stages] == layers]
    assert [row.forward for row in chain.stages] == [stage.forward for stage in found.stages]
    assert list(chain.static_memory) == [d.weights + d.gradients + d.optimizer for d in found.devices]


def test_a_given_cut_is_the_one_that_is_estimated() -> None:
    counts = [2, 2, 3, 2, 2, 3, 2, 2, 2, 2, 2, 2]
    waves = parse_spec(gpt() + f"placement: {{cut: {counts}, shapes: [chain, wave]}}\n")
    found = weft.estimate(waves).estimate
    assert found.shape == "wave" and [len(stage.layers) for stage in found.stages] == counts
    assert [stage.device for stage in found.stages] == [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3]
    for device in found.devices:
        own = [stage for stage in found.stages if stage.device == device.device]
        assert device.weights == sum(stage.weights for stage in own)
        assert device.activations == sum(stage.activation * stage.in_flight for stage in own)
    # The cut that the split finds, given, has the same estimate; a worse one does not fit, and that is said.
    chain = weft.estimate(parse_spec(gpt())).estimate
    given = [len(stage.layers) for stage in chain.stages]
    assert weft.estimate(parse_spec(gpt() + f"placement: {{cut: {given}}}\n")).estimate == chain
    uneven = weft.estimate(parse_spec(gpt("12 GiB") + "placement: {cut: [23, 1, 1, 1]}\n"))
    assert not uneven.fits and uneven.estimate.devices[0].missing > 0
    with pytest.raises(ValueError, match=r"placement\.cut has 4 stages on 4 GPUs, which is chain, not v"):
        weft.estimate(parse_spec(gpt() + "placement: {cut: [23, 1, 1, 1]}\n"), shape="v")
    with pytest.raises(ValueError, match="a wave is estimated for a cut that is given"):
        weft.estimate(parse_spec(gpt()), shape="wave")
    with pytest.raises(ValueError, match="a wave is estimated for a cut that is given"):
        weft.estimate(parse_spec(gpt() + "placement: {shapes: [wave]}\n"))


def test_origins_are_told_apart() -> None:
    measured = weft.estimate(demo_spec())
    assert measured.estimate.memory_origin == "measured"
    assert all(stage.time_origin == {"measured": 1.0} for stage in measured.estimate.stages)
    modelled = weft.estimate(parse_spec(gpt()))
    assert modelled.estimate.memory_origin == "modelled"
    assert all(stage.time_origin == {"modelled": 1.0} for stage in modelled.estimate.stages)
    assert any("median error is 8 %" in note for note in modelled.estimate.notes)
    assert any("3 to 11 % lower" in note for note in modelled.estimate.notes)
    given = weft.estimate(SPECS / "tiny.yaml")
    assert given.estimate.memory_origin == "given"


def test_stated_errors_are_those_of_the_experiment() -> None:
    found = json.loads((SPECS.parent / "results" / "roofline.json").read_text())
    error = found["shipped"]["judged on gpt-1.3b-v100"]
    operator, layer = error["operator forward and backward"], error["layer forward and backward"]
    stated = [round(100 * share) for share in (operator["median_absolute"], layer["median_absolute"],
                                               operator["p90_absolute"], layer["p90_absolute"])]
    assert stated == [8, 7, 29, 32]
    memory = found["memory, GPT-1.3B on 4 V100"]
    for recompute, (least, most) in ((False, (3, 11)), (True, (8, 25))):
        peaks = [peak for name, entry in memory.items() if ("recomputation" in name) == recompute
                 for peak in entry["peak of each GPU"]]
        assert (round(-100 * max(peaks)), round(-100 * min(peaks))) == (least, most)
    assert max(abs(entry["kept activations, largest error of a layer"]) for entry in memory.values()) < 0.02


def test_partly_measured_times_say_how_much(tmp_path: Path) -> None:
    text = gpt(costs="gpt-1.3b-v100").replace("sequence: 2048", "sequence: 2048, norm: rms_norm")
    found = weft.estimate(parse_spec(text)).estimate
    assert all(0.9 < stage.time_origin["measured"] < 1 and stage.time_origin["modelled"] > 0 for stage in found.stages)
    assert any("lacks" in note and "are modelled" in note for note in found.notes)


def test_what_does_not_fit_is_said_with_what_is_missing() -> None:
    tight = weft.estimate(parse_spec(gpt("16 GiB"))).estimate
    assert tight.fits and [stage.in_flight for stage in tight.stages] == [1, 1, 1, 1]
    assert tight.notes[0].startswith("4 3 2 1 micro-batches in flight (1F1B) do not fit")
    small = weft.estimate(parse_spec(gpt("8 GiB"))).estimate
    assert not small.fits
    assert all(d.missing == max(0, d.needed - 8 * GIB) for d in small.devices)


def test_inference_keeps_nothing() -> None:
    found = weft.estimate(parse_spec(gpt(run="inference"))).estimate
    assert found.backward == "none"
    assert all(stage.activation == stage.gradients == stage.optimizer == 0 for stage in found.stages)
    assert all(stage.backward == 0 and stage.workspace > 0 for stage in found.stages)


def test_a_config_beside_the_spec_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "gpt2.yaml").write_text("name: GPT-2\nmodel: {config: config.json, sequence: 256}\n"
                                        "cluster: {gpus: 2, memory: 16 GiB, bandwidth: 10 GB/s, device: a100-40gb}\n"
                                        "training: {micro_batches: 4}\n")
    found = weft.estimate(tmp_path / "gpt2.yaml").estimate
    table = 50257 * 768
    assert sum(stage.parameters for stage in found.stages) == 124_439_808 + table  # a copy of the tied table on each
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"config\.json: model_type is 'mamba', which is not read; .*weft capture"):
        weft.estimate(tmp_path / "gpt2.yaml")


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}


def test_a_config_is_estimated_without_a_spec(tmp_path: Path) -> None:
    """Llama-3-8B: the weights, gradients and Adam's states of 8 billion parameters, 16 bytes each, need two H100."""
    path = tmp_path / "llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    report = weft.estimate(path, gpus=64, device="h100")
    assert report.fits and len(report.estimate.devices) == 2 and report.estimate.name == "llama"
    assert sum(stage.parameters for stage in report.estimate.stages) == 8_030_261_248
    assert report.estimate.notes[0].startswith("8,030,261,248 parameters; 2 stages of one h100 and 32 replicas")
    assert "256 samples of 4096 tokens, 8 micro-batches of 1" in report.estimate.notes[0]
    assert "9 times the slowest stage" in report.estimate.notes[1]
    longer = weft.estimate(path, gpus=64, device="h100", sequence=8192, batch=512, micro_batch=2)
    assert len(longer.estimate.devices) > 2
    told = shows("estimate", path, "--gpus", "8", "--device", "h100", "--sequence", "512", "--json")
    assert json.loads(told)["micro_batches"] == 8


@pytest.mark.parametrize(("asked", "words"), [
    ({}, "is a config.json, which says the model alone; say how many GPUs"),
    ({"gpus": 8}, "device is missing, it must be one of v100"),
    ({"gpus": 8, "device": "h1000"}, "device is 'h1000', it must be one of v100"),
    ({"gpus": 8, "device": "cpu"}, "device is 'cpu', it must be one of v100"),
    ({"gpus": 0, "device": "h100"}, "gpus is 0, it must be a whole number from 1 to"),
    ({"gpus": 8, "device": "h100", "batch": 10, "micro_batch": 3}, "batch is 10, but .* give a multiple of 3"),
    ({"gpus": 8, "device": "h100", "sequence": 2**30}, "sequence is 1073741824, .* 1 to 16777216")])
def test_what_a_config_lacks_is_one_sentence(asked: dict[str, int | str], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", json.dumps(LLAMA))
    with pytest.raises(ValueError, match=words) as caught:
        weft.estimate(path, **asked)  # type: ignore[arg-type]
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_grid_of_a_config_is_estimated(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", json.dumps(LLAMA))
    found = weft.estimate(path, gpus=16, device="h100", batch=64, parallel={
        "tensor": 2, "pipeline": 4, "virtual": 2, "zero": 1, "recompute": "none", "context": 1, "micro_batch": 1})
    assert found.fits and len(found.estimate.stages) == 8 and len(found.estimate.devices) == 4
    assert sum(stage.parameters for stage in found.estimate.stages) == pytest.approx(8_030_261_248 / 2, rel=1e-3)
    # rank 0 runs 4 + 2 x 3 forwards ahead of its first backward: 4 of chunk 0, 4 of chunk 1 and 2 of chunk 0 again
    assert [found.estimate.stages[s].in_flight for s in (0, 4)] == [7, 4]
    assert [found.estimate.stages[s].in_flight for s in (3, 7)] == [4, 1]
    held = [stage.activation * stage.in_flight for stage in found.estimate.stages]
    assert [device.activations for device in found.estimate.devices] == [held[r] + held[r + 4] for r in range(4)]
    assert "TP2 PP4 VP2 DP2 micro-batch 1: 16 GPUs, of each stage one of 4; a batch of 64" in found.estimate.notes[0]
    told = shows("estimate", path, "--gpus", "16", "--device", "h100", "--parallel", "tensor=2,data=auto")
    assert "grids listed also TP2" in told
    for text, said in (("tensor=3", "does not divide cluster.gpus"), ("tensr=2", "unknown key 'tensr'")):
        assert said in refusal("estimate", path, "--gpus", "16", "--device", "h100", "--parallel", text)
    assert "is no list such as tensor=8" in refusal("estimate", path, "--parallel", "tensor")


def test_a_spec_takes_no_size_of_a_config() -> None:
    with pytest.raises(ValueError, match=r"batch is for a config\.json"):
        weft.estimate(parse_spec(gpt()), batch=4)
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        weft.estimate("nowhere/config.json", gpus=4, device="h100")
    with pytest.raises(ValueError, match=r"nowhere\.json: cannot be read"):
        weft.estimate("nowhere.json", gpus=4, device="h100")


def test_other_commands_say_where_a_config_goes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ValueError, match=r"name it in a spec \(model: \{config: config\.json\}\), or ask"):
        weft.solve(tmp_path / "config.json")


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    path = written(tmp_path / "gpt.yaml", gpt())
    text = shows("estimate", path)
    assert "modelled" in text and "GiB of each GPU at its peak" in text
    found = json.loads(shows("estimate", path, "--shape", "v", "--json"))
    assert found["shape"] == "v" and len(found["stages"]) == 8 and found["fits"]
    assert found["origin"]["parameters"] == "counted" and found["origin"]["transfer"] == "measured"
    path.write_text(gpt("6 GiB"))
    assert "lacks" in shows("estimate", path, status=1)


def test_what_cannot_be_estimated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a block problem states its own times"):
        weft.estimate(shape("chain", 2, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape is 'x', it must be chain, v, loop or wave"):
        weft.estimate(parse_spec(gpt()), shape="x")
    with pytest.raises(ValueError, match="too few for 64 stages"):
        weft.estimate(parse_spec(gpt().replace("gpus: 4", "gpus: 32")), shape="v")

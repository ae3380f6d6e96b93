"""The spec file: what it accepts, and the one sentence it answers a mistake with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support import SPECS, loaded_after, written
from weft.models.files.limits import MAX_MICRO_BATCHES
from weft.models.hardware.devices import DEVICES
from weft.models.spec.quantities import format_bytes, parse_bandwidth, parse_bytes, parse_seconds
from weft.models.spec.spec import SpecError, load_spec, parse_spec
from weft.models.spec.spec import spec_schema as schema

GPT = """\
name: small
model:
  family: gpt
  layers: 24
  hidden: 2048
  heads: 32
  vocabulary: 51200
  sequence: 2048
cluster:
  gpus: 4
  memory: 32 GiB
  links: nvlink-v100
training:
  micro_batches: 16
"""
LAYERS = """\
name: listed
model:
  layers:
    - {name: block, repeat: 3, forward: 1 ms, backward: 2 ms, activation_memory: 1 MiB, output: 1 KiB}
    - {name: head, forward: 0.002, input_grad: 1 ms, weight_grad: 500 us, weights: 2 MB}
cluster: {gpus: 1, memory: 1000000000}
training: {micro_batches: 1}
"""
EXAMPLES = sorted(SPECS.glob("*.yaml"))

LISTED_RUN = ("model: {{layers: [{{name: a, repeat: 2, forward: 1 ms, backward: 2 ms}}]}}\n"
              "cluster: {{gpus: 2, memory: 24 GiB, bandwidth: 1 GB/s}}\ntraining: {}\n")


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "a.yaml")
    message = str(caught.value)
    assert message.startswith("a.yaml: ") and "\n" not in message
    return message


def test_a_known_device_has_its_memory() -> None:
    without = GPT.replace("  memory: 32 GiB\n", "")
    spec = parse_spec(without.replace("links: nvlink-v100", "device: [a100, a100, h100, h200]"))
    assert spec.cluster.memory == tuple(DEVICES[name].memory for name in ("a100", "a100", "h100", "h200"))
    assert 79 * 1024**3 <= spec.cluster.memory[2] < 80 * 1024**3
    said = parse_spec(GPT.replace("links: nvlink-v100", "device: h100")).cluster
    assert said.memory == (32 * 1024**3,)
    for device in ("bandwidth: 1 GB/s", "device: cpu"):
        assert "cluster.memory is missing" in refusal(without.replace("links: nvlink-v100", device))


def test_a_spec_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "my model.yaml", GPT.replace("name: small\n", ""))
    assert load_spec(path).name == "my model"
    path.write_text(GPT)
    assert load_spec(path).name == "small"


@pytest.mark.parametrize(("training", "micro_batches"), [
    ("{global_batch_size: 32}", 32), ("{global_batch_size: 32, micro_batch_size: 4}", 8),
    ("{global_batch_size: 32, micro_batch_size: 4, micro_batches: 8}", 8)])
def test_a_batch_says_how_many_micro_batches_there_are(training: str, micro_batches: int) -> None:
    assert parse_spec(LISTED_RUN.format(training)).micro_batches == micro_batches


@pytest.mark.parametrize(("training", "words"), [
    ("{global_batch_size: 30, micro_batch_size: 4}",
     "no whole number of micro-batches of 4 (micro_batch_size); make it 28 or 32"),
    ("{global_batch_size: 3, micro_batch_size: 4}", "make it 4"),
    ("{global_batch_size: 32, micro_batch_size: 4, micro_batches: 9}", "but 9 micro-batches of 4 are 36"),
    ("{global_batch_size: 4, lengths: [8, 8]}", "lengths says how many micro-batches there are"),
    ("{global_batch_size: 8.5}", "training.global_batch_size is 8.5, it must be a whole number"),
    ("{global_batch: 8}", "did you mean 'global_batch_size'?")])
def test_a_batch_that_does_not_divide_is_refused(training: str, words: str) -> None:
    assert words in refusal(LISTED_RUN.format(training))


@pytest.mark.parametrize(("entry", "words"), [
    ("memory: 24", "cluster.memory is 24, without a unit that is 24 bytes: did you mean '24 GiB'?"),
    ("memory: [24, 24]", "cluster.memory: entry 0 is 24, without a unit that is 24 bytes: did you mean '24 GiB'?"),
    ('memory: "24"', "did you mean '24 GiB'?"),
    ("memory: 24 GiB, reserve: 2", "cluster.reserve is 2, without a unit that is 2 bytes: did you mean '2 GiB'?"),
    ("memory: 24 GiB, latency: 10", "cluster.latency is 10, without a unit that is 10 seconds: did you mean '10 ms'?")])
def test_a_number_without_a_unit_is_asked_about(entry: str, words: str) -> None:
    assert words in refusal(LISTED_RUN.format("{micro_batches: 4}").replace("memory: 24 GiB", entry))
    slow = LISTED_RUN.format("{micro_batches: 4}").replace("forward: 1 ms", "forward: 6")
    assert "did you mean '6 ms'?" in refusal(slow)


def test_devices_and_speeds_may_be_listed_for_each_gpu() -> None:
    cluster = parse_spec(GPT.replace("links: nvlink-v100", "device: [a100, a100, h100, h100]")).cluster
    assert cluster.devices == ("a100", "a100", "h100", "h100") and cluster.speeds == (1, 1, 1, 1)
    assert not cluster.is_plain
    plain = parse_spec(GPT.replace("links: nvlink-v100", "device: a100\n  speed: [1, 1.0, 1, 1]")).cluster
    assert plain.devices == ("a100",) * 4 and plain.is_plain
    slower = parse_spec(GPT.replace("links: nvlink-v100", "device: a100\n  speed: [1, 1, 1, 0.8]")).cluster
    assert slower.kinds[2:] == (("a100", 1.0), ("a100", 0.8)) and not slower.is_plain


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_specs_are_valid(path: Path) -> None:
    assert load_spec(path).where == str(path)


@pytest.mark.parametrize(("old", "new", "line", "words"), [
    ("hidden: 2048", "hiden: 2048", 5, "model: unknown key 'hiden'; did you mean 'hidden'?"),
    ("training:", "trainig:", 13, "unknown key 'trainig'; did you mean 'training'?"),
    ("  gpus: 4\n", "", 9, "cluster.gpus is missing"),
    ("gpus: 4", "gpus: four", 10, "cluster.gpus is 'four', it must be a whole number"),
    ("gpus: 4", "gpus: true", 10, "cluster.gpus is true, it must be a whole number"),
    ("gpus: 4", "gpus: 0", 10, "cluster.gpus is 0, it must be at least 1"),
    ("gpus: 4", "gpus: 4\n  gpus: 5", 11, "cluster: the key 'gpus' appears twice, first on line 10"),
    ("gpus: 4", "gpus: [4", 11, "not YAML"),
    ("32 GiB", "-3", 11, "cluster.memory is -3, it must not be negative"),
    ("32 GiB", "32 QiB", 11, "cluster.memory is '32 QiB', it must be text like '32 GiB'"),
    ("32 GiB", ".nan", 11, "cluster.memory is .nan, it must be finite"),
    ("32 GiB", ".inf", 11, "cluster.memory is .inf, it must be finite"),
    ("32 GiB", "0", 11, "cluster.memory is 0, it must be greater than 0"),
    ("32 GiB", "[1 GiB, x, 1, 1]", 11, "cluster.memory: entry 1 is 'x', it must be"),
    ("32 GiB", "[1 GiB, 1 GiB]", 9, "cluster: memory lists 2 GPUs, but gpus is 4"),
    ("32 GiB", "1" + "0" * 400, 11, "it is too large"),
    ("  links: nvlink-v100\n", "  device: a100-8gb\n", 12, "cluster.device is 'a100-8gb', it must be one of"),
    ("  links: nvlink-v100\n", "  device: 7\n", 12, "cluster.device is 7, it must be one of v100"),
    ("  links: nvlink-v100\n", "  device: [v100, h10, v100, v100]\n", 12, "cluster.device: entry 1 is 'h10', it must"),
    ("  links: nvlink-v100\n", "  device: [v100, h10, v100, v100]\n", 12, "did you mean 'h100'?"),
    ("  links: nvlink-v100\n", "  device: [v100, h100]\n", 9, "cluster: device lists 2 GPUs, but gpus is 4"),
    ("  links: nvlink-v100\n", "  device: []\n", 12, "cluster.device: lists 0 GPUs, it must be one device, or a list"),
    ("links: nvlink-v100", "speed: 2", 12, "cluster.speed is 2, it must be a list with a number for each GPU"),
    ("links: nvlink-v100", "speed: [1, 0, 1, 1]", 12, "cluster.speed: entry 1 is 0, it must be a number from 0.001"),
    ("links: nvlink-v100", "bandwidth: 1 GB/s\n  speed: [1, 2]", 9, "cluster: speed lists 2 GPUs, but gpus is 4"),
    ("  links: nvlink-v100\n", "  device: [v100, v100, h100, h100]\ncosts: gpt-1.3b-v100\n", 1,
     "costs is 'gpt-1.3b-v100', of one kind of GPU, but cluster.device lists h100 and v100; leave costs out"),
    ("nvlink-v100", "nvlink-v10", 12, "cluster.links is 'nvlink-v10', it must be nvlink-v100 or network-v100; did you"),
    ("  links: nvlink-v100\n", "", 9, "cluster: with several GPUs, give links"),
    ("links: nvlink-v100", "latency: 1 us", 9, "cluster: latency needs bandwidth"),
    ("micro_batches: 16", "micro_batches: 0", 14, "training.micro_batches is 0, it must be at least 1"),
    ("micro_batches: 16", "micro_batches: 1000000", 14, "is 1000000, it must be at most 65536"),
    ("micro_batches: 16", "micro_batches: .nan", 14, "training.micro_batches is .nan, it must be a whole number"),
    ("micro_batches: 16", "recompute: maybe", 14, "training.recompute is 'maybe', it must be true or false"),
    ("training:", "inference: {micro_batches: 1}\ntraining:", 1, "give either training or inference, not both"),
    ("training:\n  micro_batches: 16\n", "", 1, "give either training or inference"),
    ("training:", "placement: {shapes: [chian]}\ntraining:", 13, "placement.shapes[0] is 'chian', it must be chain, v"),
    ("training:", "placement:\ntraining:", 13, "placement is empty, it must be a mapping"),
    ("training:", "placement: {memory: decide, shapes: [m]}\ntraining:", 13, "memory is decide, which is of one GPU"),
    ("training:", "placement: {co_shard: [2], shapes: [chain]}\ntraining:", 13, "co_shard is for the shapes groups"),
    ("training:", "placement: {activations: [offload]}\ntraining:", 13, "activations has fewer than 2 entries"),
    ("training:", "placement: {chunks: 9}\ntraining:", 13, "placement.chunks is 9, it must be at most 8"),
    ("training:", "placement: {chunks: 0}\ntraining:", 13, "placement.chunks is 0, it must be at least 1"),
    ("training:", "placement: {chunks: 2, shapes: [wave]}\ntraining:", 13, "chunks is 2, but shapes is wave, of at"),
    ("training:", "placement: {cut: 4}\ntraining:", 13, "placement.cut is 4, it must be a list: how many layers"),
    ("training:", "placement: {cut: []}\ntraining:", 13, "placement.cut: lists 0 stages, it must be a list: how many"),
    ("training:", "placement: {cut: [3, head]}\ntraining:", 13, "placement.cut: mixes numbers (3) and names ('head')"),
    ("training:", "placement: {cut: [3, 0]}\ntraining:", 13, "placement.cut: entry 1 is 0, every stage has 1 to"),
    ("training:", "placement: {cut: [-3, 2]}\ntraining:", 13, "placement.cut: entry 0 is -3, every stage has 1 to"),
    ("training:", "placement: {cut: [3, 2.5]}\ntraining:", 13, "placement.cut: entry 1 is 2.5, it must be a number"),
    ("training:", "placement: {cut: [3], shapes: [m]}\ntraining:", 13, "cut is of one GPU a stage, but shapes is m"),
    ("training:", "placement: {cut: [3], memory: decide}\ntraining:", 13, "memory is decide, which chooses the cut"),
    ("training:", "placement: {cut: [3], co_shard: [2]}\ntraining:", 13, "cut is of one GPU a stage, co_shard is for"),
    ("name: small", "name: 7", 1, "name is 7, it must be text"),
    ("name: small", "7: small", 1, "the key '7' is not text"),
    ("family: gpt", "family: gtp", 3, "model.family is 'gtp', it must be gpt"),
])
def test_a_mistake_is_named_with_its_line_and_field(old: str, new: str, line: int, words: str) -> None:
    message = refusal(GPT.replace(old, new))
    assert f"line {line}: " in message
    assert words in message


@pytest.mark.parametrize(("old", "new", "words"), [
    ("forward: 1 ms", "forward: -1 ms", "line 4: model.layers[0].forward is '-1 ms', it must not be negative"),
    ("forward: 1 ms", "forward: 0", "line 4: model.layers[0].forward is 0, it must be greater than 0"),
    ("forward: 1 ms", "forward: .inf", "model.layers[0].forward is .inf, it must be finite"),
    ("backward: 2 ms, ", "", "model.layers[0].backward is missing: training needs it"),
    ("backward: 2 ms", "bakward: 2 ms", "unknown key 'bakward'; did you mean 'backward'?"),
    ("input_grad: 1 ms, ", "", "line 5: model.layers[1]: input_grad and weight_grad come together"),
    ("weights: 2 MB", "weights: 2 MB, parameters: 3", "give either weights (their size) or parameters"),
    ("name: head", "name: block", "model: layers: the name 'block' is used twice"),
    ("repeat: 3", "repeat: 1024", "model: layers are 1025 with their repeats, at most 1024"),
    ("training:", "costs: gpt-1.3b-v100\ntraining:", "costs is for a model family"),
    ("gpus: 1, memory: 1000000000", "gpus: 2, memory: 1000000000, device: [v100, h100]",
     "cluster.device lists h100 and v100, but listed layers state one time each; say how fast each GPU is"),
    ("training:", "placement: {co_shard: [2]}\ntraining:", "placement.co_shard divides a model's operators"),
    ("training:", "placement: {backward: [split]}\ntraining:", "model.layers[0].input_grad is missing: a split"),
])
def test_a_mistake_in_listed_layers_is_named(old: str, new: str, words: str) -> None:
    assert words in refusal(LAYERS.replace(old, new))


@pytest.mark.parametrize(("text", "words"), [
    ("", "is empty"), ("# nothing\n", "is empty"), ("- a\n", "is a list, it must be a mapping"),
    ("text\n", "it must be a mapping"), ("&a [*a]", "expands to more than"), ("[" * 5000, "nested too deeply"),
    ("a: !!python/object/apply:os.getcwd []", "not YAML"), ("a: \x00", "not YAML"), ("a: 2020-13-45", "not YAML"),
    ("a: 1\n---\nb: 2", "not YAML"),
    ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdef", "bcdefg",
                                                                                       strict=True)),
     "expands to more than"),
])
def test_what_is_no_mapping_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"name: \xff\xfe")
    for path, words in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "directory"), (broken, "not UTF-8")):
        with pytest.raises(SpecError, match=words) as caught:
            load_spec(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_the_schema_describes_every_field_and_its_limits() -> None:
    text = json.dumps(schema())
    definitions = schema()["$defs"]
    for section in definitions.values():
        for name, field in section["properties"].items():
            assert field.get("description") or "$ref" in json.dumps(field), name
    assert definitions["TrainingRun"]["properties"]["micro_batches"]["maximum"] == MAX_MICRO_BATCHES
    assert definitions["TrainingRun"]["properties"]["optimizer_bytes_per_parameter"]["default"] == 12
    assert definitions["Cluster"]["additionalProperties"] is False
    assert "GiB" in text


def test_quantities() -> None:
    assert [parse_bytes(text) for text in ("1.5 KiB", "16GB", "1_000", 7)] == [1536, 16 * 10**9, 1000, 7]
    assert [parse_seconds(text) for text in ("10 us", "1e-3", "2 s")] == [pytest.approx(1e-5), 1e-3, 2]
    assert [parse_bandwidth(text) for text in ("36 GB/s", "100 Gbit/s", "1 KiB/s")] == [36e9, 12.5e9, 1024]
    for parse, wrong in ((parse_bytes, "1.5"), (parse_seconds, "3 GB"), (parse_bandwidth, "3 GB"),
                         (parse_bandwidth, "0 GB/s"), (parse_bytes, True)):
        with pytest.raises(ValueError, match="it must be"):
            parse(wrong)
    assert [format_bytes(amount) for amount in (0, 1536, 1024**3 + 1)] == ["0 B", "1.5 KiB", "1.01 GiB"]


def test_reading_a_spec_loads_neither_torch_nor_a_solver() -> None:
    code = "import weft.models.spec.spec, weft.models.candidates.build"
    assert loaded_after(code, "torch", "ortools", "altair") == []


@pytest.mark.parametrize(("model", "words"), [
    ("{family: moe, latent: {key_rank: 8, plain: 4, rotary: 4, value: 4, rank: 1}, experts: 4, ",
     "model.latent: unknown key 'rank'"),
    ("{family: gpt, latent: {key_rank: 8, plain: 4, rotary: 4}, ", "model.latent.value is missing: width of a head's"),
    ("{family: gpt, one_norm: true, ", "one_norm is for attention and feed-forward parts side by side"),
    ("{family: gpt, windowed: [true, false], ", "windowed says which layers have a window; give window"),
    ("{family: moe, experts: 4, dense_first: 2, ", "dense_first is 2, but there are 2 layers"),
    ("{family: encoder, image: 32, ", "give either vocabulary, for texts, or image"),
])
def test_sizes_of_transformers_that_do_not_go_together(model: str, words: str) -> None:
    sizes = "layers: 2, hidden: 64, heads: 4, vocabulary: 100, sequence: 16}"
    text = f"model: {model}{sizes}\ncluster: {{gpus: 1, device: h100}}\ntraining: {{micro_batches: 2}}\n"
    with pytest.raises(SpecError, match=re.escape(words)):
        parse_spec(text)


def test_the_towers_of_a_spec_are_encoders() -> None:
    tower = "{family: encoder, layers: 1, hidden: 32, heads: 2, head: none, "
    text = (f"model: {{family: clip, projection: 16, text: {tower}vocabulary: 50, sequence: 8}}, "
            f"image: {tower}image: 32}}}}\ncluster: {{gpus: 1, device: h100}}\ntraining: {{micro_batches: 2}}\n")
    assert parse_spec(text).model.text.vocabulary == 50  # type: ignore[union-attr]
    with pytest.raises(SpecError, match=r"model\.image: unknown key 'pixels'"):
        parse_spec(text.replace("image: 32", "pixels: 32"))
    with pytest.raises(SpecError, match="text is an encoder with a vocabulary, image one with an image"):
        parse_spec(text.replace("vocabulary: 50, sequence: 8", "image: 32"))

"""Files made to do harm, or given by mistake: each is refused in one sentence that names the file and what is wrong."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.properties.test_input_files import DNN, GRAPH
from tests.support import refusal, written
from tests.support.damage import rewritten
from tests.support.exported_models import saved_model
from weft.models import SpecError, capture_file, load_graph, load_spec, parse_spec
from weft.models.capture.exported import ExportFault
from weft.models.files.limits import MAX_PROGRAM_BYTES, MAX_SPEC_BYTES
from weft.models.graph.formats import load_profiled_graph
from weft.models.spec.huggingface import ConfigError, read_config
from weft.models.times.profiles import ProfileError, load_profile
from weft.solver.io.entries import FormatError

SPEC = """\
name: a
model: {family: gpt, layers: 2, hidden: 64, heads: 4, vocabulary: 100, sequence: 64}
cluster: {gpus: 2, memory: 8 GiB, device: v100}
training: {micro_batches: 2}
"""
LISTED = """\
name: a
model: {layers: [{name: b, repeat: 2, forward: 1 ms, backward: 1 ms}]}
cluster: {gpus: 2, memory: 8 GiB, device: v100}
training: {micro_batches: 2}
"""


def fault_of(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "a.yaml")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("a.yaml: ")
    return str(caught.value)


# -- what is no file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("read", "error"), [
    (load_spec, SpecError), (lambda path: read_config(path), ConfigError), (capture_file, ExportFault),
    (lambda path: load_profile(path, str(path)), ProfileError)])
def test_a_pipe_or_a_directory_is_refused_at_once(read: Callable[[Path], Any], error: type[Exception],
                                                  tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "pipe", "is a pipe"), (tmp_path, "is a directory"), (Path("/dev/zero"), "a device"),
                        (tmp_path / "x" / "y", "cannot be read: No such file"), (tmp_path / ("n" * 300), "too long")):
        with pytest.raises(error) as caught:
            read(path)
        assert words in str(caught.value) and str(path) in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with open(path, "wb") as file:
        file.truncate(MAX_SPEC_BYTES + 1)
    with pytest.raises(SpecError, match="is larger than 1 MiB, which a spec is not"):
        load_spec(path)


# -- YAML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "words"), [
    ("a: &a {b: 1, c: 2}\n" + "".join(f"{n}: &{n} {{<<: [*{m}, *{m}], x{n}: [*{m}, *{m}, *{m}, *{m}, *{m}, *{m}]}}\n"
                                       for m, n in zip("abcdefgh", "bcdefghi", strict=True)), "expands to more than"),
    ("name: " + "[" * 90 + "]" * 90 + "\n" + SPEC[8:], "it must be text"),
    ("name: " + "[" * 300 + "]" * 300, "100 levels"), ("name: " + "{a: " * 20000, "nested too deeply"),
    (SPEC + "name: b\n", "the key 'name' appears twice"),
    (SPEC.replace("hidden: 64", "hidden: 64, hidden: 128"), "the key 'hidden' appears twice"),
    (SPEC.replace("name: a", "name: 2020-01-01"), "name is 2020-01-01, it must be text"),
    (SPEC.replace("name: a", "name: 2020-13-45"), "not YAML"),
    (SPEC.replace("hidden: 64", "hidden: .nan"), "model.hidden is .nan, it must be a whole number"),
    (SPEC.replace("hidden: 64", "hidden: .inf"), "model.hidden is .inf, it must be a whole number"),
    (SPEC.replace("8 GiB", ".inf"), "cluster.memory is .inf, it must be finite"),
    (SPEC.replace("name: a", "name: " + "x" * 100_000), "name is longer than 200 letters"),
    (SPEC.replace("name: a", 'name: "a\\0b"'), "name has characters that cannot be shown"),
    (SPEC.replace("name: a", 'name: "a\\e[2Jb"'), "name has characters that cannot be shown"),
    (SPEC.replace("name: a", 'name: "a\\uFFFEb"'), "name has characters that cannot be shown"),
    (SPEC.replace("name: a", 'name: "a\\uD800b"'), "name"),
    (SPEC.replace("hidden: 64", "hidden: " + "9" * 5000), "not YAML"),
    (SPEC.replace("hidden: 64", "hidden: 1" + "0" * 12), "model.hidden is 1000000000000, it must be at most 1048576"),
    (SPEC.replace("vocabulary: 100", "vocabulary: 1" + "0" * 22), "it must be at most 67108864"),
    (SPEC.replace("sequence: 64", f"sequence: {2**63}"), "it must be at most 16777216"),
    (SPEC.replace("micro_batches: 2", f"micro_batches: 2, micro_batch_size: {2**63}"), "it must be at most 1048576"),
    (SPEC.replace("gpus: 2", f"gpus: {2**63}"), "it must be at most 131072"),
    (SPEC.replace("gpus: 2", "gpus: 1025"), "at most 1024 are placed one by one"),
    (LISTED.replace("forward: 1 ms", "forward: 1e308"), "forward is '1e308'"),
    (LISTED.replace("forward: 1 ms", "forward: 1.0e+308"), "forward is 1.0e+308, it is too large"),
    (LISTED.replace("8 GiB", "1.0e-320"), "cluster.memory is 1.0e-320, it must be greater than 0"),
    (LISTED.replace("device: v100", "bandwidth: 1.0e-320"), "cluster.bandwidth is 1.0e-320, it must be greater than 0"),
])
def test_yaml_that_means_nothing_is_refused(text: str, words: str) -> None:
    message = fault_of(text)
    assert words in message and len(message) < 700


def test_sizes_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for text, words in (
            (SPEC.replace("hidden: 64", "hidden: 1048576").replace("sequence: 64", "sequence: 16777216"), "1024 TiB"),
            (LISTED.replace("1 ms", "900000000 s"), "one micro-batch takes 3.6e+09 s, at most 1e+09 s"),
            (LISTED.replace("backward: 1 ms", "backward: 1 ms, activation_memory: 999 TiB"), "1024 TiB, most of")):
        path.write_text(text)
        for command in ("estimate", "solve"):
            error = refusal(command, path)
            assert words in error and str(path) in error


# -- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "words"), [
    ("[" * 10**5, "is not JSON"), ('{"model_type": ' + "9" * 5000 + "}", "is not JSON"), ("\x00", "is not JSON"),
    ('{"model_type": "gpt2", "n_embd": 1000000000000}', "n_embd is 1000000000000, it must be at most 1048576"),
    ('{"model_type": "gpt2", "n_layer": 1e3}', "n_layer"),
    ('{"model_type": "gpt2", "vocab_size": 10000000000000000000000}', "vocab_size is 1"),
    ('{"model_type": "gpt2", "n_positions": 9223372036854775808}', "at most 16777216"),
    ('{"model_type": "swin", "mlp_ratio": NaN}', "mlp_ratio is NaN"),
    ('{"model_type": "swin", "mlp_ratio": 1e400}', "mlp"),
    ('{"model_type": "gpt2", "activation_function": ["gelu"]}', "activation_function is"),
    ('{"model_type": "resnet", "layer_type": {}}', "layer_type is"), ('{"model_type": "\\ud800"}', "model_type is"),
    ('{"model_type": "resnet", "embedding_size": 9, "depths": [' + "1," * 99999 + "1]}", "depths is")])
def test_a_config_that_means_nothing_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and words in message and "\n" not in message and len(message) < 700
    assert message.isprintable()


@pytest.mark.parametrize("field", ["maxFPGAs", "maxCPUs", "maxSizePerFPGA"])
def test_a_graph_on_more_devices_than_there_are_is_refused(field: str, tmp_path: Path) -> None:
    path = written(tmp_path / "g.json", json.dumps({**DNN, field: 2**63}))
    with pytest.raises(FormatError, match=rf"g\.json: {field} is 9223372036854775808, it must be at most"):
        load_profiled_graph(path)


@pytest.mark.parametrize(("change", "words"), [
    (lambda g: g["operators"][0].update(forward=[10**400, 1, 1]), "flops is"),
    (lambda g: g["operators"][0].update(forward=[1, 10**22, 1]), "bytes_read is 10000000000000000000000, it"),
    (lambda g: g["parameters"][0].update(count=2**63), "count is 9223372036854775808, it must be at most"),
    (lambda g: g["parameters"][0].update(shape=[-1]), "shape must be a list of whole numbers from 0"),
    (lambda g: g["operators"][0].update(name="a\x00b"), "which cannot be shown"),
    (lambda g: g["operators"][0].update(name="a\ud800b"), "which cannot be shown"),
    (lambda g: g["operators"][0].update(name="x" * 100_000), "name has 100000 letters, at most 1000"),
    (lambda g: g["operators"][0].update(workspace=2**70), "workspace is"),
    (lambda g: g.update(inputs=[{}] * 200_001), "inputs has 200001 entries, at most 200000"),
])
def test_an_operator_graph_that_means_nothing_is_refused(change: Callable[[Any], object], words: str,
                                                         tmp_path: Path) -> None:
    graph = json.loads(json.dumps(GRAPH))
    change(graph)
    (tmp_path / "g.json").write_text(json.dumps(graph))
    with pytest.raises(FormatError) as caught:
        load_graph(tmp_path / "g.json")
    assert words in str(caught.value) and len(str(caught.value)) < 700


def test_a_profile_that_means_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    columns = ("op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,fwd_reserved,"
               "bwd_reserved")
    for row, words in (("a" * 200_000, "is not CSV"), ("a,1e308,1,1,1,1,1,1,1", "forward-compute is '1e308'"),
                       ("a,1,1,1e300,1,1,1,1,1", "input_size is '1e300'"), ("a,nan,1,1,1,1,1,1,1", "is 'nan'")):
        path.write_text(f"{columns}\n{row}\n")
        with pytest.raises(ProfileError) as caught:
            load_profile(path, "p.csv")
        assert words in str(caught.value)


# -- captured programs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model("mlp", tmp_path_factory.mktemp("saved"))


def _first(graph: Any) -> Any:
    return next(iter(graph["tensor_values"].values()))


def _expression(graph: Any, text: str, hint: Any) -> None:
    _first(graph)["sizes"][0] = {"as_expr": {"expr_str": text, "hint": hint}}


@pytest.mark.parametrize(("change", "words"), [
    (lambda g: _first(g)["sizes"].__setitem__(0, {"as_int": -1}), "has the size or stride -1"),
    (lambda g: _first(g)["sizes"].__setitem__(0, {"as_int": 2**63}), "has the size or stride 9223372036854775808"),
    (lambda g: _first(g)["sizes"].__setitem__(0, {"as_int": 2**52}), "is more memory than exists"),
    (lambda g: _first(g)["strides"].__setitem__(0, {"as_int": 2**52}), "is more memory than exists"),
    (lambda g: _first(g)["sizes"].append({"as_int": 1}), "sizes and"),
    (lambda g: _expression(g, "__import__('os')", None), "depends on the data"),
    (lambda g: _expression(g, "s0", {"as_int": "1; x"}), "stands where a number must stand"),
    (lambda g: _expression(g, "s0", {"as_int": 0.5}), "has the size or stride 0.5"),
    (lambda g: g["nodes"].reverse(), "which no call before it makes"),
    (lambda g: g["nodes"].append(g["nodes"][0]), "is made twice"),
    (lambda g: g["nodes"][0]["inputs"][0].update(arg=g["nodes"][-1]["outputs"][0]), "which no call before it makes"),
    (lambda g: g["nodes"][0].update(name="\x1b[2J"), "cannot be shown"),
    (lambda g: g["nodes"][0].update(target=7), "must be text"), (lambda g: g.update(nodes=3), "is not what torch"),
])
def test_an_impossible_program_is_refused(change: Callable[[Any], object], words: str, saved: Path,
                                          tmp_path: Path) -> None:
    with pytest.raises(ExportFault) as caught:
        capture_file(rewritten(saved, tmp_path / "m.pt2", lambda program: change(program["graph_module"]["graph"])))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'm.pt2'}: ") and words in message and "\n" not in message, message


def test_a_small_archive_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, \
            archive.open("m/models/model.json", "w") as entry:
        for _ in range(MAX_PROGRAM_BYTES // 2**20 + 8):
            entry.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(ExportFault, match=r"bomb\.pt2: m/models/model\.json unpacks to more than 128 MiB"):
        capture_file(path)
    declared = path.read_bytes().replace(((MAX_PROGRAM_BYTES // 2**20 + 8) * 2**20).to_bytes(4, "little"),
                                         (100).to_bytes(4, "little"))
    path.write_bytes(declared)  # now it says that it has 100 bytes
    with pytest.raises(ExportFault, match=r"bomb\.pt2: is no \.pt2 archive \(Bad CRC-32"):
        capture_file(path)

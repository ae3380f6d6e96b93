"""Whatever is in a spec, an operator graph, a config.json, a profile or a captured program: a refusal is one sentence
of the errors that the front door knows, never anything else."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml
from hypothesis import strategies as st

from tests.support.damage import changed, with_program, with_values
from tests.support.examples import for_all
from tests.support.exported_models import saved_model
from weft.models import Spec, SpecError, capture_file, estimate_spec, model_graph, parse_spec, spec_candidates
from weft.models.candidates.given_cut import cut_of, most_chunks
from weft.models.candidates.gpu_costs import family_costs, layer_costs_by_gpu
from weft.models.candidates.placement_sources import graph_problem, spec_problem
from weft.models.candidates.stage_split import NoSplit
from weft.models.capture.exported import ExportFault
from weft.models.graph.formats import load_profiled_graph
from weft.models.graph.operator_files import graph_to_json, load_graph
from weft.models.graph.operators import OperatorError
from weft.models.spec.huggingface import ConfigError, read_config
from weft.models.spec.model_sections import ExplicitModel
from weft.models.tensor_parallel.shapes import together
from weft.models.times.profiles import ProfileError
from weft.solver.io.entries import FormatError
from weft.solver.placement.memory.plan_memory import NoMemoryPlan
from weft.solver.placement.problem import PlacementError

#: What the front door prints: one sentence, exit 1 or 2.
KNOWN = (SpecError, ConfigError, FormatError, ProfileError, ExportFault, PlacementError, OperatorError, NoSplit,
         NoMemoryPlan)
EXAMPLES = int(os.environ.get("WEFT_EXAMPLES", "10"))
FEW = EXAMPLES
Json: TypeAlias = Any

def refused_in_words(run: Callable[[], object]) -> bool:
    """Whether ``run`` refuses its input, which it must do as the front door expects."""
    try:
        run()
    except KNOWN as error:
        text = str(error)
        assert text and "\n" not in text and len(text) < 5000, text[:300]
        assert text.isprintable() or not any(ord(letter) < 32 for letter in text), text[:300]
        assert type(error).__module__.startswith(("weft.models.", "weft.solver."))
        return True
    return False


# -- specs ---------------------------------------------------------------------------------------------------------

_CLUSTER = {"gpus": 2, "memory": "2 GiB", "device": "v100", "bandwidth": "10 GB/s", "latency": "1 us",
            "gpus_per_machine": 1, "machine_bandwidth": "1 GB/s", "machine_latency": "5 us", "reserve": 0,
            "host_bandwidth": "5 GB/s"}
_RUN = {"micro_batches": 4, "micro_batch_size": 2, "recompute": False, "optimizer": "adam", "gradient_bytes": 2,
        "parameter_bytes": 2, "optimizer_bytes_per_parameter": 12}
_FAMILIES: list[dict[str, Any]] = [
    {"family": "gpt", "layers": 2, "hidden": 16, "heads": 4, "vocabulary": 32, "sequence": 8, "kv_heads": 2},
    {"family": "moe", "layers": 2, "hidden": 16, "heads": 4, "vocabulary": 32, "sequence": 8, "experts": 4},
    {"family": "t5", "encoder_layers": 1, "decoder_layers": 1, "hidden": 16, "heads": 4, "feed_forward": 32,
     "vocabulary": 32, "sequence": 8},
    {"family": "flava", "text_layers": 1, "image_layers": 1, "fusion_layers": 1, "hidden": 16, "heads": 4,
     "image": 32, "patch": 16},
    {"family": "mmt", "branches": 2, "layers": 1, "hidden": 16, "heads": 4, "feed_forward": 32, "sequence": 8},
    {"family": "swin", "width": 12, "depths": [1, 1], "heads": [3, 6], "image": 56, "patch": 4, "window": 7},
    {"family": "evoformer", "blocks": 1, "msa": 16, "pair": 16, "sequences": 4, "residues": 8, "recycles": 1},
    {"family": "dlrm", "tables": [100, 100], "dimension": 8, "bottom": [16, 8], "top": [16, 1]},
    {"family": "uno", "features": [16, 16], "tower": [8], "joint": [8]},
    {"family": "resnet", "depths": [1, 1], "image": 32, "width": 8}]
_LAYERS = {"layers": [{"name": "a", "repeat": 3, "forward": "1 ms", "backward": "2 ms", "activation_memory": "1 MiB",
                       "workspace": 5, "weights": "1 MB", "output": "1 KiB"},
                      {"name": "b", "forward": 0.002, "input_grad": "1 ms", "weight_grad": "1 ms",
                       "weight_grad_memory": 7, "parameters": 9}]}


def _specs() -> list[Json]:
    rest = {"name": "n", "cluster": _CLUSTER, "training": _RUN}
    shapes = {"shapes": ["chain", "v", "loop", "groups", "tensor", "m"], "backward": ["full", "split"]}
    specs = [{**rest, "model": family, "placement": shapes} for family in _FAMILIES]
    specs += [{**rest, "model": _LAYERS}, {**rest, "model": _LAYERS, "placement": {"memory": "decide"}},
              {"name": "n", "cluster": _CLUSTER, "model": _LAYERS, "inference": {"micro_batches": 4}},
              {**rest, "model": {"config": "config.json", "sequence": 4}, "costs": "h100"},
              {**rest, "model": {"graph": "graph.json"}, "costs": "roofline"},
              {**rest, "model": _FAMILIES[0], "costs": "gpt-1.3b-v100", "placement": {"co_shard": [2]}},
              {**rest, "model": _FAMILIES[0], "cluster": {**_CLUSTER, "device": ["v100", "h100"]},
               "placement": {"chunks": 1, "cut": ["embedding", "layer1"]}},
              {**rest, "model": _LAYERS, "cluster": {**_CLUSTER, "speed": [1, 0.5]},
               "placement": {"chunks": 2, "cut": [1, 1, 1, 1], "shapes": ["v", "loop", "wave"]}}]
    return specs


def _given(spec: Spec) -> object:
    names = [layer.name for layer in layer_costs_by_gpu(spec)[0]]
    return most_chunks(spec, len(names)), cut_of(spec, names)


def _use(text: str, folder: Path) -> None:
    spec = parse_spec(text, "a.yaml", folder)
    for use in (estimate_spec, spec_problem, together, spec_candidates, _given):
        if not (use is spec_problem and isinstance(spec.model, ExplicitModel)):
            refused_in_words(lambda use=use: use(spec))  # type: ignore[misc]


@pytest.mark.parametrize("spec", _specs(), ids=lambda spec: next(iter(spec["model"].values()))[:9:1]
                         if isinstance(next(iter(spec["model"].values())), str) else "layers")
def test_a_mutated_spec_is_read_or_refused(spec: Json, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[0]))
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH))
    assert not refused_in_words(lambda: parse_spec(yaml.safe_dump(spec), "a.yaml", tmp_path))

    @for_all(value=changed(spec), tries=FEW)
    def check(value: Json) -> None:
        refused_in_words(lambda: _use(yaml.safe_dump(value, allow_unicode=True), tmp_path))

    check()


@for_all(data=st.data(), tries=FEW)
def test_mutated_yaml_is_read_or_refused(data: st.DataObject) -> None:
    text = yaml.safe_dump(data.draw(st.sampled_from(_specs())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        new = data.draw(st.sampled_from(["", "\t", ": ", "- ", "&a ", "*a ", "<<: *a\n", "!!python/none ", "{", "]",
                                         "'", "2020-01-01", "2001-13-45", "\x00", "\ufffe", "0x1F", "1:30", "? ",
                                         "---\n", "!!binary x", "!!set {a}", "!!timestamp 9", "%YAML 9.9\n",
                                         '"\\ud800"', "~"]))
        text = text[:at] + new + text[at + data.draw(st.integers(0, 3)):]
    refused_in_words(lambda: parse_spec(text, "a.yaml"))


# -- other files ---------------------------------------------------------------------------------------------------

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8, "vocab_size": 32},
    {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
     "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8, "head_dim": 4,
     "hidden_act": "silu"},
    {"model_type": "mixtral", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
     "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8, "num_local_experts": 4},
    {"model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 32},
    {"model_type": "swin", "embed_dim": 12, "depths": [1, 1], "num_heads": [3, 6], "image_size": 56, "mlp_ratio": 4.0},
    {"model_type": "flava", "text_config": {"num_hidden_layers": 1}, "image_config": {"image_size": 32},
     "multimodal_config": {"num_hidden_layers": 1}},
    {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [256, 512], "id2label": {"0": "a"}}]
GRAPH = graph_to_json(model_graph(parse_spec(yaml.safe_dump(_specs()[0])).model, 1, dtype="float16"))
DNN = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100.0, "nodes": [
    {"id": i, "name": f"n{i}", "supportedOnFpga": 1, "fpgaLatency": 1.0, "cpuLatency": 2, "size": 10.0,
     "isBackwardNode": 0, "colorClass": i} for i in range(4)],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(3)]}
PIPER = {"maxDevices": 2, "maxMemoryPerDevice": 100.0, "bandwidth": 5.0, "mbsInBatch": 4, "nodes": [
    {"id": i, "name": "n", "TMPCs": {"1": [{"timePerSample": 1.0, "memoryUsageA": 1.0, "memoryUsageB": 2}]}}
    for i in range(4)], "edges": [{"sourceId": i, "destId": i + 1, "communicationCost": 7} for i in range(3)]}


def _written(path: Path, value: Json) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_a_mutated_config_is_read_or_refused(config: Json, tmp_path: Path) -> None:
    spec = yaml.safe_dump({"name": "n", "cluster": _CLUSTER, "training": {"micro_batches": 2},
                           "model": {"config": "config.json"}})
    read_config(_written(tmp_path / "config.json", config))

    @for_all(value=changed(config), tries=FEW)
    def check(value: Json) -> None:
        path = _written(tmp_path / "config.json", value)
        if not refused_in_words(lambda: read_config(path)):
            refused_in_words(lambda: family_costs(parse_spec(spec, "a.yaml", tmp_path)))

    check()


def test_a_mutated_operator_graph_is_read_or_refused(tmp_path: Path) -> None:
    spec = yaml.safe_dump({"name": "n", "cluster": _CLUSTER, "training": {"micro_batches": 2},
                           "model": {"graph": "graph.json"}})

    @for_all(value=changed(GRAPH), tries=FEW)
    def check(value: Json) -> None:
        path = _written(tmp_path / "graph.json", value)
        if not refused_in_words(lambda: load_graph(path)):
            refused_in_words(lambda: graph_problem(load_graph(path), {"v100": (2, None)}))
            _use(spec, tmp_path)

    check()


@pytest.mark.parametrize("valid", [DNN, PIPER], ids=["dnn-partitioning", "piper"])
def test_a_mutated_profiled_graph_is_read_or_refused(valid: Json, tmp_path: Path) -> None:
    load_profiled_graph(_written(tmp_path / "g.json", valid))

    @for_all(value=changed(valid), recompute=st.booleans(), tries=FEW)
    def check(value: Json, recompute: bool) -> None:
        path = _written(tmp_path / "g.json", value)
        refused_in_words(lambda: load_profiled_graph(path, recompute=recompute))

    check()


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return saved_model("attention", tmp_path_factory.mktemp("captured")).read_bytes()


@for_all(draw=st.randoms(use_true_random=False), tries=FEW)
def test_a_mutated_program_is_captured_or_refused(captured: bytes, tmp_path: Path, draw: random.Random) -> None:
    def change(program: Json) -> Json:
        return with_values(draw, {key: program[key] for key in ("schema_version", "torch_version", "graph_module")})

    (tmp_path / "m.pt2").write_bytes(with_program(captured, change))
    refused_in_words(lambda: capture_file(tmp_path / "m.pt2"))


@for_all(data=st.data(), tries=FEW)
def test_a_broken_archive_is_refused(captured: bytes, tmp_path: Path, data: st.DataObject) -> None:
    archive = bytearray(captured)
    for _ in range(data.draw(st.integers(1, 8))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "m.pt2").write_bytes(archive[:data.draw(st.sampled_from([len(archive), len(archive) - 9, 50]))])
    refused_in_words(lambda: capture_file(tmp_path / "m.pt2"))

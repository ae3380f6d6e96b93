"""A captured model against a real run of it on a CPU: floating-point operations, saved bytes and shapes, exactly."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import weft
from tests.support.damage import rewritten
from tests.support.exported_models import MODELS, Attention, Tied, made, saved_model
from weft.models.capture.capture import capture_config, capture_file, capture_module
from weft.models.capture.exported import ExportFault
from weft.models.graph.operators import OperatorGraph


@cache
def captured(name: str) -> OperatorGraph:
    return capture_module(*made(name))


def real_run(name: str) -> tuple[dict[int, int], int, int, list[Any]]:
    """Bytes of each storage that autograd saves and the module does not hold; operations of forward and backward."""
    module, inputs = made(name)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return tensor

    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # the counter leaves it out
    fused_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    count: Any = sdpa_flop_count
    count_backward: Any = sdpa_backward_flop_count

    def seen(flops: int, keys: int, *given: Any) -> int:
        return flops * (keys + 1) // (2 * keys) if any(entry is True for entry in given) else flops  # is_causal

    formulas: Any = {
        fused: lambda q, k, v, *a, **b: seen(count(q, k, v), k[-2], *a, *b.values()),
        fused_backward: lambda g, q, k, v, *a, **b: seen(count_backward(g, q, k, v), k[-2], *a, *b.values())}
    forward = FlopCounterMode(display=False, custom_mapping=formulas)
    with forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = tree_leaves(module(*inputs))
    backward = FlopCounterMode(display=False, custom_mapping=formulas)
    with backward:
        torch.autograd.backward([output.sum() for output in outputs if output.requires_grad])
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    return ({key: size for key, size in storages.items() if key not in own}, forward.get_total_flops(),
            backward.get_total_flops(), outputs)


@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_operations_shapes_and_parameters_are_those_of_a_real_run(name: str) -> None:
    graph = captured(name)
    saved, forward, backward, outputs = real_run(name)
    assert graph.saved_bytes() == sum(saved.values())
    assert sum(operator.forward.flops for operator in graph.operators) == forward
    assert sum(work.flops for operator in graph.operators for work in (operator.input_grad, operator.weight_grad)
               if work is not None) == backward
    assert [graph.tensors[name].shape for name in graph.outputs] == [tuple(output.shape) for output in outputs]
    module, _ = made(name)
    trained = dict(module.named_parameters())
    assert graph.parameter_count() == sum(p.numel() for p in trained.values() if p.requires_grad)
    assert len(graph.parameters) == sum(p.requires_grad for p in trained.values())
    by_any_name = dict(module.named_parameters(remove_duplicate=False))  # export names a shared one by its last name
    assert all(held.shape == tuple(by_any_name[key].shape) for key, held in graph.parameters.items())
    rest = [p for p in trained.values() if not p.requires_grad] + list(module.buffers())
    assert graph.constant_bytes() == sum(p.numel() * p.element_size() for p in rest)


def test_a_tied_table_is_one_parameter_of_two_operators() -> None:
    for name, readers in (("tied", ["embedding", "linear"]), ("tied by view", ["embedding", "matmul"])):
        graph = captured(name)
        table = next(key for key in graph.parameters if "table" in key or "head" in key)
        assert [o.kind for o in graph.operators if table in {p.name for p in o.parameters}] == readers


def test_a_block_costs_what_its_matrices_say() -> None:
    batch, length, width, heads = 2, 12, 16, 4
    graph = capture_module(Attention(width, heads), (torch.randn(batch, length, width),))
    matrices = 2 * batch * length * width * (3 * width + width + 8 * width)
    attention = 4 * batch * length * (length + 1) // 2 * width  # two products per head, of the keys that are seen
    assert sum(o.forward.flops for o in graph.operators) == matrices + attention
    assert sum(o.weight_grad.flops for o in graph.operators if o.weight_grad) == matrices
    linear = graph.by_name["linear_2"]  # the wider of the perceptron's
    size = batch * length * width * 4
    assert linear.forward.bytes_read == size + 4 * (4 * width * width + 4 * width)
    assert linear.forward.bytes_written == 4 * size
    assert linear.deferred == linear.inputs


def test_branches_skips_and_several_outputs_survive() -> None:
    graph = captured("residual")
    skip = graph.by_name["relu_"].outputs[0].name
    assert sorted(graph.by_name[reader].kind for reader in graph.readers[skip]) == ["add_", "conv2d"]
    towers = captured("towers")
    assert len(set(towers.by_name["cat"].inputs)) == 2
    assert len(towers.inputs) == 2
    assert len(captured("tied").outputs) == 2


def test_what_is_read_after_a_write_in_place_waits_for_it() -> None:
    graph = captured("written in place")
    written = graph.by_name["mul_"].outputs[0]
    assert written.base == "mul"
    assert graph.order.index("mul_") < graph.order.index("linear_1")
    assert written.name in graph.by_name["linear_1"].inputs and written.name in graph.by_name["chunk"].inputs


def test_no_gradient_flows_through_a_part_without_gradients() -> None:
    graph = captured("towers")
    quiet = [o for o in graph.operators if o.name.startswith("add.") or "." in o.name]
    assert quiet and all(o.input_grad is None and o.weight_grad is None and not o.keeps for o in quiet)


def test_layers_are_the_modules_paths() -> None:
    assert {o.layer for o in captured("tied").operators if o.kind == "linear"} == {
        "head", *(f"blocks.{i}.{part}" for i in range(2) for part in ("qkv", "mix", "up", "down"))}


@pytest.mark.parametrize("name", ["tied", "residual"])
def test_a_file_and_its_module_are_captured_alike(name: str, tmp_path: Path) -> None:
    assert capture_file(saved_model(name, tmp_path)).operators == captured(name).operators


def test_dynamic_sizes_are_those_of_the_example(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(Attention(), (torch.randn(6, 12, 16),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, tmp_path / "dynamic.pt2")
    graph = capture_file(tmp_path / "dynamic.pt2")
    assert graph.saved_bytes() == capture_module(Attention(), (torch.randn(6, 12, 16),)).saved_bytes()
    assert any("dynamic sizes" in note for note in graph.notes)


def test_products_without_a_formula_are_said() -> None:
    notes = capture_module(nn.LSTM(4, 5), (torch.randn(2, 3, 4),)).notes
    assert any(note.startswith("lstm: 0 operations, which is too few") for note in notes)


# -- files that are something else -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model("mlp", tmp_path_factory.mktemp("saved"))


def test_nothing_pickled_is_opened(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(tmp_path / "m.pt2", "w") as new:
        for name in old.namelist():
            read = any(part in name for part in ("models/", "version"))
            new.writestr(name, old.read(name) if read else b"cposix\nsystem\n(S'false'\ntR.")
    assert capture_file(tmp_path / "m.pt2").operators == capture_file(saved).operators


def test_an_unknown_operator_is_filled_in_and_said(saved: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        node = next(n for n in program["graph_module"]["graph"]["nodes"] if "relu" in n["target"])
        node["target"] = "torch.ops.mylib.smooth_relu.default"

    graph = capture_file(rewritten(saved, tmp_path / "m.pt2", change))
    unknown = next(o for o in graph.operators if o.kind == "mylib.smooth_relu")
    assert unknown.forward.flops == 5 * 16 and unknown.forward.bytes_read == unknown.forward.bytes_written == 320
    assert set(unknown.keeps) == {*unknown.inputs, *(t.name for t in unknown.outputs)}
    assert unknown.input_grad is not None
    assert any(note.startswith("mylib.smooth_relu (1 operator) could not be followed (it is not torch's own")
               for note in graph.notes)


def test_what_was_exported_for_a_gpu_is_counted_as_on_a_cpu_and_said(saved: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        for meta in program["graph_module"]["graph"]["tensor_values"].values():
            meta["device"] = {"type": "cuda", "index": 0}

    graph = capture_file(rewritten(saved, tmp_path / "m.pt2", change))
    assert graph.operators == capture_file(saved).operators
    assert any(note.startswith("exported for cuda, counted as on a CPU") for note in graph.notes)


def test_an_operator_that_touches_files_does_not_run(saved: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        node = next(n for n in program["graph_module"]["graph"]["nodes"] if "relu" in n["target"])
        node["target"] = "torch.ops.aten.from_file.default"
        node["inputs"] = [{"name": name, "arg": value, "kind": 1} for name, value in (
            ("filename", {"as_string": str(tmp_path / "made")}), ("shared", {"as_bool": True}),
            ("size", {"as_int": 80}))]

    notes = capture_file(rewritten(saved, tmp_path / "m.pt2", change)).notes
    assert any("from_file" in note and "reads or writes files" in note for note in notes)
    assert not (tmp_path / "made").exists()


def test_an_operator_that_this_torch_lacks_is_said(saved: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        program["torch_version"] = "2.99.0"
        node = next(n for n in program["graph_module"]["graph"]["nodes"] if "relu" in n["target"])
        node["target"] = "torch.ops.aten.relu99.default"

    notes = capture_file(rewritten(saved, tmp_path / "m.pt2", change)).notes
    assert any("relu99" in note and "does not have it" in note for note in notes)
    assert any(note.startswith("exported by torch 2.99.0, counted with torch") for note in notes)


def test_another_schema_is_refused_with_both_versions(saved: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        program["schema_version"]["major"], program["torch_version"] = 9, "3.1.0"

    with pytest.raises(ExportFault, match=r"m\.pt2: was written by torch 3\.1\.0 in export schema 9, this weft reads"):
        capture_file(rewritten(saved, tmp_path / "m.pt2", change))


def test_what_is_no_export_is_refused(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "text.pt2").write_text("hello")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt2")
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    for name, message in (("text", "is no .pt2 archive"), ("weights", "holds no exported program"),
                          ("old", "torch 2.7 or older"), ("missing", "cannot be read")):
        with pytest.raises(ExportFault, match=rf"{name}\.pt2: .*{message}"):
            capture_file(tmp_path / f"{name}.pt2")

    def change(program: Any) -> None:
        del program["graph_module"]["signature"]["input_specs"]

    with pytest.raises(ExportFault, match=r"m\.pt2: models/model\.json is not what torch\.export\.save writes"):
        capture_file(rewritten(saved, tmp_path / "m.pt2", change))


def test_a_module_that_cannot_be_exported_says_why() -> None:
    class Sly(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("not today")

    with pytest.raises(ExportFault, match=r"Sly: torch\.export\.export refuses it: LookupError: not today"):
        capture_module(Sly(), (torch.randn(2),))


def test_a_model_without_data_is_captured_too() -> None:
    with torch.device("meta"):
        model = Tied()
        inputs = (torch.zeros(2, 12, dtype=torch.int64), torch.zeros(2, 12, dtype=torch.int64))
    graph = capture_module(model, inputs)
    assert graph.saved_bytes() == captured("tied").saved_bytes()


# -- configs of types that weft does not read, through a library that makes models of them -----------------------------


class Model(nn.Module):
    """A table and a head, with the loss of a language model."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.table(input_ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is used of transformers, in small."""
    def config(*, model_type: str, **values: Any) -> Any:
        if model_type != "own":
            raise ValueError(f"Unrecognized model identifier: {model_type}")
        return types.SimpleNamespace(**values)

    made: Any = types.ModuleType("transformers")
    made.__spec__, made.__version__ = importlib.machinery.ModuleSpec("transformers", None), "5"
    made.AutoConfig = types.SimpleNamespace(for_model=config)
    made.AutoModelForCausalLM = types.SimpleNamespace(from_config=Model)
    monkeypatch.setitem(sys.modules, "transformers", made)


def written(folder: Path, kind: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, "hidden_size": 32, "vocab_size": 96,
                                "max_position_embeddings": 24}))
    return path


@pytest.mark.usefixtures("library")
def test_a_type_that_is_not_read_is_captured(tmp_path: Path) -> None:
    path = written(tmp_path, "own")
    graph = capture_config(path, 2, None, "float16", True)
    assert graph.parameter_count() == 2 * 32 * 96 and graph.parameter_bytes() == 4 * 32 * 96
    assert graph.inputs[0].shape == (2, 24)
    found = weft.estimate(path, gpus=2, device="h100", sequence=8).estimate
    assert sum(stage.parameters for stage in found.stages) == 2 * 32 * 96


@pytest.mark.usefixtures("library")
def test_a_type_that_the_library_does_not_know_is_said(tmp_path: Path) -> None:
    with pytest.raises(ExportFault, match=r"config\.json: transformers 5 makes no model of it: Unrecognized"):
        weft.estimate(written(tmp_path, "other"), gpus=2, device="h100")

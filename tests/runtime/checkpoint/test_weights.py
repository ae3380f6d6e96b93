"""Weights by name, from memory, files and folders; what is no such thing is one sentence.

Tensors of a model by all their names, held against what a state has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.captured_models import GPT
from weft.runtime.checkpoint.weights import (
    CODES,
    TensorFile,
    WeightsError,
    fitted,
    named_tensors,
    weights_of,
    write_tensors,
)

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.ones(4, dtype=torch.bfloat16)}


def sharded(folder: Path) -> Path:
    write_tensors(folder / "one.safetensors", {"a": STATE["a"], "other": torch.zeros(2)})
    write_tensors(folder / "two.safetensors", {"b": STATE["b"], "c": STATE["c"]})
    return folder


def indexed(folder: Path) -> Path:
    sharded(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        "a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}))
    return folder


def in_torch(path: Path) -> Path:
    torch.save(STATE, path)
    return path


@pytest.mark.parametrize("kind", ["mapping", "safetensors", "torch", "folder", "index", "folder of torch", "newest"])
def test_all_sources_give_the_same(kind: str, tmp_path: Path) -> None:
    (tmp_path / "step-000000002").mkdir()
    (tmp_path / "step-000000001").mkdir()
    write_tensors(tmp_path / "x.safetensors", STATE)
    sources: dict[str, Callable[[], Any]] = {
        "mapping": lambda: STATE, "safetensors": lambda: tmp_path / "x.safetensors",
        "torch": lambda: in_torch(tmp_path / "x.pt"), "folder": lambda: sharded(tmp_path / "step-000000002"),
        "index": lambda: indexed(tmp_path / "step-000000002"),
        "folder of torch": lambda: in_torch(tmp_path / "step-000000002/x.bin").parent,
        "newest": lambda: indexed(tmp_path / "step-000000002").parent}
    found = weights_of(sources[kind]())
    assert set(found.tensors) - {"other"} == set(STATE) and ("other" in found.tensors) == (kind == "folder")
    for name, value in STATE.items():
        assert torch.equal(found.read(name), value) and found.tensors[name] == (tuple(value.shape), value.dtype)


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.pt").write_bytes(b"no state")
    torch.save([1], tmp_path / "list.pt")
    for source, said in ((3, "state is int, it must be a state dict, a file or a folder"),
                         (tmp_path / "none.pt", r"none\.pt: cannot be read: No such file"),
                         (tmp_path / "empty", r"has no file of weights: none ends in \.safetensors, \.pt"),
                         (tmp_path / "no.pt", r"no\.pt: cannot be read as a state dict that torch.save wrote"),
                         (tmp_path / "list.pt", r"list\.pt: holds list, it must hold a state dict")):
        with pytest.raises(WeightsError, match=said):
            weights_of(source)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="the state dict: a is on the meta device, without numbers"):
        weights_of({"a": torch.empty(2, device="meta")}).read("a")
    indexed(tmp_path)
    write_tensors(tmp_path / "one.safetensors", {"z": STATE["a"]})
    with pytest.raises(WeightsError, match=r"one\.safetensors: has no a, which the folder's index says is there"):
        weights_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x"}}))
    with pytest.raises(WeightsError, match=r"names \.\./x, which is no file of this folder"):
        weights_of(tmp_path)


def test_what_is_written_is_read_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {str(dtype): torch.randint(0, 2, (2, 3)).to(dtype) for dtype in CODES}
    tensors |= {"number": torch.tensor(1.5), "nothing": torch.empty(0, 4), "part": torch.randn(6, 4)[:, 1:3]}
    write_tensors(tmp_path / "a.safetensors", tensors, {"said": "é"})
    file = TensorFile(tmp_path / "a.safetensors")
    assert file.notes == {"said": "é"} and set(file.tensors) == set(tensors)
    for name, tensor in tensors.items():
        found = file.read(name)
        assert found.dtype == tensor.dtype and found.shape == tensor.shape == file.tensors[name].shape
        assert found.reshape(-1).view(torch.uint8).tolist() == tensor.contiguous().reshape(-1).view(
            torch.uint8).tolist()


def test_the_form_is_the_published_one(tmp_path: Path) -> None:
    """Eight bytes of length, a header, and the numbers, little end first."""
    header = json.dumps({"x": {"dtype": "I32", "shape": [2], "data_offsets": [4, 12]},
                         "y": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "b.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(
        number.to_bytes(4, "little") for number in (7, 1, 2)))
    file = TensorFile(path)
    assert file.read("x").tolist() == [1, 2] and file.read("y").item() == 7


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data[:-1], "x lies at 0 to 32 of 31 bytes"),
    (lambda data: data[:6], "its header cannot be"),
    (lambda data: b"\xff" * 8 + data[8:], "its header cannot be"),
    (lambda data: data[:8] + b"[" + data[9:], "its header is no JSON"),
    (lambda data: data.replace(b"F32", b"X32"), "the header says of x no type"),
    (lambda data: data.replace(b"[8]", b"[9]"), "which is not where")])
def test_a_file_that_is_damaged_is_refused(change: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_tensors(path, {"x": torch.ones(8)})
    assert callable(change)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(WeightsError, match=said):
        TensorFile(path)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_cannot_be_named_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"q is of torch\.complex32, which cannot be saved"):
        write_tensors(tmp_path / "d", {"q": torch.zeros(2, dtype=torch.complex32)})


def test_tied_parameters_are_one_with_two_names_and_passing_buffers_are_not_saved() -> None:
    model = GPT(1)
    model.register_buffer("angles", torch.ones(2), persistent=False)
    model.register_buffer("counted", torch.ones(2))
    found = {item.name: item for item in named_tensors(model)}
    assert found["words.weight"].names == ("words.weight", "head.weight") and "head.weight" not in found
    assert not found["angles"].is_saved and found["counted"].is_saved
    assert {name for item in found.values() if item.is_saved for name in item.names} == set(model.state_dict())


def test_a_state_is_held_against_the_model() -> None:
    model = GPT(1)
    tensors, state = named_tensors(model), dict(model.state_dict())
    del state["words.weight"]  # its other name is there
    assert fitted(weights_of(state), tensors, "GPT")["words.weight"] == "head.weight"
    with pytest.raises(WeightsError, match="the state dict has extra, which GPT does not have: give the state of this"):
        fitted(weights_of({**state, "extra": torch.ones(1)}), tensors, "GPT")
    fitted(weights_of({**state, "extra": torch.ones(1)}), tensors, "GPT", strict=False)
    with pytest.raises(WeightsError, match=r"norm\.bias has the shape \(3\), but in GPT it has \(16\)"):
        fitted(weights_of({**state, "norm.bias": torch.ones(3)}), tensors, "GPT")
    del state["norm.bias"]
    with pytest.raises(WeightsError, match=r"the state dict has no norm\.bias: give the whole state of GPT"):
        fitted(weights_of(state), tensors, "GPT", strict=False)
    assert isinstance(model.head, nn.Linear)

"""Weights by name, from memory, files and folders; what is no such thing is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.runtime.checkpoint.tensor_files import write_tensors
from weft.runtime.checkpoint.weights import WeightsError, weights_of

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
    with pytest.raises(WeightsError, match="state is int, it must be a state dict, a file or a folder"):
        weights_of(3)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match=r"none\.pt: cannot be read: No such file"):
        weights_of(tmp_path / "none.pt")
    with pytest.raises(WeightsError, match=r"has no file of weights: none ends in \.safetensors, \.pt"):
        weights_of(tmp_path)
    (tmp_path / "no.pt").write_bytes(b"no state")
    with pytest.raises(WeightsError, match=r"no\.pt: cannot be read as a state dict that torch.save wrote"):
        weights_of(tmp_path / "no.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(WeightsError, match=r"list\.pt: holds list, it must hold a state dict"):
        weights_of(tmp_path / "list.pt")
    with pytest.raises(WeightsError, match="the state dict: a is on the meta device, without numbers"):
        weights_of({"a": torch.empty(2, device="meta")}).read("a")
    indexed(tmp_path)
    write_tensors(tmp_path / "one.safetensors", {"z": STATE["a"]})
    with pytest.raises(WeightsError, match=r"one\.safetensors: has no a, which the folder's index says is there"):
        weights_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x"}}))
    with pytest.raises(WeightsError, match=r"names \.\./x, which is no file of this folder"):
        weights_of(tmp_path)

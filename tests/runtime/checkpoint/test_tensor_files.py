"""Tensors written to a file come back one by one, and a damaged file is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from weft.runtime.checkpoint.tensor_files import CODES, TensorFile, TensorFileError, write_tensors


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
    with pytest.raises(TensorFileError, match=said):
        TensorFile(path)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_cannot_be_named_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match=r"q is of torch\.complex32, which cannot be saved"):
        write_tensors(tmp_path / "d", {"q": torch.zeros(2, dtype=torch.complex32)})

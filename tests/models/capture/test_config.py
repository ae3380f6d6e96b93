"""Configs of types that weft does not read, through a library that makes models of them."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.models.capture.capture import capture_config
from weft.models.capture.exported import ExportFault


class Model(torch.nn.Module):
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

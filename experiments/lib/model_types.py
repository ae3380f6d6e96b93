"""Tiny random models of Hugging Face's model types: the ways of foreign code that no list of ours foresees.

Each type of ``experiments/data/model_types.yaml`` is made by its own configuration, of a width and depth that all of
them understand, and of a task: the next word, the missing word, a sequence to another, a class of a picture. ``TYPES``
are their names here; they stand among :data:`experiments.lib.foreign_models.MODELS` when this has been imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.lib.foreign_models import MODELS, Maker
from experiments.lib.provenance import given

_DATA: dict[str, Any] = given("model_types.yaml")
_USUAL: dict[str, Any] = {**dict.fromkeys(_DATA["still"], 0.0), **_DATA["tiny"]}
_TASKS: dict[str, dict[str, dict[str, Any]]] = _DATA["tasks"]


def _module(kind: str, task: str, settings: dict[str, Any]) -> Callable[[torch.dtype], nn.Module]:
    def make(dtype: torch.dtype) -> nn.Module:
        import transformers

        usual = {key: value for key, value in _USUAL.items() if key not in settings and _takes(kind, key, settings)}
        config = transformers.AutoConfig.for_model(kind, **usual, **settings)
        found: nn.Module = getattr(transformers, f"AutoModelFor{task}").from_config(
            config, attn_implementation="eager")
        return found

    return make


def _takes(kind: str, key: str, settings: dict[str, Any]) -> bool:
    """Whether the configuration of that type knows the option, which none of ``settings`` is another name of."""
    import transformers

    config = transformers.AutoConfig.for_model(kind)
    computed = getattr(type(config), key, None)
    if config.attribute_map.get(key) in settings or (isinstance(computed, property) and computed.fset is None):
        return False
    return hasattr(config, key) or key in ("use_cache", "num_labels")


def _words(rows: int) -> dict[str, Any]:
    ids = torch.randint(4, 97, (rows, 12))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _pictures(side: int) -> Callable[[int], dict[str, Any]]:
    def batch(rows: int) -> dict[str, Any]:
        pixels: Tensor = torch.randn(rows, 3, side, side)
        return {"pixel_values": pixels, "labels": torch.randint(5, (rows,))}

    return batch


def _speech(rows: int) -> dict[str, Any]:
    return {"input_features": torch.randn(rows, 8, 24), "labels": torch.randint(4, 97, (rows, 6))}


class _Flava(nn.Module):
    """Embeddings of words and a picture together, whose squares are the loss."""

    def __init__(self) -> None:
        import transformers

        super().__init__()
        part = {key: value for key, value in _DATA["tiny"].items() if key.startswith(("hidden", "inter", "num_"))
                and key != "num_labels"}
        self.body = transformers.FlavaModel(transformers.FlavaConfig(
            hidden_size=32, projection_dim=16, text_config={**part, "vocab_size": 97},
            image_config={**part, "image_size": 16, "patch_size": 4}, multimodal_config=part))

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        found: Tensor = self.body(input_ids, pixel_values).multimodal_embeddings
        return found.square().mean()


def _makers() -> dict[str, Maker]:
    found: dict[str, Maker] = {
        "clip (pairs)": MODELS["CLIP"],
        "flava (pairs)": Maker(lambda dtype: _Flava(), lambda rows: {
            "input_ids": torch.randint(4, 97, (rows, 12)), "pixel_values": torch.randn(rows, 3, 16, 16)},
            {"allow_unread": True}),
        "whisper (SpeechSeq2Seq)": Maker(_module("whisper", "SpeechSeq2Seq", {
            **_TASKS["Seq2SeqLM"]["bart"], "num_mel_bins": 8, "max_source_positions": 12,
            "max_target_positions": 16}), _speech, {"allow_unread": True})}
    for task, kinds in _TASKS.items():
        for kind, settings in kinds.items():
            seen = task == "ImageClassification"
            batch = _pictures(settings.get("image_size", 16)) if seen else _words
            found[f"{kind} ({'images' if seen else task})"] = Maker(
                _module(kind, task, settings), batch, {"allow_unread": True})
    return found


MODELS.update(_makers())
TYPES = tuple(_makers())

"""A Hugging Face ``config.json`` as a model of the zoo, read as plain JSON; transformers is not needed.

``model_type`` says the family. Where a key is left out, the defaults are those of the transformers library (its
configuration classes, version 4). Only the architecture is read: how a model was trained is not in a config.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from weft.models.files.limits import MAX_CONFIG_BYTES, MAX_WIDTH
from weft.models.files.reading import read_text
from weft.models.spec.base import Section
from weft.models.spec.families import FlavaModel, GptModel, MoeModel, ResNetModel, SwinModel, T5Model
from weft.solver.io.entries import show

__all__ = ["ConfigError", "known_types", "model_of_config", "read_config"]

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}


#: Stages of a model whose resolution falls from one to the next, at most.
_STAGES = 64


class ConfigError(ValueError):
    """A config.json that cannot be used: one sentence with the file and the key at fault."""


def known_types() -> tuple[str, ...]:
    """The values of ``model_type`` that are understood."""
    return tuple(sorted(_READERS))


def read_config(path: Path, *, sequence: int | None = None) -> Section:
    """The model of a ``config.json``. Raises :class:`ConfigError`."""
    text = read_text(path, MAX_CONFIG_BYTES, "a config.json", ConfigError)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a whole number with thousands of digits, too
        raise ConfigError(f"{path}: is not JSON ({str(error).partition(';')[0]})") from None
    return model_of_config(found, sequence=sequence, where=str(path))


def model_of_config(config: object, *, sequence: int | None = None, where: str = "config") -> Section:
    """The model of a config that is read already; ``sequence`` replaces the most tokens it was made for.

    Raises :class:`ConfigError` for a type that is not known, a key that is missing or not of its kind, and sizes that
    do not go together.
    """
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: is no JSON object, a config.json is one")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        found = "missing" if kind is None else f"{kind!r:.60}"
        raise ConfigError(f"{where}: model_type is {found}, the known ones are {', '.join(known_types())}")
    try:
        return _READERS[kind](_Config(config, where), sequence)
    except ValidationError as error:
        entry = error.errors()[0]
        field = ".".join(str(step) for step in entry["loc"])
        limit = entry.get("ctx", {}).get("le")
        raise ConfigError(f"{where}: " + (
            f"{field} is {show(entry['input'])}, it must be at most {limit}" if limit is not None else
            f"{field + ': ' if field else ''}{entry['msg']}")) from None


class _Config:
    """The keys of a config, read by name and kind."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def number(self, *names: str, default: int | None = None) -> int:
        """The whole number under the first of ``names`` that is there."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{self.where}: {name} is {show(value)}, it must be a whole number of at least "
                                  "1")
            return value
        if default is None:
            raise ConfigError(f"{self.where}: {names[0]} is missing")
        return default

    def numbers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """The list of whole numbers under ``name``."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, list) or not 1 <= len(value) <= _STAGES or any(
                type(entry) is not int or not 1 <= entry <= MAX_WIDTH for entry in value):
            raise ConfigError(f"{self.where}: {name} is {show(value)}, it must be a list of 1 to {_STAGES} whole "
                              f"numbers from 1 to {MAX_WIDTH}")
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """The truth under ``name``."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {name} is {show(value)}, it must be true or false")
        return default if value is None else value

    def activation(self, name: str, default: str, known: Mapping[str, str] = _ACTIVATIONS) -> Any:
        """Our name of the activation under ``name``."""
        value = self.values.get(name) or default
        if not isinstance(value, str) or value not in known:
            raise ConfigError(f"{self.where}: {name} is {show(value)}, the known ones are {', '.join(known)}")
        return known[value]

    def section(self, name: str) -> _Config:
        """The object under ``name``, empty where it is left out."""
        value = self.values.get(name) or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}: {name} is {show(value)}, it must be an object")
        return _Config(value, f"{self.where}: {name}")


def _gpt2(c: _Config, sequence: int | None) -> Section:
    hidden, positions = c.number("n_embd", default=768), c.number("n_positions", "n_ctx", default=1024)
    return GptModel(
        family="gpt", layers=c.number("n_layer", default=12), hidden=hidden, heads=c.number("n_head", default=12),
        vocabulary=c.number("vocab_size", default=50257), sequence=_at_most(c, sequence, positions),
        max_positions=positions, feed_forward=c.number("n_inner", default=4 * hidden),
        tied=c.flag("tie_word_embeddings", True), activation=c.activation("activation_function", "gelu_new"))


def _gpt_neox(c: _Config, sequence: int | None) -> Section:
    return GptModel(
        family="gpt", layers=c.number("num_hidden_layers", default=44), hidden=c.number("hidden_size", default=6144),
        heads=c.number("num_attention_heads", default=64), vocabulary=c.number("vocab_size", default=50432),
        sequence=sequence or c.number("max_position_embeddings", default=2048), positions="rotary",
        feed_forward=c.number("intermediate_size", default=24576), tied=c.flag("tie_word_embeddings", False),
        parallel=c.flag("use_parallel_residual", True), attention_bias=c.flag("attention_bias", True),
        activation=c.activation("hidden_act", "gelu"), dropout=False)


def _llama_fields(c: _Config, sequence: int | None, positions: int, kv_heads: int | None) -> dict[str, Any]:
    heads = c.number("num_attention_heads", default=32)
    gated = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu"}
    head_size = c.values.get("head_dim")
    if c.flag("attention_bias", False) or c.flag("mlp_bias", False):
        raise ConfigError(f"{c.where}: attention_bias and mlp_bias are not known to this family, they must be false")
    return {
        "layers": c.number("num_hidden_layers", default=32), "hidden": c.number("hidden_size", default=4096),
        "heads": heads, "kv_heads": c.number("num_key_value_heads", default=kv_heads or heads),
        "vocabulary": c.number("vocab_size", default=32000),
        "sequence": sequence or c.number("max_position_embeddings", default=positions),
        "feed_forward": c.number("intermediate_size", default=11008), "positions": "rotary", "norm": "rms_norm",
        "activation": c.activation("hidden_act", "silu", gated), "bias": False,
        "head_size": None if head_size is None else c.number("head_dim"),
        "tied": c.flag("tie_word_embeddings", False), "attention": "fused", "dropout": False}


def _llama(c: _Config, sequence: int | None) -> Section:
    return GptModel(family="gpt", **_llama_fields(c, sequence, 2048, None))


def _mistral(c: _Config, sequence: int | None) -> Section:
    fields = _llama_fields(c, sequence, 131072, 8)
    return GptModel(family="gpt", **{**fields, "feed_forward": c.number("intermediate_size", default=14336)})


def _mixtral(c: _Config, sequence: int | None) -> Section:
    fields = _llama_fields(c, sequence, 131072, 8)
    return MoeModel(family="moe", **{**fields, "feed_forward": c.number("intermediate_size", default=14336)},
                    experts=c.number("num_local_experts", default=8),
                    active=c.number("num_experts_per_tok", default=2))


def _t5(c: _Config, sequence: int | None) -> Section:
    return _t5_like(c, sequence, activation="relu", tied=True, vocabulary=32128, layers=6, heads=8, inner=2048)


def _mt5(c: _Config, sequence: int | None) -> Section:
    return _t5_like(c, sequence, activation="gated-gelu", tied=False, vocabulary=250112, layers=8, heads=6, inner=1024)


def _t5_like(c: _Config, sequence: int | None, *, activation: str, tied: bool, vocabulary: int, layers: int, heads: int,
             inner: int) -> Section:
    kinds = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
    layers = c.number("num_layers", default=layers)
    return T5Model(
        family="t5", encoder_layers=layers, decoder_layers=c.number("num_decoder_layers", default=layers),
        hidden=c.number("d_model", default=512), heads=c.number("num_heads", default=heads),
        head_size=c.number("d_kv", default=64), feed_forward=c.number("d_ff", default=inner),
        vocabulary=c.number("vocab_size", default=vocabulary),
        sequence=sequence or c.number("n_positions", default=512), tied=c.flag("tie_word_embeddings", tied),
        buckets=c.number("relative_attention_num_buckets", default=32),
        activation=c.activation("feed_forward_proj", activation, kinds))


def _swin(c: _Config, sequence: int | None) -> Section:
    _no_sequence(c, sequence)
    ratio = c.values.get("mlp_ratio", 4)
    if not isinstance(ratio, int | float) or not 1 <= ratio <= MAX_WIDTH or ratio != int(ratio):
        raise ConfigError(f"{c.where}: mlp_ratio is {show(ratio)}, it must be a whole number")
    return SwinModel(
        family="swin", width=c.number("embed_dim", default=96), depths=c.numbers("depths", (2, 2, 6, 2)),
        heads=c.numbers("num_heads", (3, 6, 12, 24)), image=c.number("image_size", default=224),
        patch=c.number("patch_size", default=4), window=c.number("window_size", default=7), mlp_ratio=int(ratio),
        classes=_classes(c, 1000))


def _flava(c: _Config, sequence: int | None) -> Section:
    text, image, fusion = c.section("text_config"), c.section("image_config"), c.section("multimodal_config")
    widths = {part.number("hidden_size", default=768) for part in (text, image, fusion)}
    if len(widths) > 1:
        raise ConfigError(f"{c.where}: hidden_size is {', '.join(map(str, sorted(widths)))} in text_config, "
                          "image_config and multimodal_config, towers of one width are known")
    positions = text.number("max_position_embeddings", default=512)
    return FlavaModel(
        family="flava", text_layers=text.number("num_hidden_layers", default=12),
        image_layers=image.number("num_hidden_layers", default=12),
        fusion_layers=fusion.number("num_hidden_layers", default=6), hidden=widths.pop(),
        heads=text.number("num_attention_heads", default=12),
        feed_forward=text.number("intermediate_size", default=3072),
        vocabulary=text.number("vocab_size", default=30522), max_positions=positions,
        sequence=_at_most(c, sequence, positions) if sequence else 77, image=image.number("image_size", default=224),
        patch=image.number("patch_size", default=16))


def _resnet(c: _Config, sequence: int | None) -> Section:
    _no_sequence(c, sequence)
    bottleneck = c.values.get("layer_type", "bottleneck")
    if bottleneck not in ("basic", "bottleneck"):
        raise ConfigError(f"{c.where}: layer_type is {show(bottleneck)}, it must be basic or bottleneck")
    depths = c.numbers("depths", (3, 4, 6, 3))
    width = c.number("embedding_size", default=64)
    outer = width * (4 if bottleneck == "bottleneck" else 1)
    sizes = c.numbers("hidden_sizes", (256, 512, 1024, 2048))
    if sizes != tuple(outer * 2**i for i in range(len(depths))):
        raise ConfigError(f"{c.where}: hidden_sizes is {list(sizes)}, known are widths that double from stage to "
                          f"stage: {[outer * 2**i for i in range(len(depths))]}")
    return ResNetModel(family="resnet", depths=depths, bottleneck=bottleneck == "bottleneck", width=width,
                       classes=_classes(c, 1000))


def _classes(c: _Config, default: int) -> int:
    labels = c.values.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else c.number("num_labels", default=default)


def _at_most(c: _Config, sequence: int | None, positions: int) -> int:
    if sequence is not None and sequence > positions:
        raise ConfigError(f"{c.where}: has {positions} positions, but the sequence is {sequence}")
    return sequence or positions


def _no_sequence(c: _Config, sequence: int | None) -> None:
    if sequence is not None:
        raise ConfigError(f"{c.where}: sequence is {sequence}, but {c.values['model_type']} reads images, not tokens")


_READERS: Mapping[str, Callable[[_Config, int | None], Section]] = {
    "gpt2": _gpt2, "gpt_neox": _gpt_neox, "llama": _llama, "mistral": _mistral, "mixtral": _mixtral, "t5": _t5,
    "mt5": _mt5, "swin": _swin, "flava": _flava, "resnet": _resnet}

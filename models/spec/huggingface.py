"""A Hugging Face ``config.json`` as a model of a family, read as plain JSON; transformers is not needed.

``model_type`` determines the family (:mod:`weft.models.spec.config_types`). A missing key has the default of the
transformers library. Only the architecture is read: training settings are not in a config.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from weft.models.files.limits import MAX_CONFIG_BYTES, MAX_WIDTH
from weft.models.spec.base import Section
from weft.models.spec.config_types import MULTIMODAL, TYPES
from weft.models.spec.config_values import Config, ConfigError, UnknownType
from weft.models.spec.families import FAMILIES
from weft.solver.io.entries import show
from weft.solver.io.reading import read_text
from weft.solver.spelling import near

__all__ = ["ConfigError", "UnknownType", "known_types", "model_of_config", "read_config"]

#: The config keys of the sizes common to most types.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_FEED_FORWARD = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", "d_ff", "encoder_ffn_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_WINDOW = ("sliding_window", "attention_chunk_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k")
_ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "activation", "feed_forward_proj")
_DROPOUT = ("hidden_dropout_prob", "hidden_dropout", "resid_pdrop", "resid_dropout", "residual_dropout", "dropout_rate",
            "dropout")

#: The config key of a family's field.
_NAMES = {"layers": _LAYERS, "encoder_layers": ("num_layers", "encoder_layers"), "hidden": _HIDDEN, "heads": _HEADS,
          "kv_heads": _KV_HEADS, "feed_forward": _FEED_FORWARD, "sequence": _POSITIONS, "max_positions": _POSITIONS,
          "window": _WINDOW, "experts": _EXPERTS, "active": _ACTIVE, "vocabulary": ("vocab_size",),
          "head_size": ("head_dim", "d_kv")}

#: Activations by cost: all except ReLU and gated ones move and keep the same bytes as GELU.
_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu", "gelu_10")
_PLAIN = {**dict.fromkeys((*_GELU, "silu", "swish", "relu2"), "gelu"), "relu": "relu"}
_GATED = {**dict.fromkeys(("silu", "swish"), "swiglu"), **dict.fromkeys(_GELU, "geglu")}
_T5 = {**_PLAIN, "gated-gelu": "geglu", "gated-silu": "swiglu"}


def known_types() -> tuple[str, ...]:
    """The supported values of ``model_type``."""
    return tuple(sorted({*(kind for kind in TYPES if not kind.startswith("clip_")), *_OTHERS}))


def read_config(path: Path, *, sequence: int | None = None) -> Section:
    """The model of a ``config.json``. Raises :class:`ConfigError`."""
    text = read_text(path, MAX_CONFIG_BYTES, "a config.json", ConfigError)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a whole number with thousands of digits, too
        raise ConfigError(f"{path}: is not JSON ({str(error).partition(';')[0]})") from None
    return model_of_config(found, sequence=sequence, where=str(path))


def model_of_config(config: object, *, sequence: int | None = None, where: str = "config") -> Section:
    """The model of a parsed config; ``sequence`` replaces its maximum number of tokens.

    Raises :class:`UnknownType` for an unknown type, and :class:`ConfigError` for a key that is missing or of another
    kind, and incompatible sizes.
    """
    if not isinstance(config, dict):
        raise ConfigError(f"{where}: is no JSON object, a config.json is one")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in known_types():
        raise UnknownType(f"{where}: {_unknown(kind)}")
    read = _OTHERS.get(kind)
    own = Config(config, where, _defaults().get(kind))
    try:
        family, fields = (kind, read(own, sequence)) if read else _fields(kind, own, sequence)
        return FAMILIES[family].model_validate({"family": family, **fields})
    except ValidationError as error:
        entry = error.errors()[0]
        field = ".".join(_named(own, _NAMES.get(str(step), (str(step),))) for step in entry["loc"])
        limit = entry.get("ctx", {}).get("le")
        raise ConfigError(f"{where}: " + (
            f"{field} is {show(entry['input'])}, it must be at most {limit}" if limit is not None else
            f"{field + ': ' if field else ''}{entry['msg']}")) from None


def _unknown(kind: object) -> str:
    """The sentence for an unsupported type."""
    if kind is None:
        return "model_type is missing; give it, such as llama"
    if isinstance(kind, str) and kind in MULTIMODAL:
        return (f"model_type is {kind!r}, which has more than a language model; write its {MULTIMODAL[kind]} to a "
                "config.json of its own, or capture the whole model (weft capture)")
    return (f"model_type is {f'{kind!r}':.60}, which is not read{near(str(kind), known_types())}; export the model "
            f"with torch.export and capture it (weft capture model.pt2), or give one of the {len(known_types())} types "
            "that docs/SPECS.md lists")


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    """By type, the defaults of transformers for missing keys."""
    shipped = resources.files("weft.models") / "data" / "config_defaults.json"
    found: dict[str, dict[str, Any]] = json.loads(shipped.read_text(encoding="utf-8"))["types"]
    return found


def _fields(kind: str, c: Config, sequence: int | None) -> tuple[str, dict[str, Any]]:
    """The family of a type and its fields: the common ones, overridden by the type's own."""
    family, base, own = TYPES[kind]
    rules = {**(base(c) if callable(base) else base), **own}
    special = {name: rule(c) if callable(rule) else rule for name, rule in rules.items()}
    spare, extra, gated = special.pop("spare", 0), special.pop("extra", 0), special.pop("gated", False)
    common = _pair_fields(c) if family == "t5" else _layer_fields(c, special)
    if "activation" not in special:
        name = next((name for name in _ACTIVATION if c.has(name)), _ACTIVATION[0])
        common["activation"] = c.word(name, _T5 if name == "feed_forward_proj" else _GATED if gated else _PLAIN)
    fields = {**common, **special}
    if family == "moe":
        fields = {**_expert_fields(c), **fields}
    if family == "encoder":
        c.require("tie_word_embeddings", True)
    elif "tied" not in special:
        fields["tied"] = c.flag("tie_word_embeddings", True)
    if family == "encoder" and "image_size" in c.defaults:
        _no_sequence(c, sequence)
        image = {"image": c.number("image_size"), "patch": c.number("patch_size"),
                 "channels": c.number("num_channels", default=3)}
        return family, {**fields, **image, "windowed": None}
    return family, {"vocabulary": c.number("vocab_size"), **fields, **_place_fields(c, family, fields, sequence, spare,
                                                                                   extra)}


def _layer_fields(c: Config, special: Mapping[str, Any]) -> dict[str, Any]:
    """The common fields of decoders and encoders. ``special``: the type's own fields, which are not read again."""
    hidden, heads = c.number(*_HIDDEN), c.number(*_HEADS)
    size = special["head_size"] if "head_size" in special else c.maybe("head_dim")
    if size is None and heads <= MAX_WIDTH >= hidden and hidden % heads and special.get("latent") is None:
        _indivisible(c, _HEADS, heads, _HIDDEN, hidden)
    kv_heads = special["kv_heads"] if "kv_heads" in special else c.maybe(*_KV_HEADS)
    if kv_heads is not None and heads % kv_heads:
        _indivisible(c, _KV_HEADS, kv_heads, _HEADS, heads)
    layers, windowed = c.number(*_LAYERS), special.get("windowed")
    types = c.get("layer_types") if "windowed" in special else None
    if types is not None and len(types) != layers:
        raise ConfigError(f"{c.where}: layer_types lists {len(types)} layers, but {_named(c, _LAYERS)} is {layers}; "
                          "give one for each")
    window = (special.get("window") or c.maybe(*_WINDOW)) if windowed is not None else None
    return {"layers": layers, "hidden": hidden, "heads": heads, "head_size": size, "kv_heads": kv_heads,
            "feed_forward": None if "feed_forward" in special else c.maybe(*_FEED_FORWARD), "window": window,
            "dropout": _drops_out(c)}


def _expert_fields(c: Config) -> dict[str, Any]:
    experts, active = c.number(*_EXPERTS), c.number(*_ACTIVE)
    if active > experts:
        c.refuse(_named(c, _ACTIVE), active, f"it must be at most the number of experts, {experts}")
    return {"experts": experts, "active": active, "expert_feed_forward": c.maybe("moe_intermediate_size")}


def _pair_fields(c: Config) -> dict[str, Any]:
    """The common fields of encoders with decoders."""
    layers, decoder = c.number("num_layers", "encoder_layers"), c.maybe("num_decoder_layers", "decoder_layers")
    hidden, heads, wide = c.number(*_HIDDEN), c.number(*_HEADS), c.number(*_FEED_FORWARD)
    for key, value in (("decoder_attention_heads", heads), ("decoder_ffn_dim", wide)):
        if c.number(key, default=value) != value:
            c.refuse(key, c.get(key), f"known are decoders like their encoders, with {value}")
    size = c.maybe("d_kv")
    if size is None and hidden % heads:
        _indivisible(c, _HEADS, heads, _HIDDEN, hidden)
    return {"encoder_layers": layers, "decoder_layers": decoder or layers, "hidden": hidden, "heads": heads,
            "head_size": size, "feed_forward": wide, "dropout": _drops_out(c)}


def _place_fields(c: Config, family: str, fields: Mapping[str, Any], sequence: int | None, spare: int,
                  extra: int) -> dict[str, Any]:
    """Tokens of a sequence, and rows of the position table, if there is one."""
    most = fields.get("max_positions") or c.number(*_POSITIONS, default=512 if family == "t5" else 2048) - spare
    if family == "encoder" or fields.get("positions") == "apart" or (
            family != "t5" and fields.get("positions", "learned") == "learned"):
        if sequence is not None and sequence > most:
            raise ConfigError(f"{c.where}: has {most} positions, but the sequence is {sequence}; give at most {most}")
        rows = {"max_positions": most + spare + extra, **({"max_target": most + extra} if family == "t5" else {})}
        return {"sequence": sequence or most, **rows, **{key: fields[key] for key in rows if key in fields}}
    windowed = fields.get("windowed") if fields.get("window") else None
    return {"sequence": sequence or most, **({"windowed": windowed} if family != "t5" else {})}


def _clip(c: Config, sequence: int | None) -> dict[str, Any]:
    towers = {}
    for name, kind in (("text", "clip_text_model"), ("image", "clip_vision_model")):
        entry = "text_config" if name == "text" else "vision_config"
        own = c.section(entry, _defaults()[kind])
        towers[name] = {"family": "encoder", **_fields(kind, own, sequence if name == "text" else None)[1]}
    return {**towers, "projection": c.number("projection_dim")}


def _swin(c: Config, sequence: int | None) -> dict[str, Any]:
    _no_sequence(c, sequence)
    ratio = c.get("mlp_ratio")
    if not isinstance(ratio, int | float) or not 1 <= ratio <= MAX_WIDTH or ratio != int(ratio):
        c.refuse("mlp_ratio", ratio, "it must be a whole number")
    return {"width": c.number("embed_dim"), "depths": c.numbers("depths"), "heads": c.numbers("num_heads"),
            "image": c.number("image_size"), "patch": c.number("patch_size"), "window": c.number("window_size"),
            "mlp_ratio": int(ratio), "classes": c.classes()}


def _flava(c: Config, sequence: int | None) -> dict[str, Any]:
    text, image, fusion = (c.section(name, _defaults()[f"flava_{name.partition('_')[0]}_model"])
                           for name in ("text_config", "image_config", "multimodal_config"))
    widths = {part.number("hidden_size") for part in (text, image, fusion)}
    if len(widths) > 1:
        raise ConfigError(f"{c.where}: hidden_size is {', '.join(map(str, sorted(widths)))} in text_config, "
                          "image_config and multimodal_config, towers of one width are known")
    positions = text.number("max_position_embeddings")
    if sequence is not None and sequence > positions:
        raise ConfigError(f"{c.where}: has {positions} positions, but the sequence is {sequence}; give at most "
                          f"{positions}")
    return {"text_layers": text.number("num_hidden_layers"), "image_layers": image.number("num_hidden_layers"),
            "fusion_layers": fusion.number("num_hidden_layers"), "hidden": widths.pop(),
            "heads": text.number("num_attention_heads"), "feed_forward": text.number("intermediate_size"),
            "vocabulary": text.number("vocab_size"), "max_positions": positions, "sequence": sequence or 77,
            "image": image.number("image_size"), "patch": image.number("patch_size")}


def _resnet(c: Config, sequence: int | None) -> dict[str, Any]:
    _no_sequence(c, sequence)
    bottleneck = c.get("layer_type")
    if bottleneck not in ("basic", "bottleneck"):
        c.refuse("layer_type", bottleneck, "it must be basic or bottleneck")
    depths, width = c.numbers("depths"), c.number("embedding_size")
    outer = width * (4 if bottleneck == "bottleneck" else 1)
    sizes = c.numbers("hidden_sizes")
    if sizes != tuple(outer * 2**i for i in range(len(depths))):
        raise ConfigError(f"{c.where}: hidden_sizes is {list(sizes)}, known are widths that double from stage to "
                          f"stage: {[outer * 2**i for i in range(len(depths))]}")
    return {"depths": depths, "bottleneck": bottleneck == "bottleneck", "width": width, "classes": c.classes()}


def _drops_out(c: Config) -> bool:
    rate = c.get(*_DROPOUT) or 0
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        c.refuse(_named(c, _DROPOUT), rate, "it must be a share from 0 to below 1")
    return rate > 0


def _named(c: Config, names: tuple[str, ...]) -> str:
    """The one of ``names`` that the config uses."""
    return next((name for source in (c.values, c.defaults) for name in names if name in source), names[0])


def _indivisible(c: Config, part: tuple[str, ...], value: int, whole: tuple[str, ...], total: int) -> None:
    c.refuse(_named(c, part), value, f"it must divide {_named(c, whole)}, {total}")


def _no_sequence(c: Config, sequence: int | None) -> None:
    if sequence is not None:
        raise ConfigError(f"{c.where}: sequence is {sequence}, but {c.values.get('model_type', 'this tower')} reads "
                          "images, not tokens; leave it out")


#: Types other than a chain of transformer layers.
_OTHERS: Mapping[str, Callable[[Config, int | None], dict[str, Any]]] = {
    "clip": _clip, "swin": _swin, "flava": _flava, "resnet": _resnet}

"""The ``model_type``s of Hugging Face configs, one line a type: a family of weft and the type's own fields.

A line's entries are fields of the family's section (:mod:`weft.models.spec.families`), each a value or a function that
reads it from the config. Sizes common to all types are read by :mod:`weft.models.spec.huggingface` under the names used
in configs; ``gated`` says whether the activation gates, ``spare`` is the number of rows of learned positions without a
token, ``extra`` the number of additional rows. Missing keys have the defaults of transformers' classes, in
``models/data/config_defaults.json`` (written by ``experiments/models/configs.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.models.spec.config_values import Config

Rules = Mapping[str, Any]


def _flag(key: str, *, default: bool = False) -> Callable[[Config], bool]:
    return lambda c: c.flag(key, default)


def _number(*keys: str, default: int | None = None) -> Callable[[Config], int]:
    return lambda c: c.number(*keys, default=default)


def _when(key: str, value: str) -> Callable[[Config], str | None]:
    """``value`` if the flag is set."""
    return lambda c: value if c.flag(key, False) else None


def _pattern(period: int | str) -> Callable[[Config], tuple[bool, ...] | None]:
    """All but the last of ``period`` layers (or as many as a key says) have a window, unless the config lists them."""
    def read(c: Config) -> tuple[bool, ...] | None:
        count = period if isinstance(period, int) or c.get("layer_types") is not None else c.maybe(period)
        return c.windowed(tuple(i + 1 < count for i in range(count)) if isinstance(count, int) and count else (True,))
    return read


def _late_windows(c: Config) -> tuple[bool, ...] | None:
    """Layers from ``max_window_layers`` on have a window, if ``use_sliding_window`` is set."""
    layers, start = c.number("num_hidden_layers"), c.maybe("max_window_layers", least=0) or 0
    return c.windowed(tuple(c.flag("use_sliding_window", False) and i >= start for i in range(layers)))


def _falcon(c: Config) -> Rules:
    new = c.flag("new_decoder_architecture", False)
    heads = c.number("num_attention_heads", "n_head")
    kv_heads = c.number("num_kv_heads", "n_head_kv", default=heads) if new else (
        1 if c.flag("multi_query", True) else heads)
    parallel = new or c.flag("parallel_attn", True)
    norms = c.maybe("num_ln_in_parallel_attn") or (2 if new else 1)
    return {"kv_heads": kv_heads, "parallel": parallel, "one_norm": parallel and norms == 1,
            "bias": c.flag("bias", False), "norm_bias": True,
            "positions": "none" if c.flag("alibi", False) else "rotary"}


def _opt(c: Config) -> Rules:
    before = c.flag("do_layer_norm_before", True)
    width, hidden = c.maybe("word_embed_proj_dim"), c.number("hidden_size")
    return {"norm_place": "before" if before else "after", "embedding_width": None if width == hidden else width,
            "final_norm": before and not c.flag("_remove_final_layer_norm", False), "bias": c.flag("enable_bias", True),
            "norm_bias": True}


def _latent(c: Config) -> Rules:
    return {"query_rank": c.maybe("q_lora_rank"), "key_rank": c.number("kv_lora_rank"),
            "plain": c.number("qk_nope_head_dim"), "rotary": c.number("qk_rope_head_dim"),
            "value": c.number("v_head_dim")}


def _shared(width: str, count: str) -> Callable[[Config], int]:
    """The total width of the shared experts."""
    return lambda c: c.number(width) * (c.maybe(count, least=0) or 0)


def _dense_layers(c: Config) -> int:
    """The number of initial layers without experts, from ``mlp_only_layers``."""
    listed = c.get("mlp_only_layers") or []
    if listed != list(range(len(listed) if isinstance(listed, list) else 0)):
        c.refuse("mlp_only_layers", listed, "it must list the first layers in a row, such as [0, 1], or be left out")
    return len(listed)


def _mpt(c: Config) -> Rules:
    own = c.section("attn_config")
    c.require("no_bias", True)
    return {"positions": "none", "feed_forward": c.number("d_model") * c.number("expansion_ratio", default=4),
            "qk_norm": "width" if own.flag("qk_ln", False) else None}


def _whisper(c: Config) -> Rules:
    return {"mels": c.number("num_mel_bins"), "max_positions": c.number("max_source_positions"),
            "max_target": c.number("max_target_positions"), "target": c.number("max_target_positions"),
            "key_bias": False}


#: Common fields of most decoders since LLaMA.
_LLAMA: Rules = {"positions": "rotary", "norm": "rms_norm", "bias": False, "gated": True, "attention": "fused",
                 "attention_bias": _flag("attention_bias"), "out_bias": _flag("attention_bias"),
                 "mlp_bias": _flag("mlp_bias")}
_COHERE: Rules = {"norm": "layer_norm", "parallel": True, "one_norm": True}
_PHI: Rules = {"positions": "rotary", "parallel": True, "one_norm": True, "head_bias": True, "attention": "fused"}
_GPTJ: Rules = {**_PHI, "attention_bias": False, "out_bias": False}
_DEEPSEEK: Rules = {**_LLAMA, "latent": _latent, "kv_heads": None, "head_size": None, "feed_forward": _number(
    "intermediate_size"), "shared": _shared("moe_intermediate_size", "n_shared_experts"),
    "dense_first": _number("first_k_dense_replace", default=0)}
_BERT: Rules = {"norm_place": "after", "final_norm": False, "embedding_norm": True, "attention": "fused",
                "types": _number("type_vocab_size", default=0), "head": "masked"}
_ROBERTA: Rules = {**_BERT, "spare": 2}
_CLIP: Rules = {"attention": "fused", "head": "none"}
_T5: Rules = {"buckets": _number("relative_attention_num_buckets", default=32)}
_BART: Rules = {"positions": "apart", "norm": "layer_norm", "bias": True, "extra": 2, "embedding_norm": True,
                "attention": "fused"}

#: The family of each type, and the type's own fields.
TYPES: Mapping[str, tuple[str, Rules | Callable[[Config], Rules], Rules]] = {
    # plain decoders
    "gpt2": ("gpt", {}, {"attention": "fused"}),
    "gpt_neo": ("gpt", {}, {"attention_bias": False, "window": _number("window_size"), "windowed": (False, True)}),
    "gpt_bigcode": ("gpt", {}, {"kv_heads": lambda c: 1 if c.flag("multi_query", True) else None,
                                "attention": "fused"}),
    "gpt_neox": ("gpt", {}, {"positions": "rotary", "parallel": _flag("use_parallel_residual", default=True),
                             "attention": "fused",
                             "attention_bias": _flag("attention_bias", default=True),
                             "out_bias": _flag("attention_bias", default=True)}),
    "gptj": ("gpt", _GPTJ, {}),
    "codegen": ("gpt", _GPTJ, {}),
    "phi": ("gpt", _PHI, {"qk_norm": lambda c: c.require("qk_layernorm", False)}),
    "falcon": ("gpt", _falcon, {"attention": "fused"}),
    "bloom": ("gpt", {}, {"positions": "none", "embedding_norm": True, "activation": "gelu", "feed_forward": None,
                          "attention": "fused"}),
    "mpt": ("gpt", _mpt, {"bias": False, "activation": "gelu", "attention": "fused"}),
    "opt": ("gpt", _opt, {"extra": 2, "attention": "fused"}),
    "starcoder2": ("gpt", {}, {"positions": "rotary", "bias": _flag("use_bias", default=True), "norm_bias": True,
                               "windowed": _pattern(0), "attention": "fused"}),
    "nemotron": ("gpt", _LLAMA, {"norm": "layer_norm", "norm_bias": True, "gated": False}),
    "stablelm": ("gpt", _LLAMA, {"norm": "layer_norm", "norm_bias": True, "attention_bias": _flag("use_qkv_bias"),
                                 "out_bias": False, "parallel": _flag("use_parallel_residual"),
                                 "one_norm": _flag("use_parallel_residual"),
                                 "qk_norm": _when("qk_layernorm", "heads")}),
    # LLaMA's kin
    "llama": ("gpt", _LLAMA, {}),
    "mistral": ("gpt", _LLAMA, {"windowed": _pattern(0)}),
    "ministral": ("gpt", _LLAMA, {"windowed": _pattern(0)}),
    "qwen2": ("gpt", _LLAMA, {"attention_bias": True, "out_bias": False, "windowed": _late_windows}),
    "qwen3": ("gpt", _LLAMA, {"qk_norm": "head", "windowed": _late_windows}),
    "phi3": ("gpt", _LLAMA, {"windowed": _pattern(0)}),
    "gemma": ("gpt", _LLAMA, {}),
    "gemma2": ("gpt", _LLAMA, {"norm_place": "both", "windowed": _pattern(2)}),
    "gemma3_text": ("gpt", _LLAMA, {"norm_place": "both", "qk_norm": "head",
                                    "windowed": _pattern("sliding_window_pattern")}),
    "olmo": ("gpt", _LLAMA, {"norm": "plain"}),
    "olmo2": ("gpt", _LLAMA, {"norm_place": "output", "qk_norm": "width"}),
    "olmo3": ("gpt", _LLAMA, {"norm_place": "output", "qk_norm": "width", "windowed": _pattern(4)}),
    "exaone4": ("gpt", _LLAMA, {"norm_place": "output", "qk_norm": "head",
                                "windowed": _pattern("sliding_window_pattern")}),
    "glm": ("gpt", _LLAMA, {"out_bias": False}),
    "glm4": ("gpt", _LLAMA, {"out_bias": False, "norm_place": "both"}),
    "granite": ("gpt", _LLAMA, {}),
    "smollm3": ("gpt", _LLAMA, {"windowed": _late_windows}),
    "cohere": ("gpt", _LLAMA, {**_COHERE, "qk_norm": _when("use_qk_norm", "heads")}),
    "cohere2": ("gpt", _LLAMA, {**_COHERE, "windowed": _pattern(4)}),
    "arcee": ("gpt", _LLAMA, {"gated": False}),
    "helium": ("gpt", _LLAMA, {"out_bias": False}),
    "seed_oss": ("gpt", _LLAMA, {"out_bias": _flag("attention_out_bias")}),
    "ernie4_5": ("gpt", _LLAMA, {"bias": _flag("use_bias"), "attention_bias": None, "out_bias": None,
                                 "mlp_bias": None}),
    "hunyuan_v1_dense": ("gpt", _LLAMA, {"qk_norm": "head"}),
    # mixtures of experts
    "mixtral": ("moe", _LLAMA, {"windowed": _pattern(0)}),
    "phimoe": ("moe", _LLAMA, {"norm": "layer_norm", "norm_bias": True, "head_bias": _flag("lm_head_bias"),
                               "windowed": _pattern(0)}),
    "granitemoe": ("moe", _LLAMA, {}),
    "olmoe": ("moe", _LLAMA, {"qk_norm": "width"}),
    "qwen2_moe": ("moe", _LLAMA, {"attention_bias": _flag("qkv_bias", default=True), "out_bias": False,
                                  "shared": _number("shared_expert_intermediate_size"), "shared_gate": True,
                                  "windowed": _late_windows, "dense_first": _dense_layers,
                                  "every": _number("decoder_sparse_step", default=1)}),
    "qwen3_moe": ("moe", _LLAMA, {"qk_norm": "head", "windowed": _late_windows, "dense_first": _dense_layers,
                                  "every": _number("decoder_sparse_step", default=1)}),
    "deepseek_v2": ("moe", _DEEPSEEK, {}),
    "deepseek_v3": ("moe", _DEEPSEEK, {"predict": _number("num_nextn_predict_layers", default=0)}),
    "glm4_moe": ("moe", _LLAMA, {"out_bias": False, "qk_norm": _when("use_qk_norm", "head"),
                                 "shared": _shared("moe_intermediate_size", "n_shared_experts"),
                                 "dense_first": _number("first_k_dense_replace", default=0),
                                 "predict": _number("num_nextn_predict_layers", default=0)}),
    "gpt_oss": ("moe", _LLAMA, {"router_bias": True, "mlp_bias": True, "sinks": True, "windowed": _pattern(2)}),
    "llama4_text": ("moe", _LLAMA, {"feed_forward": _number("intermediate_size_mlp"),
                                    "expert_feed_forward": _number("intermediate_size"),
                                    "shared": _number("intermediate_size"), "windowed": _pattern(4),
                                    "every": _number("interleave_moe_layer_step", default=1)}),
    "ernie4_5_moe": ("moe", _LLAMA, {"bias": _flag("use_bias"), "attention_bias": None, "out_bias": None,
                                     "mlp_bias": None, "every": _number("moe_layer_interval", default=1),
                                     "shared": _shared("moe_intermediate_size", "moe_num_shared_experts"),
                                     "dense_first": _number("moe_layer_start_index", default=0)}),
    # encoders
    "bert": ("encoder", _BERT, {}),
    "roberta": ("encoder", _ROBERTA, {}),
    "xlm-roberta": ("encoder", _ROBERTA, {}),
    "camembert": ("encoder", _ROBERTA, {}),
    "distilbert": ("encoder", _BERT, {}),
    "vit": ("encoder", {}, {"head": "classes", "attention_bias": _flag("qkv_bias", default=True), "attention": "fused",
                            "classes": lambda c: c.classes()}),
    "clip_text_model": ("encoder", _CLIP, {}),
    "clip_vision_model": ("encoder", _CLIP, {"patch_bias": False, "embedding_norm": True}),
    # encoders with decoders
    "t5": ("t5", _T5, {}),
    "mt5": ("t5", _T5, {"tied": _flag("tie_word_embeddings")}),
    "umt5": ("t5", _T5, {"tied": _flag("tie_word_embeddings"), "every_bias": True}),
    "bart": ("t5", _BART, {"norm_place": "after", "final_norm": False}),
    "mbart": ("t5", _BART, {}),
    "whisper": ("t5", _whisper, {**_BART, "extra": 0, "embedding_norm": False}),
}

#: Types that contain a language model beside parts that are not read, and its key.
MULTIMODAL: Mapping[str, str] = {
    "gemma3": "text_config", "llama4": "text_config", "mistral3": "text_config", "mllama": "text_config",
    "llava": "text_config", "qwen2_vl": "text_config", "qwen2_5_vl": "text_config", "qwen3_vl": "text_config",
    "qwen3_vl_moe": "text_config"}

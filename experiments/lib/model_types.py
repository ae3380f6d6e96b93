"""Tiny random models of Hugging Face's model types: the ways of foreign code that no list of ours foresees.

Each type is made by its own configuration, of a width and depth that all of them understand, and of a task: the next
word, the missing word, a sequence to another, a class of a picture. ``TYPES`` are their names here; they stand among
:data:`experiments.lib.foreign_models.MODELS` when this has been imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.lib.foreign_models import MODELS, Maker

_TINY: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2}
_STILL: dict[str, Any] = dict.fromkeys((
    "hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_dropout", "attention_dropout", "dropout",
    "activation_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "resid_dropout",
    "residual_dropout", "embed_dropout", "drop_path_rate", "embedding_dropout", "layerdrop", "encoder_layerdrop",
    "decoder_layerdrop"), 0.0)
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
                            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "n_group": 1,
                            "topk_group": 1, "n_shared_experts": 1, "num_shared_experts": 1, "first_k_dense_replace": 1,
                            "experts_implementation": "batched_mm"}

#: By task the types, each with what it must be told beside.
_CAUSAL: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "gemma": {}, "gemma2": {}, "gemma3_text": {}, "phi": {},
    "phi3": {}, "gpt2": {}, "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "gpt_neox": {}, "gptj": {"rotary_dim": 4}, "gpt_bigcode": {}, "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {}, "falcon": {}, "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4}, "stablelm": {}, "starcoder2": {},
    "olmo": {}, "olmo2": {}, "cohere": {}, "granite": {}, "glm": {}, "persimmon": {},
    "codegen": {"rotary_dim": 4}, "biogpt": {}, "nemotron": {}, "smollm3": {}, "helium": {}, "ernie4_5": {},
    "arcee": {}, "cohere2": {}, "exaone4": {}, "glm4": {}, "hunyuan_v1_dense": {}, "ministral": {}, "olmo3": {},
    "seed_oss": {}, "phimoe": _EXPERTS, "ernie4_5_moe": {**_EXPERTS, "moe_num_experts": 4, "moe_k": 2},
    "glm4_moe": _EXPERTS, "gpt_oss": _EXPERTS, "llama4_text": {**_EXPERTS, "intermediate_size_mlp": 48},
    "deepseek_v2": {**_EXPERTS, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                    "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 8},
    "mamba": {"state_size": 8}, "mamba2": {"state_size": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 4},
    "mixtral": _EXPERTS, "qwen2_moe": _EXPERTS, "qwen3_moe": _EXPERTS, "olmoe": _EXPERTS, "granitemoe": _EXPERTS,
    "deepseek_v3": {**_EXPERTS, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                    "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 8}}
_MASKED: dict[str, dict[str, Any]] = {
    "bert": {}, "roberta": {}, "electra": {"embedding_size": 16}, "distilbert": {"dim": 32, "hidden_dim": 48},
    "albert": {"embedding_size": 16}, "deberta-v2": {}, "mpnet": {}, "camembert": {}, "xlm-roberta": {}, "convbert": {},
    "squeezebert": {"embedding_size": 32}, "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 12},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 4}, "megatron-bert": {}, "fnet": {}}
_PAIRED: dict[str, dict[str, Any]] = {
    name: {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
           "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_start_token_id": 1,
           "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0, "ffn_dim": 48}
    for name in ("t5", "bart", "mbart", "pegasus", "m2m_100", "marian", "blenderbot", "mt5", "umt5")}
_SEEN: dict[str, dict[str, Any]] = {
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": 64},
    "vit": {}, "beit": {}, "dinov2": {}, "vit_msn": {},
    "swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2},
    "swinv2": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2},
    "convnext": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": 32},
    "convnextv2": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": 32},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "groups_width": 8,
               "image_size": 32},
    "mobilenet_v2": {"depth_multiplier": 0.25, "image_size": 32},
    "poolformer": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 64},
    "segformer": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 4],
                  "image_size": 32}}


def _module(kind: str, task: str, settings: dict[str, Any]) -> Callable[[torch.dtype], nn.Module]:
    def make(dtype: torch.dtype) -> nn.Module:
        import transformers

        with_all = {**_TINY, **_STILL, "use_cache": False, "num_labels": 5, "image_size": 16, "patch_size": 4,
                    **settings}
        config = transformers.AutoConfig.for_model(kind, **{
            key: value for key, value in with_all.items() if key in settings or _takes(kind, key, settings)})
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
        parts = {f"{part}_config": {key: _TINY[key] for key in _TINY if key.startswith(("hidden", "inter", "num_"))}
                 for part in ("text", "image", "multimodal")}
        self.body = transformers.FlavaModel(transformers.FlavaConfig(
            hidden_size=32, projection_dim=16, text_config={**parts["text_config"], "vocab_size": 97},
            image_config={**parts["image_config"], "image_size": 16, "patch_size": 4},
            multimodal_config=parts["multimodal_config"]))

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
            **_PAIRED["bart"], "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16}), _speech,
            {"allow_unread": True})}
    for task, kinds in (("CausalLM", _CAUSAL), ("MaskedLM", _MASKED), ("Seq2SeqLM", _PAIRED)):
        found.update((f"{kind} ({task})", Maker(_module(kind, task, settings), _words, {"allow_unread": True}))
                     for kind, settings in kinds.items())
    found.update((f"{kind} (images)", Maker(_module(kind, "ImageClassification", settings),
                                            _pictures(settings.get("image_size", 16)), {"allow_unread": True}))
                 for kind, settings in _SEEN.items())
    return found


MODELS.update(_makers())
TYPES = tuple(_makers())

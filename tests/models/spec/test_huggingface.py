"""Hugging Face configs: the models they name, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.lib.model_configs import CONFIGS as MODELS
from weft.models import PUBLISHED, model_graph
from weft.models.spec.families import GptModel
from weft.models.spec.huggingface import ConfigError, known_types, model_of_config, read_config
from weft.models.zoo.gpt import layer_sizes

#: What transformers counts (experiments/models/configs.py), and types that read images alone.
COUNTED = json.loads((Path(__file__).parents[3] / "experiments" / "results" / "configs.json").read_text())["models"]
IMAGES = ("vit", "swin", "resnet")

#: The keys that say the architecture, as in the config.json of each model's page, and parameters as published (for
#: FLAVA as counted: tests/models/zoo/test_parameters.py holds its parts against published models).
CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2-xl": ({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "n_ctx": 1024,
                 "vocab_size": 50257, "activation_function": "gelu_new"}, 1_557_611_200),
    "EleutherAI/gpt-neox-20b": ({
        "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "vocab_size": 50432, "hidden_act": "gelu_fast", "tie_word_embeddings": False,
        "max_position_embeddings": 2048}, 20_554_567_680),
    "meta-llama/Meta-Llama-3-8B": ({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
        "max_position_embeddings": 8192, "attention_bias": False, "tie_word_embeddings": False}, 8_030_261_248),
    "mistralai/Mistral-7B-v0.1": ({
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "hidden_act": "silu",
        "max_position_embeddings": 32768, "sliding_window": 4096}, 7_241_732_096),
    "mistralai/Mixtral-8x7B-v0.1": ({
        "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": 32768, "hidden_act": "silu"}, 46_702_792_704),
    "google-t5/t5-11b": ({
        "model_type": "t5", "d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_heads": 128, "num_layers": 24,
        "vocab_size": 32128, "n_positions": 512}, 11_307_321_344),
    "google/mt5-base": ({
        "model_type": "mt5", "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_heads": 12, "num_layers": 12,
        "num_decoder_layers": 12, "vocab_size": 250112, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False}, 582_401_280),
    "microsoft/swin-base-patch4-window7-224": ({
        "model_type": "swin", "embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32], "mlp_ratio": 4.0,
        "image_size": 224, "patch_size": 4, "window_size": 7, "id2label": {str(i): "x" for i in range(1000)}},
        87_768_224),
    "facebook/flava-full": ({
        "model_type": "flava", "text_config": {"hidden_size": 768}, "image_config": {"patch_size": 16},
        "multimodal_config": {"num_hidden_layers": 6}}, 241_356_289),
    "microsoft/resnet-50": ({
        "model_type": "resnet", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048], "embedding_size": 64,
        "layer_type": "bottleneck", "num_labels": 1000}, 25_557_032),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_model_of_its_page(name: str) -> None:
    config, parameters = CONFIGS[name]
    assert model_graph(model_of_config(config)).parameter_count() == parameters


@pytest.mark.parametrize("name", MODELS)
def test_a_published_config_has_the_parameters_that_transformers_gives_it(name: str) -> None:
    row = COUNTED[name]
    ours = model_graph(model_of_config(MODELS[name], sequence=None if row["type"] in IMAGES else 16)).parameter_count()
    assert ours == row["transformers"] + row.get("predict", 0) + row.get("head", 0)


def test_attention_is_fused_where_transformers_has_it_so() -> None:
    """GPT-Neo does not scale its scores, and T5 adds to them: these are computed kernel by kernel."""
    models = {str(config["model_type"]): model_of_config(config) for config in MODELS.values()}
    unfused = {kind for kind, model in models.items() if getattr(model, "attention", "fused") == "unfused"}
    assert unfused == {"gpt_neo", "t5", "mt5", "umt5"}


def test_every_known_type_is_tried() -> None:
    tried = {str(config["model_type"]) for config in (*(config for config, _ in CONFIGS.values()), *MODELS.values())}
    assert tried == set(known_types()) and len(MODELS) >= 45 and len({row["type"] for row in COUNTED.values()}) >= 30


#: Billions of parameters that a token meets, as each model's page has them, with or without the embedding's table, and
#: a unit of their last digit.
ACTIVE = {"mistralai/Mixtral-8x7B-v0.1": (12.9, True, 0.1), "Qwen/Qwen3-30B-A3B": (3.3, True, 0.1),
          "Qwen/Qwen3-235B-A22B": (22, True, 1), "Qwen/Qwen1.5-MoE-A2.7B": (2.7, True, 0.1),
          "openai/gpt-oss-20b": (3.6, False, 0.1), "openai/gpt-oss-120b": (5.1, False, 0.1),
          "meta-llama/Llama-4-Scout-17B-16E (text)": (17, True, 1), "allenai/OLMoE-1B-7B-0924": (1.3, True, 0.1),
          "microsoft/Phi-3.5-MoE-instruct": (6.6, True, 0.1), "deepseek-ai/DeepSeek-V2": (21, False, 1),
          "deepseek-ai/DeepSeek-V3": (37, False, 1), "meta-llama/Meta-Llama-3-8B": (8.03, True, 0.01)}


@pytest.mark.parametrize("name", ACTIVE)
def test_the_products_of_a_token_are_those_of_the_published_active_parameters(name: str) -> None:
    """Two operations a parameter and token, in all products that are not attention's."""
    published, embedded, unit = ACTIVE[name]
    model = model_of_config(MODELS[name], sequence=2048)
    assert isinstance(model, GptModel)
    flops = sum(operator.forward.flops for operator in model_graph(model).operators
                if operator.kind in ("linear", "expert_linear") and "predict" not in operator.name)
    active = flops / 2 / 2048 + embedded * model.vocabulary * model.hidden
    assert abs(active / 1e9 - published) < unit


def test_windows_are_those_of_the_config() -> None:
    def windows(name: str, **more: Any) -> list[int | None]:
        model = model_of_config({**MODELS[name], **more}, sequence=16)
        assert isinstance(model, GptModel)
        return [layer_sizes(model, i).attention.window for i in range(model.layers)]

    assert windows("google/gemma-2-2b") == [4096, None] * 13
    assert windows("google/gemma-3-1b-pt") == [*[*[512] * 5, None] * 4, 512, 512]
    assert windows("meta-llama/Llama-4-Scout-17B-16E (text)")[:8] == [8192, 8192, 8192, None] * 2
    assert windows("openai/gpt-oss-20b", layer_types=["full_attention", "sliding_attention"] * 12) == [None, 128] * 12
    assert set(windows("mistralai/Mistral-7B-v0.1")) == {4096}
    assert set(windows("mistralai/Mistral-7B-v0.1", sliding_window=None)) == {None}
    assert set(windows("Qwen/Qwen2.5-7B")) == {None}
    assert windows("Qwen/Qwen2.5-0.5B", use_sliding_window=True, sliding_window=64, max_window_layers=20) == [
        *[None] * 20, *[64] * 4]


def test_what_transformers_leaves_out_is_what_its_formula_says() -> None:
    """The layer of multi-token prediction of DeepSeek-V3 (section 2.2): a layer with experts, a product of both joined
    vectors, and three norms."""
    h, latent = 7168, 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * h * 2048 + 256 * h
    assert COUNTED["deepseek-ai/DeepSeek-V3"]["predict"] == latent + experts + 2 * h + 2 * h * h + 3 * h
    assert COUNTED["google/flan-t5-xxl"]["head"] == 32128 * 4096


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "gpt2"), ("t5", "t5-small"), ("mt5", "mt5-small"),
                                            ("swin", "swin-t"), ("flava", "flava"), ("gpt_neox", "gpt-neox-20b")])
def test_defaults_are_those_of_the_library(kind: str, name: str) -> None:
    ours = model_graph(model_of_config({"model_type": kind})).parameter_count()
    assert ours == model_graph(PUBLISHED[name]).parameter_count()


def test_a_shorter_sequence_leaves_the_learned_positions_as_they_are() -> None:
    model = model_of_config({"model_type": "gpt2"}, sequence=128)
    graph = model_graph(model)
    assert graph.parameter_count() == 124_439_808 and graph.inputs[0].shape == (1, 128)
    with pytest.raises(ConfigError, match="has 1024 positions, but the sequence is 2048"):
        model_of_config({"model_type": "gpt2"}, sequence=2048)


@pytest.mark.parametrize(("config", "words"), [
    ([], "is no JSON object"), ({}, "model_type is missing; give it, such as llama"),
    ({"model_type": "mamba"}, r"model_type is 'mamba', which is not read; .*weft capture model.pt2"),
    ({"model_type": "lama"}, "did you mean 'llama'"), ({"model_type": ["t5"]}, "which is not read"),
    ({"model_type": "gemma3", "text_config": {}}, "which has more than a language model; write its text_config to"),
    ({"model_type": "gpt2", "n_layer": -3}, "n_layer is -3, it must be a whole number of at least 1"),
    ({"model_type": "gpt2", "n_layer": "12"}, 'n_layer is "12"'), ({"model_type": "gpt2", "n_layer": True}, "is true"),
    ({"model_type": "gpt2", "n_head": 7}, "n_head is 7, it must divide n_embd, 768"),
    ({"model_type": "llama", "num_key_value_heads": 5}, "num_key_value_heads is 5, it must divide num_attention_heads"),
    ({"model_type": "t5", "d_kv": None, "num_heads": 7}, "num_heads is 7, it must divide d_model, 512"),
    ({"model_type": "llama", "hidden_size": None}, "hidden_size is missing; give it, a whole number of at least 1"),
    ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok is 9, it must be at most .* experts, 8"),
    ({"model_type": "deepseek_v2"}, "num_experts_per_tok is missing; give it"),
    ({"model_type": "qwen2_moe", "mlp_only_layers": [3]}, "it must list the first layers in a row"),
    ({"model_type": "gemma2", "layer_types": ["mamba"]}, "layer_types is \"mamba\", of each layer known are"),
    ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "lists 1 layers, but num_hidden_layers is 26; give"),
    ({"model_type": "gemma2", "layer_types": 3}, "it must list a word for each layer"),
    ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm is true, known is false alone"),
    ({"model_type": "bert", "tie_word_embeddings": False}, "tie_word_embeddings is false, known is true alone"),
    ({"model_type": "whisper", "decoder_ffn_dim": 3}, "known are decoders like their encoders, with 1536"),
    ({"model_type": "gpt2", "resid_pdrop": 2}, "resid_pdrop is 2, it must be a share"),
    ({"model_type": "clip", "text_config": 3}, "text_config is 3, it must be an object"),
    ({"model_type": "clip", "vision_config": {"patch_size": 0}}, "vision_config: patch_size is 0, it must be a whole"),
    ({"model_type": "gpt2", "activation_function": "tanh"}, "activation_function is \"tanh\", the known ones are gelu"),
    ({"model_type": "llama", "attention_bias": 1}, "attention_bias is 1, it must be true or false"),
    ({"model_type": "swin", "depths": 3}, "depths is 3, it must be a list"),
    ({"model_type": "swin", "window_size": 8}, "must be a multiple of window"),
    ({"model_type": "resnet", "hidden_sizes": [1, 2, 3, 4]}, "hidden_sizes is"),
    ({"model_type": "flava", "text_config": {"hidden_size": 512}}, "towers of one width"),
])
def test_what_is_wrong_is_named(config: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        model_of_config(config, where="a/config.json")
    assert str(caught.value).startswith("a/config.json: ") and "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        read_config(broken)
    broken.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: is not JSON"):
        read_config(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"config\.json: is not UTF-8"):
        read_config(broken)
    broken.write_text(json.dumps(CONFIGS["gpt2-xl"][0]))
    assert read_config(broken) == model_of_config(CONFIGS["gpt2-xl"][0])

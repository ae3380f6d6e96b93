"""Published models by name: the sizes of their papers and code, and the published parameter counts with their
sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.spec.base import Section
from weft.models.spec.families import (
    ClipModel,
    DlrmModel,
    EncoderModel,
    EvoformerModel,
    FlavaModel,
    GptModel,
    MmtModel,
    MoeModel,
    ResNetModel,
    SwinModel,
    T5Model,
    UnoModel,
)


def _gpt(layers: int, hidden: int, heads: int, sequence: int) -> GptModel:
    return GptModel(family="gpt", layers=layers, hidden=hidden, heads=heads, vocabulary=50257, sequence=sequence)


def _llama(layers: int, hidden: int, heads: int, inner: int, *, vocabulary: int = 32000, kv_heads: int | None = None,
           sequence: int = 4096) -> GptModel:
    return GptModel(family="gpt", layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, sequence=sequence,
                    feed_forward=inner, kv_heads=kv_heads, positions="rotary", norm="rms_norm", activation="swiglu",
                    bias=False, tied=False, attention="fused", dropout=False)


def _mixtral(layers: int, hidden: int, heads: int, inner: int, vocabulary: int) -> MoeModel:
    return MoeModel(family="moe", layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, sequence=4096,
                    feed_forward=inner, kv_heads=8, positions="rotary", norm="rms_norm", activation="swiglu",
                    bias=False, tied=False, attention="fused", dropout=False, experts=8, active=2)


def _t5(layers: int, hidden: int, heads: int, inner: int, head_size: int = 64) -> T5Model:
    return T5Model(family="t5", encoder_layers=layers, decoder_layers=layers, hidden=hidden, heads=heads,
                   feed_forward=inner, vocabulary=32128, sequence=512, head_size=head_size)


def _mt5(layers: int, hidden: int, heads: int, inner: int) -> T5Model:
    return T5Model(family="t5", encoder_layers=layers, decoder_layers=layers, hidden=hidden, heads=heads,
                   feed_forward=inner, vocabulary=250112, sequence=1024, head_size=64, activation="geglu", tied=False)


def _vit(layers: int, hidden: int, heads: int, patch: int, **more: Any) -> EncoderModel:
    return EncoderModel(family="encoder", layers=layers, hidden=hidden, heads=heads, image=224, patch=patch,
                        attention="fused", dropout=False, **{"head": "classes", **more})


def _swin(width: int, deep: int, heads: int) -> SwinModel:
    return SwinModel(family="swin", width=width, depths=(2, 2, deep, 2), heads=tuple(heads * 2**i for i in range(4)))


def _resnet(*depths: int, bottleneck: bool = True, width_factor: int = 1) -> ResNetModel:
    return ResNetModel(family="resnet", depths=depths, bottleneck=bottleneck, width_factor=width_factor)


#: Rows of the 26 tables of Criteo's terabyte data set as MLPerf Training's DLRM uses it (at most 40 million each).
CRITEO_TABLES = (39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938,
                 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36)

PUBLISHED: Mapping[str, Section] = {
    "gpt2": _gpt(12, 768, 12, 1024), "gpt2-medium": _gpt(24, 1024, 16, 1024), "gpt2-large": _gpt(36, 1280, 20, 1024),
    "gpt2-xl": _gpt(48, 1600, 25, 1024),
    "gpt3-small": _gpt(12, 768, 12, 2048), "gpt3-medium": _gpt(24, 1024, 16, 2048),
    "gpt3-large": _gpt(24, 1536, 16, 2048), "gpt3-xl": _gpt(24, 2048, 16, 2048),
    "gpt3-2.7b": _gpt(32, 2560, 32, 2048), "gpt3-6.7b": _gpt(32, 4096, 32, 2048),
    "gpt3-13b": _gpt(40, 5120, 40, 2048), "gpt3-175b": _gpt(96, 12288, 96, 2048),
    "gpt-neox-20b": GptModel(family="gpt", layers=44, hidden=6144, heads=64, vocabulary=50432, sequence=2048,
                             positions="rotary", parallel=True, tied=False, dropout=False),
    "llama-7b": _llama(32, 4096, 32, 11008, sequence=2048), "llama-2-13b": _llama(40, 5120, 40, 13824),
    "llama-2-70b": _llama(80, 8192, 64, 28672, kv_heads=8),
    "llama-3-8b": _llama(32, 4096, 32, 14336, vocabulary=128256, kv_heads=8, sequence=8192),
    "mistral-7b": _llama(32, 4096, 32, 14336, kv_heads=8, sequence=8192),
    "mixtral-8x7b": _mixtral(32, 4096, 32, 14336, 32000),
    "t5-small": _t5(6, 512, 8, 2048), "t5-base": _t5(12, 768, 12, 3072), "t5-large": _t5(24, 1024, 16, 4096),
    "t5-3b": _t5(24, 1024, 32, 16384, 128), "t5-11b": _t5(24, 1024, 128, 65536, 128),
    "mt5-small": _mt5(8, 512, 6, 1024), "mt5-base": _mt5(12, 768, 12, 2048), "mt5-large": _mt5(24, 1024, 16, 2816),
    "mt5-xl": _mt5(24, 2048, 32, 5120), "mt5-xxl": _mt5(24, 4096, 64, 10240),
    "flava": FlavaModel(family="flava", text_layers=12, image_layers=12, fusion_layers=6, hidden=768, heads=12),
    "bert-base": EncoderModel(family="encoder", layers=12, hidden=768, heads=12, vocabulary=30522, sequence=512,
                              types=2, norm_place="after", embedding_norm=True, final_norm=False),
    "vit-b-16": _vit(12, 768, 12, 16),
    "clip-vit-b-32": ClipModel(
        family="clip", projection=512, image=_vit(12, 768, 12, 32, embedding_norm=True, patch_bias=False, head="none"),
        text=EncoderModel(family="encoder", layers=12, hidden=512, heads=8, vocabulary=49408, sequence=77, head="none",
                          attention="fused", dropout=False)),
    "swin-t": _swin(96, 6, 3), "swin-s": _swin(96, 18, 3), "swin-b": _swin(128, 18, 4), "swin-l": _swin(192, 18, 6),
    "evoformer": EvoformerModel(family="evoformer"),
    "resnet18": _resnet(2, 2, 2, 2, bottleneck=False), "resnet34": _resnet(3, 4, 6, 3, bottleneck=False),
    "resnet50": _resnet(3, 4, 6, 3), "resnet101": _resnet(3, 4, 23, 3), "resnet152": _resnet(3, 8, 36, 3),
    "wide-resnet50-2": _resnet(3, 4, 6, 3, width_factor=2), "wide-resnet101-2": _resnet(3, 4, 23, 3, width_factor=2),
    "dlrm-mlperf": DlrmModel(family="dlrm", tables=CRITEO_TABLES, dimension=128, bottom=(512, 256, 128),
                             top=(1024, 1024, 512, 256, 1)),
    "uno-auc": UnoModel(family="uno", features=(942, 5270), joint=(1000,) * 5),
    # The three models of the GraphPipe evaluation (appendix A.2); its width of raw dense features is not published.
    "graphpipe-mmt": MmtModel(family="mmt"),
    "graphpipe-dlrm": DlrmModel(family="dlrm", tables=(1_000_000,) * 7, dimension=64, bag=100, dense=4096,
                                dense_branches=7, bottom=(4096,) * 4, top=(4096,) * 4, interaction="concat"),
    "graphpipe-uno": UnoModel(family="uno", features=(4096,) * 7, tower=(4096,) * 4, joint=(4096,) * 4),
}

#: Exact published counts, and their sources.
EXACT: Mapping[str, int] = {
    # KerasHub's presets gpt2_base_en, gpt2_medium_en, gpt2_large_en and gpt2_extra_large_en
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    # model card of EleutherAI/gpt-neox-20b (its table's n_parameters)
    "gpt-neox-20b": 20_554_567_680,
    # safetensors metadata on the model pages of huggyllama/llama-7b, meta-llama/Llama-2-13b-hf and Llama-2-70b-hf,
    # meta-llama/Meta-Llama-3-8B and mistralai/Mistral-7B-v0.1
    "llama-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "mistral-7b": 7_241_732_096,
    # KerasHub's preset mixtral_8_7b_en
    "mixtral-8x7b": 46_702_792_704,
    # KerasHub's presets t5_small ... t5_11b
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096, "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    # safetensors metadata on the page of openai/clip-vit-base-patch32
    "clip-vit-b-32": 151_277_313,
    # num_params in torchvision's documentation of each
    "vit-b-16": 86_567_656, "swin-t": 28_288_354, "swin-s": 49_606_258, "swin-b": 87_768_224,
    "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160,
    "resnet152": 60_192_808, "wide-resnet50-2": 68_883_240, "wide-resnet101-2": 126_886_696,
    # ECP-CANDLE/Benchmarks, Pilot1/Uno/README.AUC.md: "Total params: 16,224,001"
    "uno-auc": 16_224_001,
}

#: Counts published rounded: (number, half a unit of its last digit), and their sources.
ROUNDED: Mapping[str, tuple[float, float]] = {
    # Brown et al. 2020, table 2.1; its 1.3B, 2.7B, 6.7B and 13B. (Its 125M, 350M, 760M and 175.0B are looser.)
    "gpt3-small": (125e6, 0.5e6), "gpt3-medium": (350e6, 10e6), "gpt3-large": (760e6, 5e6), "gpt3-xl": (1.3e9, 0.05e9),
    "gpt3-2.7b": (2.7e9, 0.05e9), "gpt3-6.7b": (6.7e9, 0.05e9), "gpt3-13b": (13e9, 0.5e9), "gpt3-175b": (175e9, 0.5e9),
    # Xue et al. 2021, section 3: 300M, 580M, 1.2B, 3.7B, 13B
    "mt5-small": (300e6, 5e6), "mt5-base": (580e6, 5e6), "mt5-large": (1.2e9, 0.05e9), "mt5-xl": (3.7e9, 0.05e9),
    "mt5-xxl": (13e9, 0.5e9),
    # microsoft/Swin-Transformer, MODELHUB.md: 197M
    "swin-l": (197e6, 0.5e6),
}

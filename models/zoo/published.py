"""Published models by name: the sizes of their papers and code.

``tests/test_zoo_parameters.py`` counts their parameters and names where each number was published.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.families import (
    DlrmModel,
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
from models.section import Section

__all__ = ["PUBLISHED"]


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
    "swin-t": _swin(96, 6, 3), "swin-s": _swin(96, 18, 3), "swin-b": _swin(128, 18, 4), "swin-l": _swin(192, 18, 6),
    "evoformer": EvoformerModel(family="evoformer"),
    "resnet18": _resnet(2, 2, 2, 2, bottleneck=False), "resnet34": _resnet(3, 4, 6, 3, bottleneck=False),
    "resnet50": _resnet(3, 4, 6, 3), "resnet101": _resnet(3, 4, 23, 3), "resnet152": _resnet(3, 8, 36, 3),
    "wide-resnet50-2": _resnet(3, 4, 6, 3, width_factor=2), "wide-resnet101-2": _resnet(3, 4, 23, 3, width_factor=2),
    "dlrm-mlperf": DlrmModel(family="dlrm", tables=CRITEO_TABLES, dimension=128, bottom=(512, 256, 128),
                             top=(1024, 1024, 512, 256, 1)),
    "uno-auc": UnoModel(family="uno", features=(942, 5270), joint=(1000,) * 5),
    # The three models of the GraphPipe evaluation (appendix A.2); its width of raw dense features is not told.
    "graphpipe-mmt": MmtModel(family="mmt"),
    "graphpipe-dlrm": DlrmModel(family="dlrm", tables=(1_000_000,) * 7, dimension=64, bag=100, dense=4096,
                                dense_branches=7, bottom=(4096,) * 4, top=(4096,) * 4, interaction="concat"),
    "graphpipe-uno": UnoModel(family="uno", features=(4096,) * 7, tower=(4096,) * 4, joint=(4096,) * 4),
}

"""The zoo's parameter counts against the published ones."""

from __future__ import annotations

from itertools import pairwise

import pytest

from models.zoo.graphs import model_graph
from models.zoo.published import PUBLISHED

#: Counts published to the last parameter, and where.
EXACT = {
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
    # num_params in torchvision's documentation of each
    "swin-t": 28_288_354, "swin-s": 49_606_258, "swin-b": 87_768_224,
    "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160,
    "resnet152": 60_192_808, "wide-resnet50-2": 68_883_240, "wide-resnet101-2": 126_886_696,
    # ECP-CANDLE/Benchmarks, Pilot1/Uno/README.AUC.md: "Total params: 16,224,001"
    "uno-auc": 16_224_001,
}

#: Counts published rounded: (number, half a unit of its last digit), and where.
ROUNDED = {
    # Brown et al. 2020, table 2.1; its 1.3B, 2.7B, 6.7B and 13B. (Its 125M, 350M, 760M and 175.0B are looser.)
    "gpt3-small": (125e6, 0.5e6), "gpt3-medium": (350e6, 10e6), "gpt3-large": (760e6, 5e6), "gpt3-xl": (1.3e9, 0.05e9),
    "gpt3-2.7b": (2.7e9, 0.05e9), "gpt3-6.7b": (6.7e9, 0.05e9), "gpt3-13b": (13e9, 0.5e9), "gpt3-175b": (175e9, 0.5e9),
    # Xue et al. 2021, section 3: 300M, 580M, 1.2B, 3.7B, 13B
    "mt5-small": (300e6, 5e6), "mt5-base": (580e6, 5e6), "mt5-large": (1.2e9, 0.05e9), "mt5-xl": (3.7e9, 0.05e9),
    "mt5-xxl": (13e9, 0.5e9),
    # microsoft/Swin-Transformer, MODELHUB.md: 197M
    "swin-l": (197e6, 0.5e6),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_published_count_is_met_exactly(name: str) -> None:
    assert model_graph(PUBLISHED[name]).parameter_count() == EXACT[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_a_rounded_count_is_met_within_its_rounding(name: str) -> None:
    published, half = ROUNDED[name]
    assert abs(model_graph(PUBLISHED[name]).parameter_count() - published) <= half


def test_mixtral_computes_with_the_published_share_of_its_parameters() -> None:
    """Jiang et al. 2024, section 1: 13B active parameters; every token goes to 2 of 8 experts."""
    graph = model_graph(PUBLISHED["mixtral-8x7b"])
    experts = sum(p.count for name, p in graph.parameters.items() if ".experts.up" in name or ".experts.down" in name)
    assert graph.parameter_count() - experts * 6 // 8 == 12_879_925_248


def test_dlrm_has_the_rows_of_criteo_s_terabyte() -> None:
    """187,767,399 rows (MLPerf Training, 40 million a table at most) of 128, and the two MLPs."""
    graph = model_graph(PUBLISHED["dlrm-mlperf"])
    tables = sum(parameter.count for name, parameter in graph.parameters.items() if name.startswith("table"))
    assert tables == 187_767_399 * 128
    bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128
    widths = (128 + 27 * 26 // 2, 1024, 1024, 512, 256, 1)
    top = sum(a * b + b for a, b in pairwise(widths))
    assert graph.parameter_count() == tables + bottom + top


def test_flava_s_towers_have_the_sizes_of_the_models_they_are_made_like() -> None:
    """Singh et al. 2022, section 3: both towers are ViT-B/16-like. BERT-base has 109,482,240 parameters and ViT-B/16
    without its classes 85,798,656; FLAVA's text tower is a BERT with one norm more instead of the pooler."""
    graph = model_graph(PUBLISHED["flava"])

    def count(*leads: str) -> int:
        return sum(p.count for name, p in graph.parameters.items() if name.startswith(leads))

    pooler, norm = 768 * 768 + 768, 2 * 768
    assert count("text", "join.text_norm") == 109_482_240 - pooler + norm
    assert count("image", "join.image_norm") == 85_798_656 + 768  # and the mask token
    fusion = 6 * 12 * 768**2 + 6 * 13 * 768 + 768 + norm + pooler  # six layers, class token, norm, pooler
    between = 4 * pooler + 1  # two projections to it, two for the contrast, its temperature
    assert graph.parameter_count() == count("text", "join.text_norm", "image", "join.image_norm") + fusion + between + (
        2 * pooler)


def test_the_evoformer_stack_is_most_of_alphafold() -> None:
    """Jumper et al. 2021, supplement 1.6: algorithms 6 to 15, layer by layer; AlphaFold 2 as a whole has 93 million."""
    row = 2 * 256 + 2 * 128 + 128 * 8 + 3 * 256 * 256 + 2 * (256 * 256 + 256)
    column = 2 * 256 + 3 * 256 * 256 + 2 * (256 * 256 + 256)
    outer = 2 * 256 + 2 * (256 * 32 + 32) + 32 * 32 * 128 + 128
    triangle = 2 * (4 * 128 + 6 * (128 * 128 + 128))
    attention = 2 * (2 * 128 + 128 * 4 + 3 * 128 * 128 + 2 * (128 * 128 + 128))
    transitions = sum(2 * c + 8 * c * c + 5 * c for c in (256, 128))
    small = PUBLISHED["evoformer"].model_copy(update={"blocks": 2, "recycles": 1})
    block = model_graph(small).parameter_count() // 2
    assert block == row + column + outer + triangle + attention + transitions == 1_829_952
    assert 0.9 * 93e6 < 48 * block < 93e6

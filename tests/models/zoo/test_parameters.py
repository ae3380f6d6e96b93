"""The zoo's parameter counts against the published ones."""

from __future__ import annotations

from itertools import pairwise

import pytest

from weft.models.zoo.graphs import model_graph
from weft.models.zoo.published import EXACT, PUBLISHED, ROUNDED


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

"""Megatron-LM's texts for the layers of stages: published ones, and what is none."""

from __future__ import annotations

import pytest

from weft.models.spec.spec import SpecError, parse_spec
from weft.solver.io.megatron_layout import LayoutTextError, layers_of_layout

SPEC = """
name: a GPT
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}}
cluster: {{gpus: 4, memory: 24 GiB, links: nvlink-v100}}
training: {{micro_batches: 8}}
placement: {{{placement}}}
"""


@pytest.mark.parametrize(("text", "counts"), [
    ("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", (3, *[2] * 34, 3, *[2] * 3, 2)),  # Llama-3-70B, 40 stages of 80 layers
    ("Et*5|(t*6|)*2,t*7L", (6, 6, 6, 8)),
    ("tt | t", (2, 1)),
    ("((t*2|)*2 t|)*2t", (2, 2, 1, 2, 2, 1, 1)),
    ("Et*3|t*58,m|L", (4, 59, 1)),
    ("t|*1 t", (1, 1)),
])
def test_texts_and_their_numbers(text: str, counts: tuple[int, ...]) -> None:
    assert layers_of_layout(text) == counts


@pytest.mark.parametrize(("text", "said"), [
    ("t||t", "stage 2 of 3 has no layer"), ("t|t|", "stage 3 of 3 has no layer; every stage needs one; a |"),
    ("|t", "stage 1 of 2 has no layer"), ("t*0|t", "stage 1 of 2 has no layer"),
    ("(t|", "a parenthesis is not closed"), ("t)", "closed that was not opened"), ("t*|t", "is not understood"),
    ("t-t", "'-t' is not understood"), ("mt|L", "m, of multi-token prediction, comes behind every t"),
    ("q", "'q' is no layer"),
    ("tE|t", "E, the embedding, may only be the first"), ("tL|t", "the head, only the last"),
    ("t*" + "9" * 5000, "is not understood"),
    ("(*2t)", "repeats nothing"), ("((((t*99999)*99)*99)*99)*99", "more than 100000 layers"), ("", "has no layer"),
])
def test_what_is_no_layout_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(LayoutTextError, match=said.replace("(", r"\(").replace("*", r"\*")):
        layers_of_layout(text)


def test_a_specs_layout_is_its_cut() -> None:
    spec = parse_spec(SPEC.format(placement='layout: "Et*5|(t*6|)*2,t*7L"'))
    assert spec.placement.cut == (6, 6, 6, 8)
    for placement, said in (('layout: "t|t", cut: [1, 1]', "cut and layout both say"),
                            ('layout: "t(|"', "line 6: placement.layout: is 't\\(\\|': a parenthesis is not closed"),
                            ("layout: [1]", "a text as of Megatron-LM"),
                            ('layout: "Et|tL", shapes: [tensor]', "cut is of one GPU a stage")):
        with pytest.raises(SpecError, match=said):
            parse_spec(SPEC.format(placement=placement))

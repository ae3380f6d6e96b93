"""Placements of specs in chunks of their sequence."""

from __future__ import annotations

import pytest

from tests.support.builders import TINY_SPEC
from weft.models.candidates.build import candidates
from weft.models.candidates.sequence_candidates import sequence_candidates
from weft.models.spec.spec import SpecError, demo_spec, parse_spec
from weft.solver.baselines import baseline

LONG = """
name: long
model: {family: gpt, layers: 32, hidden: 4096, heads: 32, vocabulary: 32000, sequence: 16384, attention: fused}
costs: roofline
cluster: {gpus: 8, memory: 80 GiB, device: a100-80gb}
training: {micro_batches: 6}
placement: {shapes: [chain, loop], backward: [full]}
"""


@pytest.mark.parametrize("text", [LONG, None])
def test_both_cuts_of_every_placement(text: str | None) -> None:
    """Each micro-batch's chunks hold what it held; the schedule is shorter, and shortest with even work."""
    spec = demo_spec() if text is None else parse_spec(text, "long.yaml")
    found = [candidate for candidate in candidates(spec) if candidate.shape == "chain"][:1]
    made = sequence_candidates(spec, found, [2, 4])
    assert [entry.title for entry in made] == [f"{count} sequence chunks of even {what}" for count in (2, 4)
                                               for what in ("length", "work")]
    whole = baseline("1f1b", found[0].problem, 6).makespan
    for even, work in (made[:2], made[2:]):
        spans = [baseline("seq1f1b", entry.candidate.problem, 6).makespan for entry in (even, work)]
        assert spans[1] < spans[0] < whole
        assert work.lengths[0] > work.lengths[-1]
    for entry in made:
        problem, before = entry.candidate.problem, found[0].problem
        taken = [sum(block.memory[0] for block in one.blocks if block.kind == "forward") for one in (problem, before)]
        assert taken[0] == taken[1]
        assert "sequence chunks of" in entry.candidate.notes[-1]


def test_what_has_no_sequence_to_cut_is_refused() -> None:
    spec = parse_spec(LONG, "long.yaml")
    found = candidates(spec)[:1]
    with pytest.raises(SpecError, match="1 sequence chunks, it must be from 2 to the model's sequence, 16384 tokens"):
        sequence_candidates(spec, found, [1])
    tiny = parse_spec(TINY_SPEC, "tiny.yaml")
    with pytest.raises(SpecError, match="the model is given by its layers or operators; leave it out"):
        sequence_candidates(tiny, candidates(tiny)[:1], [2])
    t5 = LONG.replace("family: gpt, layers: 32", "family: t5, encoder_layers: 4, decoder_layers: 4, feed_forward: 8192")
    other = parse_spec(t5.replace(", attention: fused", ""), "t5.yaml")
    with pytest.raises(SpecError, match="decoders of the families gpt and moe, not t5; leave it out"):
        sequence_candidates(other, found, [2])
    serving = parse_spec(LONG.replace("training:", "inference:").replace(", backward: [full]", ""), "serve.yaml")
    with pytest.raises(SpecError, match="but this is inference; leave it out"):
        sequence_candidates(serving, found, [2])

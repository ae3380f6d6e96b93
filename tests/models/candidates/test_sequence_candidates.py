"""Placements of specs in chunks of their sequence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.support.builders import TINY_SPEC, chain, loop, pipeline
from weft.models.candidates.build import candidates
from weft.models.candidates.sequence_candidates import (
    Attention,
    even_tokens,
    even_work,
    in_sequence_chunks,
    sequence_candidates,
)
from weft.models.spec.spec import SpecError, demo_spec, parse_spec
from weft.solver import Problem, baseline, validate
from weft.solver.baselines.seq1f1b import SequencePipeline
from weft.solver.pipeline import NotAPipeline

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
    t5 = LONG.replace("family: gpt, layers: 32", "family: t5, encoder_layers: 4, decoder_layers: 4, feed_forward: 8192")
    serving = LONG.replace("training:", "inference:").replace(", backward: [full]", "")
    found = candidates(parse_spec(LONG, "long.yaml"))[:1]
    for text, chunks, said in (
            (LONG, 1, "1 sequence chunks, it must be from 2 to the model's sequence, 16384 tokens"),
            (TINY_SPEC, 2, "the model is given by its layers or operators; leave it out"),
            (t5.replace(", attention: fused", ""), 2, "decoders of the families gpt and moe, not t5; leave it out"),
            (serving, 2, "but this is inference; leave it out")):
        with pytest.raises(SpecError, match=said):
            sequence_candidates(parse_spec(text), found, [chunks])


def durations(problem: Problem, letter: str, stage: int) -> list[float]:
    found = {block.name: float(block.duration) for block in problem.blocks}
    chunks = sum(name.startswith(f"{letter}{stage}.") for name in found)
    return [found[f"{letter}{stage}.{j}"] for j in range(chunks)]


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("attention", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("chunks", [1, 2, 4, 7])
def test_even_work_is_even(chunks: int, attention: float, skips: bool) -> None:
    """Every chunk takes as long as any other, to a token's worth; later ones are no longer but for rounding."""
    tokens = 100_000
    lengths = even_work(tokens, chunks, attention, skips=skips)
    assert sum(lengths) == tokens
    assert all(later <= before + 1 for before, later in pairwise(lengths))
    problem = in_sequence_chunks(pipeline(chain(2), forward=1000, backward=2000), lengths,
                                 [Attention(attention, attention, skips)] * 2)
    for letter in "FB":
        times = durations(problem, letter, 1)
        assert max(times) - min(times) <= 0.1
        if skips:  # nothing is computed in vain before, so nothing is spared now
            assert sum(times) == pytest.approx(1000 if letter == "F" else 2000, abs=0.01)
        elif attention and chunks > 1:
            assert sum(times) < 1000 * "FB".index(letter) + 1000


def test_the_masked_half_is_spared_chunk_by_chunk() -> None:
    """All attention, four even chunks: of the square's 16 cells 1 + 2 + 3 + 4 are computed; with a kernel that skips,
    what it does is 16 odd parts of a triangle, 1, 3, 5, 7."""
    problem = pipeline(chain(2), forward=16, backward=32)
    for skips, times in ((False, [1, 2, 3, 4]), (True, [1, 3, 5, 7])):
        cut = in_sequence_chunks(problem, even_tokens(64, 4), [Attention(1.0, 1.0, skips)] * 2)
        assert durations(cut, "F", 0) == times
        assert durations(cut, "B", 1) == [2 * time for time in times]


def test_split_backwards_have_their_attention_in_the_input_gradient() -> None:
    problem = pipeline(chain(2), forward=8, split=(8, 8), activation=10)
    cut = in_sequence_chunks(problem, (1, 1), [Attention(0.5, 0.25)] * 2)
    assert durations(cut, "F", 0) == [2 + 1, 2 + 3]
    assert durations(cut, "W", 0) == [4, 4]
    assert durations(cut, "I", 0) == [2 + 1, 2 + 3]  # a quarter of 16 is half of the input gradient's 8


def test_memory_adds_up_and_transfers_go_by_tokens() -> None:
    problem = pipeline(loop(2), split=(1, 1), activation=11, lag=1.0)
    cut = in_sequence_chunks(problem, (3, 2, 2), [Attention(0.3, 0.3)] * 4, latency=0.3)
    found = SequencePipeline.of(cut)
    for row in found.pieces:
        assert [cut.blocks[piece.forward].memory[0] for piece in row] == [5, 3, 3]
        for piece in row:
            assert sum(cut.blocks[block].memory[0] for block in piece.blocks) == 0
    lags = [item.lag for item in cut.blocks[cut.index["F1.0"]].after]
    assert lags == [pytest.approx(0.3 + 0.7 * 3 / 7, abs=1e-6)]
    assert {item.block: item.lag for item in cut.blocks[cut.index["I2.1"]].after} == {
        "I2.2": 0, "I3.1": pytest.approx(0.3 + 0.7 * 2 / 7, abs=1e-6)}
    for m in (1, 4):
        validate(baseline("seq1f1b", cut, m))


def test_even_work_shortens_what_even_tokens_leaves_uneven() -> None:
    """Eight stages, attention half of the work: with even tokens the last chunk takes 2.2 times as long as the first,
    and the order loses more by that than its shorter ramp brings."""
    problem = pipeline(chain(8), forward=100, backward=200)
    spans = {}
    for name, lengths in (("tokens", even_tokens(4096, 4)), ("work", even_work(4096, 4, 0.5))):
        spans[name] = baseline("seq1f1b", in_sequence_chunks(problem, lengths, [Attention(0.5, 0.5)] * 8), 16).makespan
    whole = baseline("1f1b", problem, 16).makespan
    assert whole == 300 * (16 + 7)
    assert spans["work"] == pytest.approx(300 * (16 + 7 / 4), rel=1e-3)
    assert spans["work"] < whole < spans["tokens"]


def test_stage_0_may_owe_no_input_gradient() -> None:
    cut = in_sequence_chunks(pipeline(chain(3), split=(1, 1), first_input_grad=False), (2, 1), [Attention(0, 0)] * 3)
    validate(baseline("seq1f1b", cut, 3))


PLAIN, FREE = pipeline(chain(2)), Attention(0, 0)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: even_tokens(8, 9), "8 tokens cannot be cut into 9 chunks, it must be 1 to 8"),
    (lambda: even_work(8, 4, 0.9, multiple=4), "leave one of them without tokens"),
    (lambda: Attention(1.5, 0.0), r"share of the forward is 1\.5, it must be between 0 and 1"),
    (lambda: in_sequence_chunks(PLAIN, (1, 1), [FREE]), "attention has 1 entries for 2 stages"),
    (lambda: in_sequence_chunks(PLAIN, (1, 0), [FREE] * 2), "every chunk needs a token"),
    (lambda: in_sequence_chunks(pipeline(chain(2), backward=None), (1, 1), [FREE] * 2), "without a backward")])
def test_what_makes_no_sense_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_chunks_are_not_cut_again() -> None:
    with pytest.raises(NotAPipeline):
        in_sequence_chunks(in_sequence_chunks(PLAIN, (1, 1), [FREE] * 2), (1, 1), [FREE] * 2)

"""Specs whose micro-batches have sequences of different length."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.models import Spec, SpecError, load_spec, parse_spec
from weft.models.candidates.build import candidates
from weft.models.candidates.lengths import length_problems
from weft.solver.problem.rounds import Rounds

TEXT = """
name: GPT on 4 A100
model: {{family: gpt, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 1024{model}}}
cluster: {{gpus: 4, memory: 24 GiB, device: a100-40gb}}
training: {{lengths: {lengths}{training}}}
placement: {{shapes: [chain, v]{placement}}}
"""


def spec(lengths: str = "[256, 1024, 256]", model: str = "", training: str = "", placement: str = "") -> Spec:
    return parse_spec(TEXT.format(lengths=lengths, model=model, training=training, placement=placement))


def test_a_class_for_each_length_costs_what_the_spec_of_that_length_does() -> None:
    found = length_problems(spec())
    assert {entry.run.classes[None] for entry in found} == {("len256", "len1024", "len256")}
    longest = candidates(parse_spec(TEXT.format(lengths="[1024]", model="", training="", placement="")))
    assert [entry.candidate.layers_of_stage for entry in found] == [entry.layers_of_stage for entry in longest]
    for entry, candidate in zip(found, longest, strict=True):
        of_longest = [block.of_class("len1024") for block in entry.problem.blocks]
        assert tuple(of_longest) == candidate.problem.blocks
        assert entry.problem.devices == candidate.problem.devices
        for block in entry.problem.blocks:
            short, long = block.of_class("len256"), block.of_class("len1024")
            assert short.duration < long.duration and abs(short.memory[0]) < abs(long.memory[0])


def test_of_one_length_it_is_the_plain_problem_at_that_length() -> None:
    (entry, *_) = length_problems(spec("[1024, 1024]"))
    rounds = Rounds(entry.problem, entry.run)
    assert rounds.is_plain and rounds.problem.blocks == entry.candidate.problem.blocks and entry.run.rounds == 2


def test_lengths_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("256, 1024\n128")
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT.format(lengths="lengths.txt", model="", training="", placement=""))
    found = load_spec(path)
    assert found.training is not None
    assert found.training.lengths == (256, 1024, 128) and found.micro_batches == 3
    for text, message in (("256 -1", "entry 1 is '-1', it must be a number of tokens"), (" \n", "holds no lengths")):
        (tmp_path / "lengths.txt").write_text(text)
        with pytest.raises(SpecError, match=message):
            load_spec(path)
    (tmp_path / "lengths.txt").unlink()
    with pytest.raises(SpecError, match=r"training\.lengths is lengths\.txt, but there is no file"):
        load_spec(path)


@pytest.mark.parametrize(("given", "message"), [
    ({"lengths": "[]"}, "lists no micro-batches, it must be a list"),
    ({"lengths": "[256, 0]"}, "entry 1 is 0, it must be a number of tokens from 1"),
    ({"lengths": "[256, long]"}, "entry 1 is 'long', it must be a number of tokens"),
    ({"lengths": "7"}, "it must be a list with the tokens"),
    ({"training": ", micro_batches: 2"}, "micro_batches is 2, but lengths lists 3; leave micro_batches out"),
])
def test_a_list_that_means_nothing_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message) as refusal:
        spec(**given)
    assert "line" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(("given", "message"), [
    ({"lengths": "[256, 2048]"}, "entry 1 is 2048 tokens, but the model has 1024 positions"),
    ({"placement": ", sequence_chunks: [2]"}, "which placement.sequence_chunks is not; leave one of them out"),
    ({"placement": ", memory: decide"}, "which placement.memory is not; give memory: layers"),
])
def test_what_lengths_do_not_go_with_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        length_problems(spec(**given))


def test_longer_sequences_need_positions() -> None:
    assert length_problems(spec("[2048, 256]", model=", max_positions: 2048"))


@pytest.mark.parametrize(("text", "message"), [
    ("name: x\nmodel: {layers: [{name: a, forward: 1 ms, backward: 1 ms, weights: 1 MB, activation_memory: 1 MB}]}\n"
     "cluster: {gpus: 1, memory: 24 GiB}\ntraining: {lengths: [1, 2]}\n", "given by its layers or operators"),
    ("name: x\nmodel: {family: uno, features: [9, 9]}\ncluster: {gpus: 1, memory: 24 GiB, device: v100}\n"
     "training: {lengths: [1, 2]}\n", "not uno; leave it out"),
    ("name: x\nmodel: {family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}\n"
     "cluster: {gpus: 4, memory: 24 GiB, links: nvlink-v100}\ntraining: {lengths: [1, 2]}\n",
     "measured at one; give costs: v100"),
])
def test_models_without_lengths_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        length_problems(parse_spec(text))

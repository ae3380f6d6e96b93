"""A cut that a spec gives, and the most stages that a GPU may run."""

from __future__ import annotations

import pytest

from weft.models.candidates.given_cut import cut_of, cut_shapes, most_chunks
from weft.models.spec.spec import Spec, SpecError, parse_spec

NAMES = ("embedding", *(f"block.{i}" for i in range(6)), "head")
SPEC = """\
name: small
model:
  layers:
    - {{name: embedding, forward: 1 ms, backward: 1 ms}}
    - {{name: block, repeat: 6, forward: 1 ms, backward: 2 ms}}
    - {{name: head, forward: 2 ms, backward: 2 ms}}
cluster: {{gpus: {gpus}, memory: 1 GiB, reserve: 0, bandwidth: 1 MB/s}}
training: {{micro_batches: 8}}
placement: {{{placement}}}
"""


def given(placement: str, gpus: int = 2) -> Spec:
    return parse_spec(SPEC.format(gpus=gpus, placement=placement), "a.yaml")


@pytest.mark.parametrize(("placement", "gpus", "borders", "shapes"), [
    ("cut: [8]", 1, (0, 8), ("chain",)),
    ("cut: [3, 5]", 2, (0, 3, 8), ("chain",)),
    ("cut: [embedding, block.2]", 2, (0, 3, 8), ("chain",)),
    ("cut: [embedding, block.2, block.3, head]", 2, (0, 3, 4, 7, 8), ("v", "loop")),
    ("cut: [2, 2, 2, 2], shapes: [chain, loop]", 2, (0, 2, 4, 6, 8), ("loop",)),
    ("cut: [1, 1, 1, 1, 1, 3]", 2, (0, 1, 2, 3, 4, 5, 8), ("loop", "wave")),
    ("cut: [1, 1, 1, 1, 1, 1, 1, 1], chunks: 4", 2, tuple(range(9)), ("loop", "wave")),
])
def test_a_cut_is_read_by_counts_and_by_names(placement: str, gpus: int, borders: tuple[int, ...],
                                              shapes: tuple[str, ...]) -> None:
    spec = given(placement, gpus)
    assert cut_of(spec, NAMES) == borders
    assert cut_shapes(spec) == shapes


def test_without_a_cut_there_is_none() -> None:
    assert cut_of(given("chunks: 2"), NAMES) is None


@pytest.mark.parametrize(("placement", "words"), [
    ("cut: [embedding, blok.2]", "placement.cut names 'blok.2', which is no layer; did you mean 'block.2'?"),
    ("cut: [embedding, xyz]", "which is no layer; the layers are embedding, block.0, block.1, block.2, ..., head"),
    ("cut: [block.0, block.2]", "placement.cut begins at 'block.0', which leaves 'embedding' out"),
    ("cut: [embedding, block.3, block.1, head]", "names 'block.1' after 'block.3', which comes later in the model"),
    ("cut: [embedding, embedding]", "names 'embedding' twice in a row"),
    ("cut: [3, 4]", "placement.cut has 7 layers in its stages, 1 fewer than the 8 of the model (embedding to head)"),
    ("cut: [3, 7]", "placement.cut has 10 layers in its stages, 2 more than the 8"),
    ("cut: [3, 3, 2]", "placement.cut has 3 stages, no multiple of cluster.gpus: 2; give 2 (chain), 4 (v, loop)"),
    ("cut: [8]", "placement.cut has 1 stage, no multiple of cluster.gpus: 2"),
    ("cut: [2, 2, 2, 2], shapes: [chain]", "has 4 stages, 2 on each of 2 GPUs, which is v or loop, but "
     "placement.shapes is chain; allow v"),
    ("cut: [4, 4], shapes: [v, wave]", "which is chain, but placement.shapes is v, wave; allow chain"),
    ("cut: [1, 1, 1, 1, 1, 1, 1, 1]", "4 on each of 2 GPUs, but placement.chunks is 3 (its default); give chunks: 4"),
    ("cut: [2, 2, 2, 2], chunks: 1", "2 on each of 2 GPUs, but placement.chunks is 1; give chunks: 2"),
    (f"cut: [{', '.join(['1'] * 18)}], chunks: 8", "9 on each of 2 GPUs; at most 8 on each are supported"),
    (f"cut: [{', '.join(['1'] * 10)}], chunks: 8", "has 10 stages, but model has 8 layers"),
])
def test_a_cut_that_is_none_is_refused_in_a_sentence(placement: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        cut_of(given(placement), NAMES)
    assert str(caught.value).startswith("a.yaml: placement.cut ") and "\n" not in str(caught.value)
    assert words in str(caught.value)


def test_a_single_gpu_runs_one_stage() -> None:
    with pytest.raises(SpecError, match=r"has 2 stages, but a single GPU .* runs the model as one"):
        cut_of(given("cut: [4, 4]", 1), NAMES)


def test_chunks_are_what_layers_allow_and_more_is_refused_where_it_is_stated() -> None:
    assert most_chunks(given("backward: [full]"), 8) == 3  # the default
    assert most_chunks(given("backward: [full]"), 5) == 2
    assert most_chunks(given("chunks: 4"), 8) == 4
    assert most_chunks(given("chunks: 8", gpus=1), 7) == 1
    with pytest.raises(SpecError, match=r"placement\.chunks is 5, on 2 GPUs 10 stages, but model has 8 layers; give "
                                        "chunks: 4"):
        most_chunks(given("chunks: 5"), 8)

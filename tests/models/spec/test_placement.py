"""The section ``parallel`` of a spec."""

from __future__ import annotations

import pytest

from weft.models.spec.placement import Parallel
from weft.models.spec.spec import SpecError, parse_spec

SPEC = """\
model: {{family: gpt, layers: 8, hidden: 1024, heads: 16, vocabulary: 32000, sequence: 2048}}
cluster: {{gpus: 8, device: {device}}}
training: {{global_batch_size: 64{training}}}
parallel: {parallel}
"""


def text(parallel: str, *, device: str = "a100", training: str = "") -> str:
    return SPEC.format(parallel=parallel, device=device, training=training)


def test_a_number_each_or_auto() -> None:
    given = parse_spec(text("{tensor: 4, pipeline: auto, zero: 2, recompute: full, micro_batch: 2}")).parallel
    assert given == Parallel(tensor=4, zero=2, recompute="full", micro_batch=2)
    assert given is not None and given.pipeline is None
    assert parse_spec(text("auto")).parallel == Parallel()


@pytest.mark.parametrize(("parallel", "said"), [
    ("{tensor: 0}", "parallel.tensor is 0, it must be a whole number from 1"),
    ("{zero: 4}", "parallel.zero is 4, it must be a whole number from 0 to 3, or auto"),
    ("{recompute: some}", "it must be none, selective, light, full or auto"),
    ("{tensors: 4}", "parallel: unknown key 'tensors'"),
    ("8", "parallel: must be auto, or a mapping"),
])
def test_a_mistake_is_one_sentence_with_its_line(parallel: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text(parallel))
    assert "line 4" in str(caught.value)
    assert said in str(caught.value)


def test_what_a_grid_is_not_for() -> None:
    with pytest.raises(SpecError, match=r"training\.recompute is not for a uniform grid; give parallel\.recompute"):
        parse_spec(text("auto", training=", recompute: true"))
    with pytest.raises(SpecError, match="GPUs of one kind"):
        parse_spec(text("auto", device="[a100, a100, a100, a100, h100, h100, h100, h100]"))
    with pytest.raises(SpecError, match="at most 1024 are placed one by one"):
        parse_spec(text("auto").replace("gpus: 8", "gpus: 2048").replace("parallel: auto\n", ""))

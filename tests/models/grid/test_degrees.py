"""What degrees go together, and the sentences for those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.models import DEVICES, SpecError
from weft.models.grid.degrees import Degrees, require_degrees, require_precision
from weft.models.spec.families import GptModel, MoeModel

LLAMA = GptModel(family="gpt", layers=80, hidden=8192, heads=64, kv_heads=8, vocabulary=128256, sequence=8192)
MOE = MoeModel(family="moe", layers=48, hidden=2048, heads=32, vocabulary=151936, sequence=4096, experts=128, active=8)
GOOD = Degrees(tensor=4, pipeline=8, virtual=5, data=2)


def test_the_published_degrees_go_together() -> None:
    require_degrees(GOOD, LLAMA, 64, 128, "spec")
    require_degrees(Degrees(pipeline=2, data=8, expert=8), MOE, 16, 512, "spec")
    assert (GOOD.gpus, GOOD.stages, GOOD.of_stage, GOOD.micro_batches(128)) == (64, 40, 8, 64)
    assert GOOD.title == "TP4 PP8 VP5 DP2 micro-batch 1"


@pytest.mark.parametrize(("changes", "gpus", "batch", "said"), [
    ({"tensor": 16, "data": 1, "pipeline": 4}, 64, 128,
     "parallel.tensor is 16, which does not divide kv_heads (8); its divisors are 1, 2, 4, 8"),
    ({"pipeline": 7}, 64, 128, "which does not divide cluster.gpus (64); its divisors are 1, 2, 4, 8, 16, 32, 64"),
    ({"data": 4}, 64, 128, "data: 2 would be right"),
    ({"tensor": 8, "data": 1}, 48, 128, "8 (tensor) x 8 (pipeline) x 1 (context) are 64 GPUs, which do not divide"),
    ({"context": 3, "data": 2}, 192, 128, "cannot be in 12 equal parts (context x tensor)"),
    ({"virtual": 11}, 64, 128, "are 88 stages, but the model has 82 entries with embedding and head"),
    ({"pipeline": 1, "virtual": 2}, 8, 128, "parallel.pipeline is 1"),
    ({}, 64, 8, "fewer than parallel.pipeline (8); the least batch is 16"),
    ({}, 64, 127, "need a multiple of 2; make it 126 or 128"),
    ({"expert": 2}, 64, 128, "but the model has no experts"),
])
def test_what_does_not_go_together_is_said_with_what_would(changes: dict[str, Any], gpus: int, batch: int,
                                                           said: str) -> None:
    with pytest.raises(SpecError) as caught:
        require_degrees(replace(GOOD, **changes), LLAMA, gpus, batch, "a.yaml")
    assert str(caught.value).startswith("a.yaml: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(("degrees", "gpus", "said"), [
    (Degrees(data=256, expert=256), 256, "which is more than the model's 128 experts"),
    (Degrees(data=24, expert=24), 24, "does not divide the model's 128 experts"),
    (Degrees(data=8, expert=16, pipeline=2), 16, "what divides both is 1, 2, 4, 8"),
])
def test_experts_are_dealt_out_evenly(degrees: Degrees, gpus: int, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("(", r"\(")):
        require_degrees(degrees, MOE, gpus, 1024 * 24, "spec")


def test_eight_bits_need_a_device_that_has_them() -> None:
    require_precision("fp8", DEVICES["h100"], "spec")
    with pytest.raises(SpecError, match="v100 multiplies in no 8 bits; name one of h100, h800, h200, b200"):
        require_precision("fp8", DEVICES["v100"], "spec")

"""Arguments of ``weft.pipeline`` that are none are refused in one sentence each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from weft.app.pipeline.lib.arguments import EXCLUSIVE, arguments_of, require_compatible, require_plan, signature_of
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.split import require_split
from weft.runtime.captured.captured import CaptureError


@pytest.mark.parametrize(("args", "kwargs", "said"), [
    (torch.zeros(2), None, r"args is Tensor, it must be a tuple of the model's arguments: for one, give \(x,\)"),
    ({"x": 1}, None, "args is dict, it must be a tuple"), (3, None, "args is int"),
    ((), [("x", 1)], "kwargs is list, it must be a mapping of the model's arguments by name")])
def test_arguments_are_a_row_and_a_mapping(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        arguments_of(args, kwargs)


def test_looks_are_shapes_types_and_kinds() -> None:
    assert arguments_of([1], None) == ((1,), {}) and arguments_of((), {"x": 2}) == ((), {"x": 2})
    assert signature_of(((torch.zeros(2, 3),), {"a": 3})) == (("(2, 3) torch.float32",), {"a": "int"})


@pytest.mark.parametrize(("given", "said"), [
    ({"schedule": 3}, "schedule is int, it must be a schedule, its file, or the name of a published one"),
    ({"plan": [1]}, "plan is list, it must be a plan or its file"),
    ({"cuts": ["layers.1"]}, "cuts has 'layers.1', it must have numbers of operators: the names of submodules go into"),
    ({"cuts": 3}, "cuts is 3, it must be a list"), ({"cuts": [True]}, "cuts has True")])
def test_a_plan_is_a_plan(given: dict[str, Any], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        require_plan(PipelineOptions(micro_batches=2, **given))


@pytest.mark.parametrize(("split", "device", "said"), [
    ("layers.1", "cpu", "split is 'layers.1', it must be a list of names of submodules"),
    (3, "cpu", "split is 3, it must be a list of names of submodules"),
    (["0"], "meta", "split runs the model, but it is on the meta device")])
def test_a_split_has_names_and_a_model_with_numbers(split: Any, device: str, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        require_split(nn.Sequential(nn.Linear(1, 1, device=device)), PipelineOptions(micro_batches=2, split=split))


#: Of each option of the pairs that do not go together, something that can be given alone.
GIVEN: dict[str, Any] = {
    "split": ["0"], "cuts": [1], "compile": True, "memory_plan": "recompute", "co_shard": {"0": 2}, "backends": "auto",
    "autocast": torch.bfloat16, "plan": "a.json", "schedule": "gpipe", "fully_shard": True, "tensor_parallel": {},
    "memory": 1000}


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(sorted(GIVEN), 2)])
def test_options_go_together_but_for_the_pairs_of_the_table(one: str, other: str) -> None:
    options = PipelineOptions(micro_batches=2, **{name: GIVEN[name] for name in (one, other)})
    pair = next((pair for pair in EXCLUSIVE if set(pair) == {one, other}), None)
    if pair is None:
        require_compatible(options)
    else:
        with pytest.raises(CaptureError, match=f"^{pair[0]} does not go with {pair[1]}: "):
            require_compatible(options)


def test_the_table_has_each_pair_once_and_names_options() -> None:
    assert len({frozenset(pair) for pair in EXCLUSIVE}) == len(EXCLUSIVE)
    assert {name for pair in EXCLUSIVE for name in pair} == GIVEN.keys()

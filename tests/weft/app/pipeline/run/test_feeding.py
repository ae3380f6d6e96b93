"""A rank hands over what it reads, and may leave out the rest."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from tests.support.captured_models import made
from weft.app.pipeline.run.feeding import Feeding, target_spec, unequal_labels
from weft.app.train.setup import Setup
from weft.app.train.train import _batches
from weft.runtime.by_modules.cut import ModuleCut
from weft.runtime.by_modules.trace import trace
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.cut import BATCH
from weft.runtime.captured.division import Goal
from weft.runtime.captured.inputs.batch import BatchError, BatchLayout, micro_batch
from weft.runtime.captured.inputs.batch_dims import dims_of, leaves_of, positional_names

COUNT = 2


def feeding(name: str, split: list[str], rank: int) -> Feeding:
    case = made(name, 4)
    leaves = leaves_of(case.model, case.args, case.kwargs)
    dims = dims_of(0, leaves, tree_flatten((case.args, case.kwargs))[0])
    args, kwargs = micro_batch((case.args, case.kwargs), COUNT, dims)
    traced = trace(case.model, [(args, kwargs)], split)
    layout = BatchLayout([BATCH + leaf.name for leaf in leaves], leaves, tree_flatten((case.args, case.kwargs))[1],
                         tree_flatten((args, kwargs))[0], dims, COUNT, positional_names(case.model))
    goal = Goal(case.loss, None if case.loss is None else target_spec(case.target))
    return Feeding(ModuleCut(traced), range(len(split) + 1), rank, layout, goal, 0)


def test_a_rank_between_reads_nothing_and_the_ends_read_ids_and_target() -> None:
    first, inner, last = (feeding("gpt", ["layers.1", "layers.2"], rank) for rank in range(3))
    assert first.arguments == {"ids": (0,), "target": (2,)}
    assert first.needs("ids") and not last.needs("ids") and last.needs("target") and not inner.needs("target")
    case = made("gpt", 4)
    assert inner.micro_batches((), {}, None, True) == [{}, {}]
    assert [set(part) for part in first.micro_batches(case.args, {}, None, True)] == [{"batch.ids"}] * COUNT
    found = last.micro_batches((None,), {}, case.target, True)
    assert torch.equal(torch.cat([part["target.0"] for part in found]), case.target)
    with pytest.raises(BatchError, match="ids is not there, it must be a tensor, as this rank reads it"):
        first.micro_batches((), {}, case.target, True)
    with pytest.raises(BatchError, match="target is NoneType, but the pipeline was made for one tensor"):
        last.micro_batches((), {}, None, True)
    with pytest.raises(BatchError, match="a batch of 3 does not divide into 2"):
        last.micro_batches((), {}, case.target[:3], True)
    with pytest.raises(BatchError, match="target has 2 entries along dimension 0, but the batch has 4"):
        last.micro_batches(case.args, {}, case.target[:2], True)
    with pytest.raises(BatchError, match="the pipeline has no argument 'idz': it has ids, target"):
        first.needs("idz")


def test_a_target_nested_in_another_way_is_refused_in_one_line() -> None:
    case, last = made("gpt", 4), feeding("gpt", ["layers.1"], 1)
    last.goal = Goal(case.loss, target_spec({"a": case.target, "b": case.target}))
    with pytest.raises(BatchError, match="target is dict, but the pipeline was made for what is nested as") as found:
        last.micro_batches(case.args, {}, {"a": case.target}, True)
    assert "\n" not in str(found.value)


def test_labels_are_read_where_the_loss_is() -> None:
    case = made("masked", 4)
    first, last = (feeding("masked", ["out"], rank) for rank in range(2))
    assert first.arguments == {"x": (0,), "keep": (0, 1), "labels": (1,)}
    found = last.micro_batches((), {"labels": case.kwargs["labels"], "keep": case.args[1]}, None, False)
    assert [set(part) for part in found] == [{"batch.labels", "batch.keep"}] * COUNT
    with pytest.raises(BatchError, match="the batch: labels is not there"):
        last.micro_batches(case.args, {}, None, False)


def rank(*names: str) -> Any:
    """What training asks a rank's pipeline of its data: whether it reads any, and what of it."""
    return SimpleNamespace(takes_data=bool(names), needs=names.__contains__)


def test_weft_train_asks_a_rank_for_what_it_reads_only() -> None:
    asked: list[bool] = []

    def data(needs: Any) -> Any:
        asked.append(needs("x"))
        return [(torch.ones(2) if needs("x") else None, None)]

    setup = Setup(made("gpt", 2).model, data=data)
    assert next(_batches(setup, rank())) == ((), {}, None) and not asked
    args, kwargs, target = list(itertools.islice(_batches(setup, rank("x")), 2))[1]
    assert torch.equal(args[0], torch.ones(2)) and (kwargs, target) == ({}, None) and asked == [True, True]
    assert next(_batches(setup, rank("target"))) == ((None,), {}, None)


def test_weft_train_says_that_an_iterator_of_data_is_at_its_end() -> None:
    batch = torch.ones(2), torch.ones(2)
    given = _batches(Setup(torch.nn.Linear(1, 1), data=iter([batch] * 2)), rank("target"))
    assert len(list(itertools.islice(given, 2))) == 2
    with pytest.raises(CaptureError, match="data of setup gives no batch after 2: give what can be gone through again"):
        next(given)
    assert len(list(itertools.islice(_batches(Setup(torch.nn.Linear(1, 1), data=[batch] * 2), rank("target")), 5))) == 5


def test_labels_in_unequal_numbers_are_heard_of() -> None:
    labels = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    parts = [{"target.0": part, "scores": torch.ones(2)} for part in labels.chunk(2)]
    assert unequal_labels(parts) is None and unequal_labels([]) is None
    labels[0, 0] = labels[3, 1] = -100  # as many each
    assert unequal_labels(parts) is None
    labels[0, 1] = -100
    said = unequal_labels(parts)
    assert said is not None and "2 to 3 labels other than -100" in said and "(sum, count)" in said

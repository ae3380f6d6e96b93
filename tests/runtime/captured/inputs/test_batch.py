"""Batches are cut into micro-batches by name, and what does not fit is one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from weft.runtime.captured.inputs.batch import BatchError, BatchLayout, micro_batch
from weft.runtime.captured.inputs.batch_dims import Leaf

LEAVES = (Leaf("x", 0, "x"), Leaf("more", 1, "more['keep']"), Leaf("scale", None, "scale"),
          Leaf("shared", None, "shared"))
NAMES = ["batch.x", "batch.keep", "batch.scale", "batch.shared"]
DIMS = (0, 0, None, None)


def layout() -> BatchLayout:
    example = ((torch.zeros(4, 3), {"keep": torch.ones(4)}), {"scale": 2, "shared": torch.zeros(1, 3)})
    looks = [torch.zeros(2, 3), torch.ones(2), 2, torch.zeros(1, 3)]
    return BatchLayout(NAMES, LEAVES, tree_flatten(example)[1], looks, DIMS, 2, ["x", "more", "scale"])


def batch(size: int = 4, scale: int = 2) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.arange(3.0 * size).reshape(size, 3)
    return (x, {"keep": torch.ones(size)}), {"scale": scale, "shared": torch.ones(1, 3)}


def test_tensors_are_cut_and_what_is_no_batch_is_the_same_for_all() -> None:
    (first, second), size = layout().micro_batches(*batch())
    assert size == 4
    assert first["batch.x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second["batch.x"].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert first["batch.shared"] is second["batch.shared"] and "batch.scale" not in first
    assert micro_batch(batch(), 4, DIMS, 3)[0][0].tolist() == [[9, 10, 11]]


def test_arguments_may_be_given_by_name_in_any_order_and_those_that_are_not_read_left_out() -> None:
    (x, more), named = batch()
    by_name, _ = layout().micro_batches((), {"shared": named["shared"], "more": more, "scale": 2, "x": x})
    by_place, _ = layout().micro_batches((x, more, 2), {"shared": named["shared"]})
    for found in (by_name, by_place):
        assert all(torch.equal(part["batch.x"], wanted) for part, wanted in zip(found, x.chunk(2), strict=True))
    assert layout().micro_batches((), {}, needed=()) == ([{}, {}], None)
    only, size = layout().micro_batches((None, more), {}, needed={"batch.keep"})
    assert set(only[0]) == {"batch.keep"} and size == 4


@pytest.mark.parametrize(("args", "kwargs", "said"), [
    (*batch(6), r"x has the shape \(6, 3\).*micro-batches of \(3, 3\).*made for \(2, 3\)"),
    (*batch(2), r"x has the shape \(2, 3\).*but the pipeline was made for"),
    (*batch(5), "a batch of 5 does not divide into 2 micro-batches: give a batch whose size is a multiple of 2"),
    (*batch(scale=3), "scale is 3, but the model was captured with 2, which is a constant"),
    ((torch.zeros(4, 3), torch.zeros(4)), {}, "the batch: more is .* but the example was"),
    ((torch.zeros(4, 3),), {"label": torch.zeros(4)}, "has an argument 'label', but the example had x, more, scale"),
    ((torch.zeros(4, 3),), {"x": torch.zeros(4, 3)}, "x is given by position and by name: give it once"),
    ((None, None), {}, "the batch: x is not there, it must be a tensor, as this rank reads it"),
    ((torch.zeros(4, 3).numpy(), None), {}, r"x is a numpy ndarray \(torch.as_tensor makes one\), it must be a tensor"),
    (([1.0, 2.0], None), {}, "the batch: x is .* but the example was"),
    ((torch.zeros(4, 3), {"keep": torch.ones(2)}), {}, "x has 4 entries and more.* has 2 along dimension 0: give a"),
    ((torch.zeros(4, 3).double(), None), {}, "torch.float64, which gives .* made for .* and torch.float32"),
    ((1, 2, 3, 4), {}, "the batch has 4 arguments by position, but the example had 2")])
def test_what_does_not_fit_is_one_sentence(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(BatchError, match=said) as found:
        layout().micro_batches(args, kwargs, needed={"batch.x", "batch.keep", "batch.shared"})
    assert "\n" not in str(found.value)


def test_an_example_that_does_not_divide_is_refused() -> None:
    with pytest.raises(BatchError, match=r"^a batch of 4 does not divide into 3 micro-batches: give a batch"):
        micro_batch(batch(), 3, DIMS)
    with pytest.raises(BatchError, match="a batch of 0 does not divide into 2"):
        micro_batch(batch(0), 2, DIMS)

"""Batches are cut into micro-batches by name, and what does not fit is one sentence."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_flatten

from weft.runtime.captured.batch import BatchError, Layout, micro_batch


def layout() -> Layout:
    example = ((torch.zeros(4, 3), {"keep": torch.ones(4)}), {"scale": 2, "shared": torch.zeros(1, 3)})
    looks = [torch.zeros(2, 3), torch.ones(2), 2, torch.zeros(1, 3)]
    return Layout("the batch", ["x", "keep", "scale", "shared"], tree_flatten(example)[1], looks, 2)


def batch(size: int = 4, scale: int = 2) -> tuple[object, object]:
    x = torch.arange(3.0 * size).reshape(size, 3)
    return (x, {"keep": torch.ones(size)}), {"scale": scale, "shared": torch.ones(1, 3)}


def test_tensors_are_cut_and_what_is_no_batch_is_the_same_for_all() -> None:
    first, second = layout().micro_batches(batch())
    assert first["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and second["x"].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert first["shared"] is second["shared"] and "scale" not in first
    assert micro_batch(batch(), 4)[0][0].tolist() == [[0, 1, 2]]


def test_what_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(BatchError, match=r"^a batch of 4 does not divide into 3 micro-batches: give a batch"):
        micro_batch(batch(), 3)
    with pytest.raises(BatchError, match=r"x has the shape \(6, 3\).*micro-batches of \(3, 3\).*made for \(2, 3\)"):
        layout().micro_batches(batch(6))
    with pytest.raises(BatchError, match="scale is 3, but the model was captured with 2, which is a constant"):
        layout().micro_batches(batch(scale=3))
    with pytest.raises(BatchError, match=r"the batch is .* but the example was"):
        layout().micro_batches((torch.zeros(4, 3), {}))

"""Along which dimension arguments are cut: one for all, some by name, none for what is the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.inputs.batch_dims import Leaf, dims_of, target_dim

IDS, HIDDEN, MASK = torch.zeros(4, 6), torch.zeros(6, 4, 2), torch.ones(4, 4)
LEAVES = (Leaf("ids", 0, "ids"), Leaf("hidden", 1, "hidden[0]"), Leaf("hidden", 1, "hidden[1]"),
          Leaf("mask", None, "mask"), Leaf("scale", None, "scale"))


def found(asked: Any, mask: Any = MASK, hidden: Any = (HIDDEN, HIDDEN)) -> tuple[int | None, ...]:
    return dims_of(asked, LEAVES, tree_leaves((IDS, hidden, mask, 2)))


@pytest.mark.parametrize(("asked", "dims"), [
    ({"hidden": 1}, (0, 1, 1, 0, None)), ({1: 1, "mask": None}, (0, 1, 1, None, None)),
    ({"hidden": (1, None), "mask": 1}, (0, 1, None, 1, None)), ((0, 1), (0, 1, 1, 0, None)),
    ([0, [1, None]], (0, 1, None, 0, None)), ({"ids": None, "hidden": None, "mask": 0}, (None, None, None, 0, None))])
def test_what_is_said_of_an_argument_holds(asked: Any, dims: tuple[int | None, ...]) -> None:
    assert found(asked) == dims


def test_one_number_is_for_all_that_have_so_many_entries() -> None:
    assert found(0, torch.ones(1, 6), (torch.zeros(4), torch.zeros(()))) == (0, 0, None, None, None)
    assert dims_of(1, LEAVES[:1], [IDS]) == (1,) and dims_of(0, LEAVES[:1], [torch.zeros(1, 3)]) == (0,)


def test_what_only_happens_to_be_as_long_can_be_the_same_for_all() -> None:
    assert found({"hidden": 1})[3] == 0 and found({"hidden": 1, "mask": None})[3] is None


@pytest.mark.parametrize(("asked", "said"), [
    (0, r"ids has 4 entries along dimension 0 and hidden\[0\] has 6 along dimension 0: give a batch of one size, or "
        r"say which is the same for all micro-batches, with batch_dims=\{'hidden': None\}"),
    ({"hiden": 1}, "batch_dims names 'hiden', which is no argument of the example: it has ids, hidden, mask, scale"),
    ({"hidden": 7}, r"batch_dims says 7 for hidden\[0\], which has 3 dimensions: give one that it has, or None"),
    ({"hidden": (1, 1, 1)}, "batch_dims for 'hidden' has 3 entries, but the argument has 2 parts"),
    ({"ids": -1}, "batch_dims is -1 for ids, it must be the number of a dimension, or None"),
    ({"ids": "0"}, "batch_dims is '0' for ids, it must be the number"),
    ((0,), "batch_dims has 1 entries, but 2 arguments"),
    ("ids", "batch_dims is 'ids', it must be the number of a dimension, or a mapping"),
    (True, "batch_dims is True"), (-1, "batch_dims is -1, it must"), (None, "batch_dims is None")])
def test_what_is_no_dimension_is_refused(asked: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        found(asked)


def test_offsets_of_bags_are_known_and_the_way_out_is_said() -> None:
    leaves = (Leaf("values", 0, "values"), Leaf("offsets", 1, "offsets"))
    values, offsets = torch.arange(12), torch.tensor([0, 3, 3, 9])
    for said, given in ((leaves, (values, offsets)), (leaves[::-1], (offsets, values))):
        with pytest.raises(CaptureError, match=r"offsets has 4 entries and looks like the offsets of bags in values, .*"
                                               "padded to one length with its padding_idx, and no offsets"):
            dims_of(0, said, given)
    for other in (torch.tensor([1, 3, 3, 9]), torch.tensor([0, 5, 3, 9]), torch.tensor([0, 3, 9, 13])):
        with pytest.raises(CaptureError, match="give a batch of one size, or say"):
            dims_of(0, leaves, (values, other))


def test_targets_have_a_dimension_too() -> None:
    assert target_dim(1) == 1 and target_dim({"target": None}) is None and target_dim({"ids": 1}) == 0
    with pytest.raises(CaptureError, match="batch_dims is 'x' for target"):
        target_dim({"target": "x"})

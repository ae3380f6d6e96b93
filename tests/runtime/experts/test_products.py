from __future__ import annotations

import pytest
import torch

from weft.runtime.experts.products import grouped_product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 0, 8], [8, 0, 0], [0, 0, 0]])
def test_each_row_meets_its_own_weights(dtype: torch.dtype, counts: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(sum(counts), 16, dtype=dtype, requires_grad=True)
    weights = [torch.randn(16, 12, dtype=dtype, requires_grad=True) for _ in counts]
    kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
    found = grouped_product(x, counts, weights)
    rows = [row @ weights[kind] for row, kind in zip(x, kinds, strict=True)]
    wanted = torch.stack(rows) if rows else x.new_empty(0, 12)
    torch.testing.assert_close(found, wanted)
    assert found.requires_grad
    if kinds:
        ours = torch.autograd.grad(found.sin().sum(), [x, *weights], allow_unused=True)
        theirs = torch.autograd.grad(wanted.sin().sum(), [x, *weights], allow_unused=True)
        for mine, other, like in zip(ours, theirs, [x, *weights], strict=True):
            torch.testing.assert_close(torch.zeros_like(like) if mine is None else mine,
                                       torch.zeros_like(like) if other is None else other)

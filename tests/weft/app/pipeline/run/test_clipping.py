"""Torch's clipping of a pipeline's gradients asks for the norm of all ranks, and of others does what it did."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from weft.app.pipeline.run.clipping import clipped_over_ranks, total_norm


def with_gradients(width: int) -> nn.Linear:
    model = nn.Linear(width, 1)
    model(torch.ones(width)).sum().backward()
    return model


def test_the_norm_is_asked_for_until_it_is_not() -> None:
    model, other, told = with_gradients(3), with_gradients(8), []  # type: nn.Linear, nn.Linear, list[int]

    def norm(clipped: Collection[int], kind: float) -> float:
        told.append(len(clipped))
        return 10.0

    remove = clipped_over_ranks(model.parameters(), norm)
    try:
        assert float(clip_grad_norm_(other.parameters(), 1e9)) == pytest.approx(3.0) and not told
        assert float(clip_grad_norm_(model.parameters(), 5.0)) == 10.0 and told == [2]
        assert model.bias.grad is not None and float(model.bias.grad) == pytest.approx(0.5)
        assert float(clip_grad_norm_([model.bias], 5.0)) == 10.0 and told == [2, 1]
        assert float(clip_grad_norm_([nn.Parameter(torch.ones(2))], 5.0)) == 10.0 and told == [2, 1, 0]  # others may
        with pytest.raises(ValueError, match="gradients of the pipeline and others: clip each by itself"):
            clip_grad_norm_([*model.parameters(), *other.parameters()], 1.0)
    finally:
        remove()
    assert float(clip_grad_norm_(model.parameters(), 1e9)) == pytest.approx((3 * 0.5**2 + 0.25**2) ** 0.5)


@pytest.mark.parametrize("kind", [1.0, 2.0, 3.5, float("inf")])
def test_norms_of_ranks_are_one_norm(kind: float) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(5) for _ in range(4)]
    parts: list[tuple[float, float]] = []
    for own in (gradients[:1], gradients[1:], []):
        total_norm(own, kind, lambda part: [parts.append(part) or part])  # type: ignore[func-returns-value]
    wanted = torch.linalg.vector_norm(torch.cat(gradients).double(), kind)
    assert total_norm(gradients[:1], kind, lambda part: parts) == pytest.approx(float(wanted))
    with pytest.raises(ValueError, match="different kinds of norms"):
        total_norm(gradients, kind, lambda part: [part, (0.5, 1.0)])
    with pytest.raises(ValueError, match="norm_type is 0"):
        total_norm(gradients, 0.0, lambda part: [part])

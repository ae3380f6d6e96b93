"""A stage of layers of several kinds, and its gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, BATCH = 6, 3


class Mix(nn.Module):
    """All a stage may have: a linear layer used twice, one without bias, one frozen, a norm, a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.thin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.frozen, self.norm = nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.twice(self.norm(x)))
        y = self.frozen(torch.tanh(self.thin(y))) * self.scale
        return x + torch.tanh(self.twice(y))


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def largest_difference(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> float:
    assert one.keys() == other.keys()
    worst = 0.0
    for name, left in one.items():
        right = other[name]
        assert (left is None) == (right is None), name
        if left is not None and right is not None:
            worst = max(worst, float((left - right).abs().max()))
    return worst

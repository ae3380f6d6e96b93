"""A model that is tried, and afterwards as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["untouched"]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever runs inside, buffers, gradients and random state are afterwards as they were."""
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    for parameter in gradients:
        parameter.grad = None
    with torch.random.fork_rng():
        yield
    with torch.no_grad():
        for buffer, value in buffers.items():
            buffer.copy_(value)
    for parameter, gradient in gradients.items():
        parameter.grad = gradient

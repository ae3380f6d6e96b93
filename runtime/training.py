"""What a training script hands the executor for one rank: its stages, its data, its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Boundary", "Training"]


class Boundary(NamedTuple):
    """Shape and type of the tensor that one stage hands to the next for one micro-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass
class Training:
    """One rank's part of a training or inference run.

    ``stages``: this rank's modules by stage number; each takes one tensor and gives one. ``boundaries``: per stage but
    the last, what it hands on. ``inputs(step, micro_batch)`` is asked on the rank of stage 0, ``targets(step,
    micro_batch)`` on that of the last stage, where ``loss(output, target)`` gives the *mean* loss of a micro-batch. The
    executor divides it by the number of micro-batches, so that gradients are those of the whole batch, provided all
    micro-batches are of one size. ``optimizer`` steps after each of ``steps`` batches, gradients are cleared before
    each; ``after_backward(step)`` is called in between. In inference, ``collect(step, micro_batch, output)`` gets what
    the last stage gives. Modules and data are moved to the session's device.
    """

    stages: Mapping[int, nn.Module]
    boundaries: Sequence[Boundary]
    inputs: Callable[[int, int], Tensor]
    targets: Callable[[int, int], Tensor] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    steps: int = 1
    after_backward: Callable[[int], None] | None = None
    collect: Callable[[int, int, Tensor], None] | None = None

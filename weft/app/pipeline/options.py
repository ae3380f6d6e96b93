"""What :func:`weft.pipeline` was asked for, beside the model and its example."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from weft.runtime.plan.plan import Plan
    from weft.solver.schedule import Schedule

__all__ = ["PipelineOptions"]


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments of :func:`weft.pipeline`, each as it is described there."""

    micro_batches: int

    # what is trained on
    loss: Callable[..., Tensor] | None = None
    target: Any = None
    batch_dims: int = 0
    clip_norm: float | None = None
    allow_unread: bool = False

    # what is planned
    schedule: Schedule | str | os.PathLike[str] | None = None
    plan: Plan | str | os.PathLike[str] | None = None
    cuts: Sequence[int] | None = None
    split: Sequence[str] | None = None
    memory: int | None = None
    time_limit: float = 10.0

    # how it is run
    timeout: float = 60.0
    transport: str | None = None

    def settings(self) -> tuple[object, ...]:
        """What must be the same on all ranks."""
        return self.micro_batches, self.batch_dims, self.clip_norm, None if self.split is None else tuple(self.split)

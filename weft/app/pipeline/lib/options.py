"""What :func:`weft.pipeline` was asked for, beside the model and its example."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from weft.app.pipeline.lib.running import Compile
    from weft.runtime.captured.inputs.batch_dims import BatchDims
    from weft.runtime.captured.materials import Fill
    from weft.runtime.checkpoint.weights import State
    from weft.runtime.interface.training import Loss
    from weft.runtime.plan.plan import Plan
    from weft.solver.schedule import Schedule

__all__ = ["PipelineOptions"]


@dataclass(frozen=True)
class PipelineOptions:
    """The arguments of :func:`weft.pipeline`, each as it is described there."""

    micro_batches: int

    # what is trained on
    loss: Callable[..., Loss] | None = None
    target: Any = None
    batch_dims: BatchDims = 0
    clip_norm: float | None = None
    allow_unread: bool = False

    # what is planned
    schedule: Schedule | str | os.PathLike[str] | None = None
    plan: Plan | str | os.PathLike[str] | None = None
    cuts: Sequence[int] | None = None
    split: Sequence[str] | None = None
    memory: int | None = None
    memory_plan: str | Mapping[str, str] = "auto"
    co_shard: Mapping[str, int] | None = None
    spec: str | os.PathLike[str] | Mapping[str, Any] | None = None
    time_limit: float = 10.0
    defer: str = "worth"

    # what its numbers are
    state: State | None = None
    materialise: Fill | None = None

    # how it is computed
    dtype: torch.dtype | None = None
    autocast: torch.dtype | None = None
    compile: Compile = False

    # how it is run
    timeout: float = 60.0
    transport: str | None = None
    seed: int | None = None

    @property
    def light(self) -> bool:
        """Whether all weight gradients wait that can, also light ones."""
        return self.defer == "all"

    def settings(self) -> tuple[object, ...]:
        """What must be the same on all ranks."""
        how = sorted(self.compile) if isinstance(self.compile, Mapping) else self.compile
        return (self.micro_batches, repr(self.batch_dims), self.clip_norm, self.defer, self.seed, self.dtype,
                self.autocast, how, self.split, _sorted(self.memory_plan), _sorted(self.co_shard))


def _sorted(value: object) -> object:
    return sorted(value.items()) if isinstance(value, Mapping) else value

"""The options of :func:`weft.pipeline`, beside the model and its example."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from weft.app.pipeline.lib.dividing import TensorPlan
    from weft.app.pipeline.lib.running import Compile
    from weft.runtime.captured.inputs.batch_dims import BatchDims
    from weft.runtime.captured.materials import Fill
    from weft.runtime.checkpoint.weights import State
    from weft.runtime.interface.training import Loss
    from weft.runtime.plan.plan import Plan
    from weft.solver.schedule import Schedule

#: Placements of stages on ranks, and kinds of backward to try, unless a spec selects others.
SHAPES: Final[tuple[Literal["chain", "v"], ...]] = ("chain",)
BACKWARDS: Final[tuple[Literal["full", "split"], ...]] = ("full", "split")


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The keyword arguments of :func:`weft.pipeline`, described there."""

    micro_batches: int

    # training
    loss: Callable[..., Loss] | None = None
    target: Any = None
    batch_dims: BatchDims = 0
    clip_norm: float | None = None
    allow_unread: bool = False

    # planning
    schedule: Schedule | str | os.PathLike[str] | None = None
    plan: Plan | str | os.PathLike[str] | None = None
    cuts: Sequence[int] | None = None
    split: Sequence[str] | None = None
    memory: int | None = None
    memory_plan: str | Mapping[str, str] = "auto"
    backends: str | Sequence[str] | None = None
    co_shard: Mapping[str, int] | None = None
    spec: str | os.PathLike[str] | Mapping[str, Any] | None = None
    time_limit: float = 10.0
    defer: str = "worth"

    # weights
    state: State | None = None
    materialise: Fill | None = None

    # computation
    dtype: torch.dtype | None = None
    autocast: torch.dtype | None = None
    compile: Compile = False

    # ranks
    mesh: DeviceMesh | None = None
    group: ProcessGroup | None = None
    data: int | None = None
    fully_shard: bool = False
    tensor_parallel: TensorPlan | None = None

    # execution
    timeout: float = 60.0
    cache: str | os.PathLike[str] | bool | None = True
    remeasure: bool = False
    transport: str | None = None
    seed: int | None = None

    @property
    def light(self) -> bool:
        """Whether all weight gradients that can be deferred are, including light ones."""
        return self.defer == "all"

    def settings(self) -> dict[str, str]:
        """The options that must be equal on all ranks, by argument, as texts to compare."""
        plain = {f"{name}=": _shown(getattr(self, name)) for name in (
            "micro_batches", "batch_dims", "clip_norm", "defer", "seed", "dtype", "autocast", "split", "memory_plan",
            "co_shard", "backends", "schedule", "plan", "cuts", "transport", "data", "fully_shard")}
        how = sorted(self.compile) if isinstance(self.compile, Mapping) else self.compile
        shares = self.tensor_parallel
        by_name = {name: type(style) for name, style in shares.items()} if isinstance(shares, Mapping) else type(shares)
        return {**plain, "compile=": _shown(how), "tensor_parallel=": _shown(by_name)}

    def planned(self) -> list[str]:
        """The options that a plan depends on, as texts to compare. Raises ``OSError`` for an unreadable spec."""
        spec = Path(self.spec).read_text(encoding="utf-8") if isinstance(self.spec, str | os.PathLike) else self.spec
        texts = [text for name, text in self.settings().items() if name not in ("clip_norm=", "seed=")]
        return [_shown(spec), _shown(self.memory), _shown(self.time_limit), *texts]


def _shown(value: object) -> str:
    """A text that is equal for equal values; for objects without a useful ``repr``, the type's name."""
    if isinstance(value, Mapping):
        return repr(sorted(value.items(), key=repr))
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    return type(value).__name__ if type(value).__repr__ is object.__repr__ or hasattr(value, "problem") else repr(value)

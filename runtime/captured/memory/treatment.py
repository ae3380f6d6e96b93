"""The transformation of a captured model's stages before training: memory decisions and co-shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule
from torch.utils._pytree import tree_unflatten

from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.inputs.batch import BatchError, micro_batch
from weft.runtime.captured.inputs.batch_dims import Dims, one_dim
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.memory.stage_forward import apply_decisions
from weft.runtime.captured.purity import Purity


@dataclass(frozen=True)
class Treatment:
    """``decisions``. ``shares``: the model captured for a share of the micro-batch, by number of shares."""

    decisions: Decisions = field(default_factory=Decisions)
    shares: Mapping[int, Captured] = field(default_factory=dict)

    def of(self, places: Sequence[int], stages: Mapping[int, GraphModule],
           light: bool = False) -> dict[int, GraphModule]:
        """Make ``stages`` of the cut at ``places`` carry out the decisions, in place; ``light`` as in
        :class:`~weft.runtime.captured.purity.Purity`.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` for a module that cannot be computed in shares.
        """
        if not self.decisions:
            return dict(stages)
        parts = {count: CapturedCut(captured, places, Purity(captured, light)) for count,
                 captured in self.shares.items()}
        return {s: apply_decisions(module, self.decisions, {count: part.stages([s]).modules[s]
                                                            for count, part in parts.items()})
                for s, module in stages.items()}


def treated(captured: Captured, decisions: Decisions, leaves: Sequence[Any],
            dims: Dims | int = 0) -> Captured:
    """``captured`` with stages that carry out ``decisions``; arguments as in :func:`treatment_of`."""
    return replace(captured, treatment=treatment_of(captured, decisions, leaves, dims) if decisions else None)


def treatment_of(captured: Captured, decisions: Decisions, leaves: Sequence[Any],
                 dims: Dims | int = 0) -> Treatment:
    """The treatment for ``decisions``. ``leaves``: the inputs of one micro-batch. ``dims``: the batch dimension of
    each, or one number for :func:`~weft.runtime.captured.inputs.batch_dims.one_dim`.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for an unknown module, and for a micro-batch that does
    not divide into these shares.
    """
    paths = {path for path, _ in captured.model.named_modules()}
    shares: dict[int, Captured] = {}
    args, kwargs = tree_unflatten(list(leaves), captured.in_spec)
    for path, count in decisions.shards.items():
        if path not in paths:
            raise CaptureError(f"co_shard names {path!r}, which is no module of {type(captured.model).__name__}: use a "
                               "path of model.named_modules()")
        if type(count) is not int or count < 2:
            raise CaptureError(f"co_shard has {count!r:.60} for {path!r}, it must be a number of shares of at least 2")
        if count in shares:
            continue
        try:
            parts = micro_batch((args, kwargs), count, one_dim(leaves, dims) if isinstance(dims, int) else dims)
        except BatchError as error:
            raise CaptureError(f"co_shard has {count} for {path!r}, but a micro-batch does not divide so: "
                               f"{str(error).partition(':')[0].replace('micro-batches', 'shares')}") from None
        shares[count] = Captured.of(captured.model, *parts)
    return Treatment(decisions, shares)

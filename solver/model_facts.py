"""The contents of a problem's stages, if known: its search never looks at them, its plan checks the modules that are to
run against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The stage whose forward is block ``forward``: the names of its ``layers``; the number of its ``parameters``,
    shared ones once, and their bytes; the bytes it sends for a micro-batch; and the number of parameters whose weight
    gradient waited for the W pass when the stage was measured. ``micro_batch``: samples of its micro-batches; a stage
    with fewer than another runs several blocks in a micro-batch of the problem, and ``forward`` is the first of them.
    ``None``: not known."""

    forward: str
    layers: tuple[str, ...] = ()
    parameters: int | None = None
    parameter_bytes: int | None = None
    output_bytes: int | None = None
    deferred: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class TieFacts:
    """``parameter`` is one and the same in all ``stages``, given by the names of their forward blocks."""

    parameter: str
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``stages`` and ``ties`` of a model. ``tolerance``: the share by which amounts may differ from the modules that
    run, if the model is of a family and not the very one."""

    stages: tuple[StageFacts, ...]
    ties: tuple[TieFacts, ...] = ()
    tolerance: float = 0.0


def ties_between(stages: Mapping[str, Iterable[str]]) -> tuple[TieFacts, ...]:
    """The parameters shared by several of ``stages``: by forward block, the names of those that it may share."""
    holders: dict[str, list[str]] = {}
    for stage, names in stages.items():
        for name in dict.fromkeys(names):
            holders.setdefault(name, []).append(stage)
    return tuple(TieFacts(name, tuple(held)) for name, held in holders.items() if len(held) > 1)

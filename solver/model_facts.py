"""What a problem's stages are made of, where that is known: its search never looks at it, its plan holds the modules
that are to run against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The stage whose forward is block ``forward``: the names of its ``layers``; how many ``parameters`` it has, shared
    ones once, in how many bytes; the bytes it hands on for a micro-batch; and of how many parameters the weight
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
    """``parameter`` is one in all ``stages``, which go by the names of their forward blocks."""

    parameter: str
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``stages`` and ``ties`` of a model. ``tolerance``: the share by which amounts may differ from the modules that
    run, where the model is of a family and not the very one."""

    stages: tuple[StageFacts, ...]
    ties: tuple[TieFacts, ...] = ()
    tolerance: float = 0.0


def ties_between(stages: Mapping[str, Iterable[str]]) -> tuple[TieFacts, ...]:
    """The parameters that several of ``stages`` hold: by forward block, the names of those that it may share."""
    holders: dict[str, list[str]] = {}
    for stage, names in stages.items():
        for name in dict.fromkeys(names):
            holders.setdefault(name, []).append(stage)
    return tuple(TieFacts(name, tuple(held)) for name, held in holders.items() if len(held) > 1)

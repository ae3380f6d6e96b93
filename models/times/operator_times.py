"""How long operators take: what every source of times gives, and where each number comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from weft.models.graph.operators import OperatorGraph


class Origin(StrEnum):
    """Where a time comes from, most trusted first."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of one operator for one micro-batch; 0 where there is nothing to compute.

    ``origin`` is that of the forward and of the whole backward. How a measured backward divides into its two gradients
    is always modelled.
    """

    forward: float
    input_grad: float
    weight_grad: float
    origin: Origin


class OperatorTimes(Protocol):
    """A source of times."""

    def times(self, graph: OperatorGraph) -> dict[str, OperatorTime]:
        """The time of every operator of ``graph``, by name."""

    def notes(self, graph: OperatorGraph) -> list[str]:
        """What a reader of these times should know, one sentence each."""

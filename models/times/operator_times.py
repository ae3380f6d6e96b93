"""Times of operators: the interface of every source of times, and the origin of each number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from weft.models.graph.operators import OperatorGraph


class Origin(StrEnum):
    """The origin of a time, most trusted first."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of one operator for one micro-batch; 0 if there is nothing to compute.

    ``origin`` is that of the forward and of the whole backward. The division of a measured backward into its two
    gradients is always modelled.
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
        """Remarks on these times, one sentence each."""

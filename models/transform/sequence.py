"""An order of all parts that a search has found, as a rule of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from weft.models.transform.planned import Part, Planned

__all__ = ["InSequence", "in_sequence"]


@dataclass(frozen=True)
class InSequence:
    """Each device runs its parts in the order in which they stand in ``parts``; where parts of several devices may run
    in any order, they are listed so as well (:func:`weft.models.transform.ordering.run_order`)."""

    parts: tuple[Part, ...]

    def pairs(self, planned: Planned) -> Iterable[tuple[Part, Part]]:
        """Neighbours of each device."""
        rows: dict[int, list[Part]] = {}
        for part in self.parts:
            rows.setdefault(planned.device(part), []).append(part)
        for row in rows.values():
            yield from pairwise(row)


def in_sequence(planned: Planned) -> tuple[Part, ...]:
    """The last sequence that a plan was given; none without one."""
    return next((order.parts for order in reversed(planned.orders) if isinstance(order, InSequence)), ())

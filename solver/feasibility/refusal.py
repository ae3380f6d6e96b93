"""What is raised where nothing fits, or nothing was found; why is found out in
:mod:`weft.solver.feasibility.infeasible`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.solver.feasibility.memory_conflict import Shortage

__all__ = ["Infeasible", "NoneFound"]


class Infeasible(ValueError):
    """No schedule fits the devices' memory; the message says where, how much is missing and what would work.

    ``shortages`` says the same device by device, where that is known. ``most_micro_batches`` is how many fit
    where each leaves memory behind, None where their number is not what matters; ``most_exact``: one more does not.
    """

    def __init__(self, message: str, shortages: tuple[Shortage, ...] = (),
                 most_micro_batches: int | None = None, *, most_exact: bool = True) -> None:
        super().__init__(message)
        self.shortages = shortages
        self.most_micro_batches = most_micro_batches
        self.most_exact = most_exact


class NoneFound(Infeasible):
    """No schedule or placement was found within the limit, and it is not proven that there is none."""

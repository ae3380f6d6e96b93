"""The mean over what a batch counts, where losses are sums and counts (:mod:`weft.runtime.interface.counting`)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from weft.runtime.ranks.health import RunError
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.train.worker import Stages

__all__ = ["Averaging"]


class Averaging:
    """Sums the counts of what has been computed over all ranks of all replicas. All ranks call it together."""

    def __init__(self) -> None:
        self._counted: bool | None = None  # whether losses have counts: known to all after the first batch
        self._behind = 0.0  # what has been counted of the batches whose gradients are added up

    @property
    def is_counted(self) -> bool:
        """Whether losses were found to have counts."""
        return bool(self._counted)

    def begin(self) -> None:
        """Gradients have become zero."""
        self._behind = 0.0

    def end(self, worker: Stages, session: Session, step: int) -> float | None:
        """Batch ``step``, or a part of it, has been computed by ``worker``: by what to multiply the gradients of all
        batches since :meth:`begin`, so that they are those of the mean over what these have counted; ``None`` where
        losses are means.

        Raises :class:`~weft.runtime.ranks.health.RunError` for a batch that counts nothing.
        """
        mine = worker.is_counted
        if self._counted is None:
            self._counted = any(session.everywhere(mine, "asking whether losses have counts"))
        if mine is not None and mine != self._counted:
            raise SessionError(f"the loss of batch {step} is {_KIND[mine]}, but before it was {_KIND[self._counted]}: "
                               "give one kind for all micro-batches")
        if not self._counted:
            return None
        session.watch.doing("adding up what the batch counts", range(session.processes))
        total = torch.tensor([worker.count], dtype=torch.float64)
        dist.all_reduce(total, group=session.members)
        count = float(total)
        if not count > 0:
            raise RunError(f"batch {step} counts {count:g} in all its micro-batches: a mean needs at least one")
        worker.total = count
        self._behind += count
        return worker.batch_size * worker.batches / self._behind


_KIND = {True: "a sum and a count", False: "one number"}

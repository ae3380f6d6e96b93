"""How long steps take where collectives run beside computation, in chunks: two engines, each in order.

A pass of a stage is a row of steps on one GPU; some are collectives, which run on the network lane, the others compute.
Cut in n chunks along a dimension (the samples of a micro-batch, or the positions of its sequences), a step that can be
divided along it becomes n pieces, each with the part of the work and the whole of its launch; one that cannot waits for
all pieces of what it reads. Steps that compute between two collectives run piece by piece, all of them for the first
chunk, then for the next one; so the collective of one chunk runs beside the computation of the next. Both engines take
what comes in this order and wait for what it reads. The order is one that a GPU and its network can run, so the time
is no bound but that of a schedule; that a piece of a kernel is as fast as its share of the whole, and that collectives
take nothing from computation beside them, is assumed.

For one collective between two computations it is the chunked pipeline of
:mod:`weft.models.candidates.collective_chunks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Step", "duration", "serial"]


@dataclass(frozen=True)
class Step:
    """``waits``: indices of the earlier steps whose results it reads. ``seconds``: of all of it.

    ``launch``: seconds of it that every piece takes again. ``pieces``: of a collective, the seconds of one of so many
    pieces; a step with them runs on the network lane. ``divides``: units along the dimensions that it can be cut along.
    ``is_heavy``: whether it is a matrix product, which is worth no cut unless a collective follows at once.
    """

    name: str
    waits: tuple[int, ...]
    seconds: float
    launch: float = 0.0
    pieces: Mapping[int, float] = field(default_factory=dict)
    divides: Mapping[str, int] = field(default_factory=dict)
    is_heavy: bool = False

    @property
    def is_sent(self) -> bool:
        """Whether it is a collective."""
        return bool(self.pieces)

    def piece(self, count: int) -> float:
        """Seconds of one of ``count`` pieces."""
        if count == 1:
            return self.seconds
        return self.pieces[count] if self.is_sent else min(self.launch, self.seconds) + max(
            0.0, self.seconds - self.launch) / count


def serial(steps: Sequence[Step]) -> float:
    """Seconds of all ``steps``, one after another."""
    return sum(step.seconds for step in steps)


def duration(steps: Sequence[Step], count: int, dimension: str = "", *, wide: bool = True) -> float:
    """Seconds until all ``steps`` have ended, in ``count`` chunks along ``dimension``.

    ``wide``: every step that can be is cut; else matrix products only where a collective reads them.
    """
    sent_from = {source for step in steps if step.is_sent for source in step.waits}
    cut = [count if step.divides.get(dimension, 1) % count == 0 and count > 1
           and (wide or not step.is_heavy or number in sent_from) else 1 for number, step in enumerate(steps)]
    ends: list[list[float]] = [[] for _ in steps]
    engines = [0.0, 0.0]  # when the GPU and its lane are free

    def run(number: int, piece: int) -> None:
        step = steps[number]
        ready = max((ends[source][piece] if cut[source] == cut[number] else ends[source][-1]
                     for source in step.waits), default=0.0)
        start = max(ready, engines[step.is_sent])
        engines[step.is_sent] = start + step.piece(cut[number])
        ends[number].append(engines[step.is_sent])

    at = 0
    while at < len(steps):
        last = at + 1
        while (last < len(steps) and not steps[at].is_sent and not steps[last].is_sent and cut[last] == cut[at]):
            last += 1
        for piece in range(cut[at]):
            for number in range(at, last):
                run(number, piece)
        at = last
    return max(engines)

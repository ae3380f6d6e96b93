"""Blocks on all devices, taken out of time.

While such a block runs, nothing else does: all devices are at a boundary between two blocks. Cut this time out of a
schedule and close the gaps. The rest has every block's full duration, runs one block at a time on each device and keeps
every order, so dependencies and the memory at each moment stay as they were; the blocks themselves become moments of no
duration, still in order with all others. A period T becomes T - L, with L the duration of all of them. Hence

    least period >= L + least period of the contracted instance,

and if dependencies have no transfer time this is an equality: put the barriers back at their moments, where every
device is at a boundary, and each block is as long after its predecessors as before, or longer. (Not so if a barrier
waits for one of the micro-batch before: barriers at one moment run in the order of one micro-batch.) Transfer times
that pass in part during a barrier are shortened by the most that the barriers can take away, which keeps the bound.

The contracted instance is far easier: least distances and Little's law see that *every* activation stays resident
through the barriers within its life, of its own micro-batch and of others.

The bounds on the makespan cut barriers out of time in the same way
(:func:`weft.solver.relations.graph.without_barriers`), with one difference: there transfers no longer count afterwards,
as barriers of any number of micro-batches may run during one. In a steady state no more of them do than periods begin
meanwhile, so here the rest of a transfer still counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from weft.solver.late import nx
from weft.solver.period.periodic import Periodic, retime
from weft.solver.relations.graph import barriers, without_barriers
from weft.solver.ticks import TickProblem


@dataclass(frozen=True)
class Contraction:
    """``whole`` without the time of ``barriers``, the blocks on all devices: ``inner``.

    ``length`` is their duration in ticks. ``exact``: every schedule of ``inner`` expands to one of ``whole``.
    """

    name: ClassVar[str] = "barriers"

    whole: TickProblem
    inner: TickProblem
    barriers: tuple[int, ...]
    length: int
    exact: bool

    @classmethod
    def of(cls, instance: TickProblem) -> Contraction | None:
        """The contraction of ``instance``; ``None`` if no block or every block runs on all devices, and if lanes share
        a memory, which hangs on the times that would be cut out."""
        if instance.mixed_pools:
            return None
        common = barriers(instance)
        timeless = tuple(i for i in instance.problem.topological_order if i in common)
        if not timeless or len(timeless) == len(instance.durations):
            return None
        length = sum(instance.durations[i] for i in timeless)
        load = instance.heaviest_load

        def left(lag: int) -> int:
            """The rest of a transfer: ``ceil(lag / T)`` periods of barriers may pass in it, and T is at least the
            load."""
            return max(0, lag - length * -(-lag // load))

        inner = without_barriers(instance, timeless, left)
        idle = all(not instance.take[d].get(i) and not instance.change[d].get(i)
                   for d in range(len(instance.capacity)) if instance.limited(d) for i in timeless)
        ordered = not any(arc.distance and arc.source in timeless and arc.target in timeless for arc in instance.arcs)
        return cls(instance, inner, timeless, length, idle and ordered and not any(arc.lag for arc in instance.arcs))

    def contract(self, found: Periodic) -> Periodic:
        """A schedule of ``whole`` without the barriers."""
        origin = found.starts[self.barriers[0]]
        starts = [start - origin for start in found.starts]
        firsts = [(starts[i], self.whole.durations[i]) for i in self.barriers]
        # A barrier runs before time t once for each of its starts, whole periods * T + start, before t.
        contracted = [t - sum(length * -((first - t) // found.period) for first, length in firsts) for t in starts]
        return retime(self.inner, found.period - self.length, contracted, found.micro_batches_per_period)

    def expand(self, found: Periodic) -> Periodic:
        """A schedule of ``inner`` with the barriers put back at their moments."""
        period, rank = found.period, self._ranks(found)

        def passed(i: int) -> Fraction:
            """Ticks of barriers before block i; of barriers at one moment, the one of the least rank runs first."""
            ticks = Fraction(0)
            for other, first in rank.items():
                periods, rest = divmod(found.starts[i] - found.starts[other], period)
                before = rest > 0 or first < rank.get(i, len(rank))
                ticks += self.whole.durations[other] * (periods + before)
            return ticks

        starts = [found.starts[i] + passed(i) for i in self.whole.blocks]
        return retime(self.whole, period + self.length, starts, found.micro_batches_per_period)

    def _ranks(self, found: Periodic) -> dict[int, int]:
        """The barriers in an order that those at one moment can run in: each after those it waits for there, which may
        be of an earlier micro-batch; otherwise as in ``barriers``."""
        waits: nx.DiGraph[int] = nx.DiGraph()
        waits.add_nodes_from(self.barriers)
        waits.add_edges_from((arc.source, arc.target) for arc in self.inner.arcs
                             if arc.source in waits and arc.target in waits and found.starts[arc.source]
                             == found.starts[arc.target] + arc.distance * found.period)
        place = {i: number for number, i in enumerate(self.barriers)}
        ordered = nx.lexicographical_topological_sort(waits, key=place.__getitem__)
        return {i: number for number, i in enumerate(ordered)}

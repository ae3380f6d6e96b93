"""Layer after layer: from the state in which nothing has started to those in which all has.

States whose bound is not below a makespan that is known are dropped, so that what is left in the end is shorter than
it, or nothing is. Where the states become too many the search stops: every schedule that is shorter goes through one of
the last layer's states, so the least of their bounds is one for the problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.solver.bounds.states.dominance import Dominance
from weft.solver.bounds.states.layer import Layer, after_one_more, first_layer, outlook
from weft.solver.bounds.states.system import System
from weft.solver.control.clock import checkpoint

__all__ = ["Found", "search"]


@dataclass(frozen=True)
class Found:
    """``bound``: no schedule of the system is shorter, in ticks. ``sequence``: the blocks of one that has this
    makespan, in order of start, by their numbers in the instance; ``None`` where all was ruled out or left open.
    ``states`` and ``layers``: how many were looked at."""

    bound: int
    sequence: tuple[int, ...] | None
    states: int
    layers: int


def search(system: System, upper: int, *, most: int, widest: int) -> Found:
    """The least makespan below ``upper``, in ticks; ``bound`` is ``upper`` if it is proven that there is none.

    At most ``most`` states are looked at, and ``widest`` in one layer.
    """
    dominance = Dominance(system)
    layer, trace = first_layer(system), list[Layer]()
    states, bound = 0, 0
    for _ in range(system.operations + 1):
        checkpoint()
        ahead = outlook(system, layer)
        short = ahead.bound < upper
        if not short.any():
            return Found(upper, None, states, len(trace))
        layer, ahead = dominance.kept(layer.only(short), ahead.only(short))
        trace.append(layer)
        states += len(layer)
        bound = max(bound, int(ahead.bound.min()))
        if len(trace) > system.operations:
            break
        if states > most or len(layer) > widest:
            return Found(bound, None, states, len(trace))
        layer = after_one_more(system, layer, ahead, upper)
        if not len(layer):
            return Found(upper, None, states, len(trace))
    row, sequence = int(ahead.bound.argmin()), []
    for layer in reversed(trace[1:]):
        sequence.append(system.blocks[int(layer.added[row])])
        row = int(layer.parent[row])
    return Found(bound, tuple(reversed(sequence)), states, len(trace))

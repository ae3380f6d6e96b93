"""Layer after layer: from the state in which nothing has started to those in which everything has.

States whose bound is not below a known makespan are dropped, so that the rest in the end is shorter than it, or empty.
If the states become too many the search stops: every schedule that is shorter goes through one of the last layer's
states, so the least of their bounds is one for the problem.

A *beam* goes on with the best of these states alone: where memory is tight, also beside other jobs, it finds schedules
that no order of one job at a time or of shares leads to. Until it first leaves out a state it proves as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.solver.bounds.states.layers import StateLayers
from weft.solver.bounds.states.native import NativeLayers, fits
from weft.solver.bounds.states.system import System
from weft.solver.control.clock import checkpoint


@dataclass(frozen=True)
class LeastMakespan:
    """``bound``: no schedule of the system is shorter, in ticks. ``sequence``: the blocks of one that has this
    makespan, in order of start, by their numbers in the instance; ``None`` if all were ruled out or left open.
    ``states`` and ``layers``: the numbers explored."""

    bound: int
    sequence: tuple[int, ...] | None
    states: int
    layers: int


def search(system: System, upper: int, *, most: int, widest: int, beam: bool = False) -> LeastMakespan:
    """The least makespan below ``upper``, in ticks; ``bound`` is ``upper`` if it is proven that there is none.

    At most ``most`` states are explored, and ``widest`` in one layer. A ``beam`` has so many states that it gets to the
    end: half of what is left for each layer, as the next one is about twice as wide before it is narrowed.
    """
    reach = np.zeros(len(system.blocks), dtype=np.int64)
    np.maximum.at(reach, system.waits.source, system.waits.lag)
    mixed = np.random.default_rng(0).integers(1, 2**62, len(system.blocks), dtype=np.int64)
    layers: StateLayers | NativeLayers = (NativeLayers if fits(system) else StateLayers)(system, reach, mixed)
    states, bound, upper, whole = 0, 0, upper - system.cut, True
    for depth in range(system.operations + 1):
        checkpoint()
        kept, least = layers.next(upper)
        if not kept:
            return LeastMakespan((upper if whole else bound) + system.cut, None, states, depth)
        states += kept
        bound = max(bound, least) if whole else bound
        if beam and depth < system.operations:
            width = max(1, (most - states) // (2 * (system.operations - depth)))
            whole &= kept <= width
            layers.narrow(width)
        elif depth < system.operations and (states > most or kept > widest):
            return LeastMakespan(bound + system.cut, None, states, depth + 1)
    sequence = (*system.first, *(system.blocks[i] for i in layers.sequence()), *system.last)
    return LeastMakespan(bound + system.cut, sequence, states, system.operations + 1)

"""Chimera: two replicas of the model in opposite directions, each filling the other's bubbles.

Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines", SC 2021,
section 3.1, with direct concatenation (section 3.5) where more micro-batches run than devices. The unit is p
micro-batches, p / 2 either way: with backwards as long as forwards the two directions merge without a conflict.
On p uniform stages (p even, B >= F) each device is idle for (p - 2)B in one unit and (p - 2)(B - F) more with every
further one: nothing more with B = F. Device r stores the activations of min(p / 2, p - r) + min(p / 2, r + 1) stages,
between p / 2 + 1 at the ends and p in the middle.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.bidirectional import both_ways, in_slots
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. Two training pipelines, one down the devices and one up; a micro-batch is a pair.

    A split backward runs its parts back to back.
    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    down, up = both_ways(problem, split=False)
    return in_slots(down, up, len(problem.devices), micro_batches)

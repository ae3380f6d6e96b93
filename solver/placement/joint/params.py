"""Every number that a search for a step was given and not derived: its unit, its meaning, what set it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PARAMS", "JointParams"]


@dataclass(frozen=True)
class JointParams:
    """Shares are of the time that is left.

    ``front_share``: of all fronts together. ``first_reach``: a size's graph of least load is a cut up to so many times
    the load that the best step so far rules out. ``shortest_share``: of graphs that allow short steps, whose bisection
    stops at ``short_gap``, a share of the step. ``any_share``: of the bound over all graphs. ``descents``: of the best
    cuts, how many get better neighbours before the sizes are searched best first; ``choice_share``: of both.
    ``choice_steps``: sets of sizes that the latter looks at before it asks for the best again; ``most_steps``: in all.
    ``finalists``: choices whose orders are searched at once. ``first_slice``: seconds of the first search of orders,
    each later one is twice as long.

    Set on a multimodal transformer and DLRM on 4 and 8 modelled V100s.
    """

    front_share: float = 0.3
    first_reach: float = 1.25
    shortest_share: float = 0.15
    short_gap: float = 0.02
    any_share: float = 0.15
    descents: int = 4
    choice_share: float = 0.4
    choice_steps: int = 200
    most_steps: int = 4000
    finalists: int = 8
    first_slice: float = 1.0


PARAMS = JointParams()

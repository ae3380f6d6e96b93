"""Every number of a placement search that is set, not derived: its unit, its meaning, its origin.

All of them decide how long a search takes and where it stops looking, none what is true: bounds and proofs hold for any
values. What belongs to the arithmetic of an encoding (ticks, units of memory) stands with that encoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class PlacementParams:
    """Shares are of the time that is left (deterministic time where that is limited). ``usual_share``: of a technique
    that ``first_shares`` or ``way_shares`` does not name.

    Searches for a chain of stages (set on the graphs of ``experiments/placement/placement.py``):

    ``whole_variables``: threshold variables up to which the encoding is tried on the graph itself; a good cutoff leaves
      few. ``coarse_groups``: what larger graphs, and slicings of mid-sized ones, are coarsened to; ``middle_groups``: a
      level between, on which what was found on the coarse graph is refined first. ``slicing_entries``: entries of the
      tables of one slicing up to which they take seconds. ``slicing_orders``: random orders that are sliced.
    ``packing_limits``: the first limits of a packing, in parts of the bound; ``packing_halvings``: how often it then
      goes halfway between what fails and what succeeds.
    ``first_shares``: by technique, of the first look at the whole graph, or at a coarse one. ``round_shares``: of
      each technique in each round that follows.
    ``neighbourhood_part``: of the time of a refinement, for one neighbourhood. ``first_reach``, ``least_reach``: work
      between a group and a cut that it may cross, as shares of the largest load: at first, and where refining ends.
    ``coarse_parts``: a joined group takes at most this part of a stage's share of work or memory (1 / so many).
    ``tying_groups``: a net of more groups ties no two of them.

    Searches for a graph of stages (set on a multimodal transformer, DLRM and CANDLE-Uno on 4 to 32
    modelled V100s):

    ``way_shares``: by technique, of each of its questions. ``chain_share``, ``depth_share``: of the encoding's, for the
      best chain that fits, and for the least load with memory by depth.
    ``level_groups``: graphs of more groups have no levels made: their tables alone take seconds. ``max_cuts``: cuts of
      ideals that a graph may have; ``max_names``: names of ideals. ``bisection_gap``: where bisection of the largest
      load stops, as a share of it (the last run proves the rest); ``step_gap``: likewise of the step. ``heavy_times``:
      so many different times of groups, the longest, count in what a rest needs.
    ``chain_orders``: orders that are cut for a first chain; one, of graphs of more than ``few_orders_groups``.
    ``replicated_groups``: graphs of more have tables that do not fit a machine. ``pieces``: of how many groups paths
      are made where whole ones are too many, most first; ``pieces_cuts``: cuts that are worth their time then.

    Memory plans (set on profiles of GPT-1.3B and T5-770M and on modelled BERT, GPT-2, T5 and AmoebaNet):

    ``buffer_levels``: sizes of buffers that the quick bound tells apart. ``stage_effort``: deterministic seconds of
      CP-SAT for one question about one stage. ``first_step``: of the limit above the lower bound, as a share of it;
      doubled until a plan exists.

    Searches for a step, of graphs, sizes and order together (set on a multimodal transformer and DLRM on 4 and 8
    modelled V100s):

    ``front_share``: of all fronts together. ``first_reach_of_load``: a size's graph of least load is a cut up to so
      many times the load that the best step so far rules out. ``shortest_share``: of graphs that allow short steps,
      whose bisection stops at ``short_gap``, a share of the step. ``any_share``: of the bound over all graphs.
      ``descents``: of the best cuts, how many get better neighbours before the sizes are searched best first;
      ``choice_share``: of both. ``choice_steps``: sets of sizes that the latter looks at before it asks for the best
      again; ``most_steps``: in all. ``finalists``: choices whose orders are searched at once. ``first_slice``: seconds
      of the first search of orders, each later one is twice as long.
    """

    usual_share: float = 0.3

    whole_variables: int = 20_000
    coarse_groups: int = 300
    middle_groups: int = 2000
    slicing_entries: int = 10**9
    slicing_orders: int = 20
    packing_limits: tuple[float, ...] = (1.02, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4, math.inf)
    packing_halvings: int = 6
    first_shares: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"threshold search": 0.1}))
    round_shares: tuple[float, ...] = (0.3, 0.7, 1.0)
    neighbourhood_part: float = 1 / 8
    first_reach: float = 0.05
    least_reach: float = 0.001
    coarse_parts: int = 20
    tying_groups: int = 16

    way_shares: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"rows": 0.4, "encoding": 0.4}))
    chain_share: float = 0.3
    depth_share: float = 0.6
    level_groups: int = 500
    max_cuts: int = 2_000_000
    max_names: int = 10**9
    bisection_gap: float = 2e-3
    step_gap: float = 5e-3
    heavy_times: int = 4
    chain_orders: int = 4
    few_orders_groups: int = 200
    replicated_groups: int = 2000
    pieces: tuple[int, ...] = (6, 4, 3, 2, 1)
    pieces_cuts: int = 300_000

    buffer_levels: int = 12
    stage_effort: float = 2.0
    first_step: float = 0.01

    front_share: float = 0.3
    first_reach_of_load: float = 1.25
    shortest_share: float = 0.15
    short_gap: float = 0.02
    any_share: float = 0.15
    descents: int = 4
    choice_share: float = 0.4
    choice_steps: int = 200
    most_steps: int = 4000
    finalists: int = 8
    first_slice: float = 1.0


PARAMS = PlacementParams()

"""Which smaller graph has the same answer? Groups come in, fewer or more ordered groups go out.

``fold`` (always exact), ``cutoff`` (exact among placements below a cutoff) and ``interchangeable`` (exact up to names)
keep an optimum, and tests hold each against all placements of small problems; ``coarsen`` may lose every optimum, so a
bound of its result says nothing about the graph. The first exact reduction of all is
:func:`weft.solver.placement.groups.groups_of`.
"""

from weft.solver.placement.reductions.coarsen import coarsen
from weft.solver.placement.reductions.cutoff import keep_dear_nets_whole, without_slow_kinds
from weft.solver.placement.reductions.fold import fold
from weft.solver.placement.reductions.interchangeable import order_branches, order_twins

__all__ = ["coarsen", "fold", "keep_dear_nets_whole", "order_branches", "order_twins", "without_slow_kinds"]

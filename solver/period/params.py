"""Every constant of the period search, with its unit, its meaning and its origin.

*Seconds* are CP-SAT's deterministic seconds (machine-independent, about seconds of a core) unless said otherwise.
"By scale" means: chosen on the runs of ``experiments/period/scale.py`` (periods, bounds and CPU seconds of generated
chains, Vs, loops and Tessel's shapes, 4 to 64 devices); the single trials are not on record. "By argument" gives the
reason instead. A change is compared with the golden runs (``python -m tests.golden``) and that experiment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """The constants, by the part of the search that they belong to."""

    # -- the search as a whole --------------------------------------------------------------------------------------

    #: Share: a period this close to its bound is proven. By argument: finer than any measured duration.
    proof_tolerance: float = 1e-6
    #: Blocks from which on local search of rings and structure come first, and whole models last. By scale.
    many_blocks: int = 128
    #: Blocks of a small model; a larger one gets proportionally more time. By scale.
    few_blocks: int = 96
    #: Seconds of the first try at a period of a small model. By scale: most periods are decided by then.
    first_try: float = 0.25
    #: From pass to pass, tries take so many times longer and periods are so many times closer. By argument: all earlier
    #: passes together take a third of the last one.
    longer: int = 4
    #: Share of a period: the least distance of open periods in the first pass. By scale.
    first_spacing: float = 1 / 64
    #: One part in so many of the period: a narrower gap is not halved, the tick below the best is tried. By scale: by
    #: then the best is the optimum more often than not.
    narrow_gap: int = 500
    #: Ticks: no ticks so fine that a path through all blocks is longer. By argument: numbers have 63 bits, and sums
    #: of a few paths must fit.
    most_fine: int = 2**60
    #: Deterministic seconds for an order of one micro-batch, where no heuristic finds one that fits. By argument:
    #: without one there is no period at all.
    alone: float = 5.0

    # -- shares of time: of a try in the opening (see strategy.py), of what is left ---------------------------------

    #: Share of a try for a period of the V shape in the opening. By scale: its programme shows early whether it helps.
    v_shape_opening: float = 1 / 8
    #: Share of the time left that one run over rings may take. By argument: bounds need the rest.
    improvers: float = 1 / 2
    #: Seconds a block for one run of local search over rings, and rounds without success that end it. By scale.
    ring_block: float = 0.002
    ring_idle: int = 6

    # -- climbing: which periods a refuter tries -----------------------------------------------------------------

    #: Share of the period: the first step above the refuted end. By scale.
    rise: float = 1 / 512
    #: Share of the period: the smallest step of the V shape. By scale.
    v_shape_closest: float = 1 / 4096
    #: The factor by which the V shape's step grows. By scale.
    v_shape_growth: int = 4

    # -- refuters: V shape ------------------------------------------------------------------------------------------

    #: Cells of a period at first, and at most. By scale: patterns grow with their cube.
    v_shape_first_cells: int = 32
    v_shape_most_cells: int = 240
    #: Share: the length of cells in the next round. By argument: patterns triple.
    v_shape_shorter: float = 0.7
    #: How many times longer than a model a period may take. By scale: periods open now are refuted by finer cells.
    v_shape_patience: int = 8
    #: Patterns that count as a second. By measurement on one core.
    v_shape_second: float = 250e6
    #: Patterns of one device at most. By argument: a byte or two each, and as much again for each of two periods.
    v_shape_most_states: int = 2**28

    # -- the model of one period ------------------------------------------------------------------------------------

    #: The largest sum of amount x time in CP-SAT. By argument: 63 bits with room for its own arithmetic.
    model_most_sum: int = 2**58

    # -- improvers: list schedule -----------------------------------------------------------------------------------

    #: The factor by which the period grows if blocks do not fit. By argument: 70 periods up to the double.
    list_growth: float = 1.01
    #: How often blocks are moved to and fro at one period. By scale.
    list_rounds: int = 3


#: The constants in use.
PARAMETERS = Parameters()

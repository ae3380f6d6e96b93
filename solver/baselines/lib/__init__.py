"""The common parts of published schedules.

The type :class:`~weft.solver.baselines.lib.base.Baseline`; lists by priority rule and from building blocks;
micro-batches one after another; forwards and backwards by turns, in groups; chunks of a sequence; two directions at
once; the best of several variants; exact amounts of memory; and more micro-batches for orders that repeat.
"""

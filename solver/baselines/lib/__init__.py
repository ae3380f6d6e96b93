"""What published schedules share.

What a :class:`~weft.solver.baselines.lib.base.Baseline` is; lists by priority rule and from building blocks;
micro-batches one after another; forwards and backwards by turns, in groups; chunks of a sequence; two directions at
once; the best of several variants; exact amounts of memory; and more micro-batches for orders that repeat.
"""

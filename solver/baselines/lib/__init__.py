"""What published schedules share.

What a :class:`~weft.solver.baselines.lib.base.Baseline` is; lists by priority rule and from building blocks;
micro-batches one after another; two directions at once; exact amounts of memory; and more micro-batches for orders
that repeat.
"""

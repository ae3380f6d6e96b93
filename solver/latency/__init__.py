"""The least latency of a micro-batch under a floor of throughput.

The input is a problem in ticks, the longest period allowed and a schedule that keeps it; the output is one of least
latency with a proven bound (:mod:`~weft.solver.latency.search`). The period is a variable of the model
(:mod:`~weft.solver.latency.free_period_model`); for the order found, times and period are exact fractions.
"""

"""The least latency of a micro-batch under a floor of throughput.

In come a problem in ticks, the longest period allowed and a schedule that keeps it; out goes one of least latency with
a proven bound (:mod:`~weft.solver.latency.search`). The period is a variable of the model
(:mod:`~weft.solver.latency.free_period_model`); for the order that is found, times and period are exact fractions.
"""

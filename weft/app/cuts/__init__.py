"""Which cuts of the layers are searched, in addition to the listed placements?

In: the spaces of all cuts, the best makespan so far, a budget. Out: cuts with initial schedules, and a bound on all
cuts not searched.
"""

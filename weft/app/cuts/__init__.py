"""Which cuts of the layers are searched, beside the placements that are listed?

In: the spaces of all cuts, the best makespan so far, a budget. Out: cuts with schedules to start from, and a bound on
all that are not searched.
"""

"""Which contiguous cuts of the layers may have the best schedule?

In: a spec's layers and a layout (a shape with its number of stages a GPU). Out: the cuts not ruled out by a makespan,
each with a lower bound, all in arrays; the makespan of a known order of the blocks on each of them; and the block
problem of any one.
"""

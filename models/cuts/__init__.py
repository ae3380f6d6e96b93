"""Which of all contiguous cuts of the layers may hold the best schedule?

In: a spec's layers and a layout (a shape with its number of stages a GPU). Out: the cuts that a makespan does not rule
out, each with a lower bound, all in arrays; what a known order of the blocks comes to on each of them; and the block
problem of any one.
"""

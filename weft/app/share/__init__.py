"""What do several jobs gain when they share GPUs?

In: specs and block problems, a ratio of their steps, the permitted slowdown of each. Out: a schedule of all of them in
one period, its gain over running in turn, and the slowdown of each job against running alone, with bounds.
"""

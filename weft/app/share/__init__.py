"""What do several jobs gain when they share GPUs?

In: specs and block problems, a ratio of their steps, how much slower each may get. Out: a schedule of all of them in
one period, what that is worth against running in turn, and how much slower each job is than alone, with bounds.
"""

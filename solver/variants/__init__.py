"""What do many problems of one graph have in common, and what is each one's makespan at least and under one order?

In: the same blocks with other durations, transfers and memory, side by side in arrays. Out: numbers, one a problem.
"""

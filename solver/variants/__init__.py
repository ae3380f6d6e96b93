"""Makespans of many problems of one graph: lower bounds, and the times of one order.

In: the same blocks with other durations, transfers and memory, side by side in arrays. Out: numbers, one a problem.
"""

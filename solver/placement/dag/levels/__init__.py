"""Graphs of stages by dynamic programming over levels, exact for a graph of a few paths.

The input are groups and a limit on the load, the output the shallowest stages within it, or a proof that there are
none. ``ideals`` are the graph, ``level_program`` the program for one limit, ``level_search`` the least limit,
``least_step`` a bound on the step with the ``ways`` that fill a pipeline, ``shorten_paths`` a heuristic for wide
graphs.
"""

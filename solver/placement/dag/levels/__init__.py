"""Graphs of stages by dynamic programming over levels, exact where a graph is a few paths.

Groups and a limit on the load come in; the shallowest stages within it, or a proof that there are none, go out.
``ideals`` are the graph, ``level_program`` the program for one limit, ``level_search`` the least limit,
``least_step`` a bound on the step with the ``ways`` that fill a pipeline, ``shorten_paths`` a heuristic for wide
graphs.
"""

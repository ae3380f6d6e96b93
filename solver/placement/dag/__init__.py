"""Which graph of stages (GraphPipe) has the least largest load, and which of those is the shallowest? The input is a
placement problem, the output a judged graph of stages with bounds on both.

``place_graph`` is the loop, ``constructions`` one file per technique, ``graph_bracket`` the state of the search.
``levels`` is the dynamic program that proves graphs of few paths, ``depth_encoding`` memory by depth in the threshold
encoding. ``stage_dag`` is such a graph with its costs, ``in_flight`` the rule for the memory of a stage,
``stage_blocks`` the block problem and the schedule of such a graph.
"""

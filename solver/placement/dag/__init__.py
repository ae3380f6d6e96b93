"""Which graph of stages (GraphPipe) has the least largest load, and which of those is the shallowest? A placement
problem comes in, a judged graph of stages with bounds on both goes out.

``place_graph`` is the loop, ``constructions`` one file a way, ``graph_bracket`` what the search knows. ``levels``
is the dynamic program that proves graphs of few paths, ``depth_encoding`` memory by depth in the threshold encoding.
``stage_dag`` is such a graph with its costs, ``in_flight`` the rule of what a stage holds, ``stage_blocks`` the block
problem and the schedule of such a graph.
"""

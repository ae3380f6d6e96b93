"""Cutting an operator graph into stages on devices, to proof.

``problem`` says what is placed and what a placement costs, ``judge`` checks a placement from that alone, ``search``
finds one. ``groups``, ``reduce`` and ``coarsen`` make graphs smaller (the first two provably without loss), ``slicing``
is the start, ``threshold`` the encoding that objectives build on, ``exact`` and ``latency`` two of them, ``refine``
works near the cuts of graphs too large for proof.

Pipelines that are graphs of stages (GraphPipe) have memory by depth: ``in_flight`` is the rule, ``stage_dag`` such a
graph with its costs, ``graph_search`` finds one (``levels`` by the dynamic program ``level_program`` over ``ideals``,
``depth`` in the threshold encoding), ``steps`` bounds how short a step of any could be, and ``stage_blocks`` makes it a
block problem with a schedule. Stages may be replicated (``problem`` says at what cost): ``levels`` decides it for
graphs and rows, ``replicated_slicing`` for one order.
"""

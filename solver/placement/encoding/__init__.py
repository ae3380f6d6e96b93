"""The threshold encoding of stages in CP-SAT: which group is in which stage, as Booleans "in stage s or before it".

The input are groups, windows and a cutoff; the output is a model with loads and memory, to which an objective is added.
``threshold`` is the encoding, ``threshold_memory`` its memory, ``least_load`` the first objective; the chain's latency
(:mod:`weft.solver.placement.chain.place`) and a graph's depth (:mod:`weft.solver.placement.dag.depth_encoding`)
are others. Importing from here imports nothing: the files load ortools.
"""

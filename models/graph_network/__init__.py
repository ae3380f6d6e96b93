"""The computation of a graph neural network's pass, and its blocks if the graph does not fit a GPU.

In: a graph (:mod:`~weft.models.graph_network.graph`, which cuts it into a grid of chunks; files in
:mod:`~weft.models.graph_network.files`) and layers by name with their widths (:mod:`~weft.models.graph_network.layers`,
with closed forms of FLOPs and bytes). Out: the steps of a pass with memory (:mod:`~weft.models.graph_network.steps`),
which are a block problem with lanes. The streaming is that of NGra (arXiv 1810.08403).
"""

"""How is a graph neural network run in chunks within a memory budget?

In: layers (:mod:`~weft.runtime.graph_network.layers`), a grid's arrays, a plan of a pass. Out: outputs and gradients,
equal to those of the whole graph at once. :mod:`~weft.runtime.graph_network.kernels` computes a chunk,
:mod:`~weft.runtime.graph_network.account` counts the device's memory and refuses allocations beyond the budget.
"""

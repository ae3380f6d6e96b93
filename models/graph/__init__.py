"""The computation of a model. Files in; operators with their tensors, parameters and work out.

:mod:`weft.models.graph.operators` is the graph, :mod:`weft.models.graph.operator_files` its file,
:mod:`weft.models.graph.layers_view` a coarser view of it, and :mod:`weft.models.graph.formats` reads two formats of
other tools as placement problems.
"""

from weft.models.graph.operators import Operator, OperatorError, OperatorGraph, Parameter, Split, Tensor, Work

__all__ = ["Operator", "OperatorError", "OperatorGraph", "Parameter", "Split", "Tensor", "Work"]

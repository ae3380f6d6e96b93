"""The computation of a PyTorch module. A module, or a ``.pt2`` file in; its operator graph out, and calls to measure.

:mod:`weft.models.capture.capture` makes the graph, the ``exported`` files read the output of torch.export,
:mod:`weft.models.capture.operator_costs` counts the work of one call, :mod:`weft.models.capture.calls` and
:mod:`weft.models.capture.trials` run and measure operators. Only this room loads torch.
"""

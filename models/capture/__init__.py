"""What does a PyTorch module compute? A module, or a ``.pt2`` file in; its operator graph out, and calls to measure.

:mod:`weft.models.capture.capture` makes the graph, the ``exported`` files read what torch.export wrote,
:mod:`weft.models.capture.operator_costs` counts the work of one call, :mod:`weft.models.capture.calls` and
:mod:`weft.models.capture.trials` are what is run to measure operators. This room alone loads torch.
"""

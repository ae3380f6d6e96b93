"""Where problems come from: the spec a user writes, measured and modelled costs, and the split of layers onto GPUs.

Stands on :mod:`solver` (the problem only); never loads torch or ortools.
"""

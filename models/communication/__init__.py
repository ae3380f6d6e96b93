"""Programs of computation and communication: what passes rewrite, and what becomes a problem with choices.

After CoCoNet (Jangda et al., "Breaking the Computation and Communication Abstraction Barrier in Distributed Machine
Learning Workloads", ASPLOS 2022): tensors have a layout over the ranks, collectives are stages like any others, and
passes that keep the values rewrite both together.
"""

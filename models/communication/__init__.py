"""Programs of computation and communication, which passes rewrite and which become problems with choices.

After CoCoNet (Jangda et al., "Breaking the Computation and Communication Abstraction Barrier in Distributed Machine
Learning Workloads", ASPLOS 2022): tensors have a layout over the ranks, collectives are ordinary stages, and
value-preserving passes rewrite both together.
"""

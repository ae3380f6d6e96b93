"""How do several trainings run in one set of processes, in the order that a plan has them share its ranks?

In: a plan with jobs, and for each job a function that gives its stages. Out: every job's losses, as they are where it
runs alone, and the time that all took together. A job that ends or fails leaves the others running. On CPUs, over gloo.
"""

"""How do several jobs share the ranks of a plan, in the plan's order?

In: a plan with jobs, and for each job a function that returns its stages. Out: every job's losses, the same as when it
runs alone, and the time that all took together. Each job has its own processes: one that ends, fails or is killed
leaves the others running. On CPUs, over gloo.
"""

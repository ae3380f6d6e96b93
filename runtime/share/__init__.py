"""How do several jobs run beside each other, in the order that a plan has them share its ranks?

In: a plan with jobs, and for each job a function that gives its stages. Out: every job's losses, as they are where it
runs alone, and the time that all took together. Each job has processes of its own: one that ends, fails or is killed
leaves the others running. On CPUs, over gloo.
"""

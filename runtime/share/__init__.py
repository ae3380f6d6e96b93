"""How do several jobs share the ranks of a plan, in the plan's order?

In: a plan with jobs, and for each job a function that returns its stages. Out: every job's losses, equal to those of a
run alone, and the time of all jobs. Each job has its own processes, so a job that ends, fails or is killed does not
affect the others. On CPUs, over gloo.
"""

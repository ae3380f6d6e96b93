"""How do several jobs run beside each other, in the order that a plan has them share its ranks?

In: a plan with jobs, and for each job a function that gives its stages. Out: every job's losses, as they are where it
runs alone, and the time that all took together. Jobs are threads of one set of processes, or have processes each of
their own. A job that ends or fails leaves the others running; so does one that is killed, with processes of its own.
On CPUs, over gloo.
"""

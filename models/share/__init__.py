"""Which one problem are several jobs on the same GPUs?

In: jobs, each a block problem of its own, read from a file or made from a spec. Out: one problem with all of them, in
which they share GPUs, network and memory; what it is where a job's communication never runs beside its computation; and
whether they fit together at all.
"""

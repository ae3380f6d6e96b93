"""Several jobs on the same GPUs as one problem.

In: jobs, each a separate block problem, read from a file or made from a spec. Out: one problem with all of them, in
which they share GPUs, network and memory; its version without overlap inside a job; and whether the jobs fit together.
"""

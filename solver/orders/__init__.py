"""Whole schedules as orders: when everything runs, whether memory holds it, and local search for better ones.

In come a problem in ticks, a number of micro-batches and per-device orders, or what each device repeats; out go better
ones, for the makespan, the span or the period.
:mod:`~weft.solver.orders.tables` are the arrays that both kernels read, ``kernel.cpp`` is the compiled kernel
(:mod:`~weft.solver.orders.native` calls it), :mod:`~weft.solver.orders.twin` the same in Python, on
:mod:`~weft.solver.orders.timed_rows`, and :mod:`~weft.solver.orders.local_search` runs either of them in rounds.
:mod:`~weft.solver.orders.lists` (``lists.cpp``) are the passes of list schedules, which :mod:`weft.solver.baselines`
have in Python. :mod:`~weft.solver.orders.climb` climbs over what is decided and the orders together.

*How it is built.* ``pip install`` compiles both files where there is a C++ compiler (setuptools, an optional
extension) and goes on without where there is none. The binary contains no Python and is called through ctypes: one
serves every Python of a platform, and neither Python's headers nor a binding library are needed. It takes 4.7 CPU
seconds to build, 111 KB on disk and 1 ms to load. Numba 0.68 was measured beside it: 208 MB installed, and 0.6 CPU
seconds for the import and the first call of a trivial function, 0.5 from its cache; with so much at every start of a
command it was left out. A module of one trivial function with nanobind 3.1 takes 7 CPU seconds to build and 200 KB, and
needs Python's headers.
"""

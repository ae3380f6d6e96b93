"""Whole schedules as orders: when everything runs, whether memory holds it, and local search for better ones.

In come a problem in ticks, a number of micro-batches and per-device orders; out go better orders.
:mod:`~weft.solver.orders.tables` are the arrays that both kernels read, ``kernel.cpp`` is the compiled kernel
(:mod:`~weft.solver.orders.native` calls it), :mod:`~weft.solver.orders.twin` the same in Python, and
:mod:`~weft.solver.orders.local_search` runs either of them in rounds.

*How it is built.* ``pip install`` compiles ``kernel.cpp`` where there is a C++ compiler (setuptools, an optional
extension) and goes on without where there is none. The binary contains no Python and is called through ctypes: one
serves every Python of a platform, and neither Python's headers nor a binding library are needed. Compiled it takes
about 5 s to build, 70 KB and 3 ms to load. Numba was measured beside it: 190 MB installed, 1.3 s for the import and
the first call of a trivial function, from its cache 0.7 s; with so much at every start of a command it was left out.
"""

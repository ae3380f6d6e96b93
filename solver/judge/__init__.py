"""The judge: is a schedule a feasible schedule of its problem, and is what it says of itself true?

In comes a :class:`~weft.solver.schedule.Schedule`, or one beside the file object that it was read from. Out go
sentences on what is wrong (:mod:`~weft.solver.judge.validate`), and a verdict on its bounds, period, repetend and
derived fields (:mod:`~weft.solver.judge.statements`, :mod:`~weft.solver.judge.claims`). Everything is derived anew from
the bare operations. Nothing here imports what it judges: only the problem, the schedule, and the clock that ends long
loops.
"""

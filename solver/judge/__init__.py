"""The judge: is a schedule a feasible schedule of its problem, and are its statements about itself true?

The input is a :class:`~weft.solver.schedule.Schedule`, alone or with the file object that it was read from. The output
is a sentence for each fault (:mod:`~weft.solver.judge.validate`) and a verdict on the bounds, period, repetend and
derived fields (:mod:`~weft.solver.judge.statements`, :mod:`~weft.solver.judge.claims`). Everything is derived anew from
the bare operations. Nothing here imports the code that it judges: only the problem, the schedule, and the clock that
ends long loops.
"""

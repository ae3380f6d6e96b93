"""Files: problems, schedules and what stands beside them, as JSON; read strictly, written whole or not at all.

In comes a path or a JSON value, out goes a checked object, and the other way round: problems
(:mod:`~weft.solver.io.problem_files`) and schedules (:mod:`~weft.solver.io.schedule_files`). What is wrong with a file
is said with file, entry and field (:class:`~weft.solver.io.entries.FormatError`). Whether what a schedule says is true
is for the judge.
"""

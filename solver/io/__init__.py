"""Files: problems, schedules and what stands beside them, as JSON; read strictly, written whole or not at all.

In comes a path or a JSON value, out goes a checked object, and the other way round
(:mod:`~weft.solver.io.files`). What is wrong with a file is said with file, entry and field
(:class:`~weft.solver.io.entries.FormatError`). Whether what a schedule says is true is for the judge.
"""

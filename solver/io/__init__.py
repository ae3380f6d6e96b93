"""Files: problems, schedules and related entries, as JSON; read strictly, written whole or not at all.

From a path or a JSON value to a checked object, and back: problems (:mod:`~weft.solver.io.problem_files`) and schedules
(:mod:`~weft.solver.io.schedule_files`). An error in a file is reported with file, entry and field
(:class:`~weft.solver.io.entries.FormatError`). Whether the statements of a schedule are true is for the judge.
"""

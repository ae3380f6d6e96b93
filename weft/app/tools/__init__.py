"""Which tools that train can run an answer, what does it cost there, and what is somebody's plan for one worth?

In: schedules of a search's placements, the name of a tool, a tool's settings. Out: a step under each tool's own order
(:mod:`~weft.app.tools.elsewhere`); the best that one tool can run (:mod:`~weft.app.tools.solve_for`); a plan as a
placement (:mod:`~weft.app.tools.given`). What each tool can run is in :mod:`weft.runtime.export.tools`.
"""

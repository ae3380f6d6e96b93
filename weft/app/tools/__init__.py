"""Which training tools can run an answer, at what cost, and how good is a user's plan for a tool?

In: schedules of a search's placements, the name of a tool, a tool's settings. Out: a step under each tool's own order
(:mod:`~weft.app.tools.elsewhere`); the best schedule that one tool can run (:mod:`~weft.app.tools.solve_for`); a plan
as a placement (:mod:`~weft.app.tools.given`). :mod:`weft.runtime.export.tools` defines the capabilities of each tool.
"""

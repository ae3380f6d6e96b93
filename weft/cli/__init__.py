"""The command line: what a user types, sees and may interrupt.

In come arguments and signals; out come printed results, files and an exit status. :mod:`~weft.cli.main` parses and runs
one of :mod:`~weft.cli.commands` (a file a command), each a thin face of the function of :mod:`weft.api` with the same
name; what they share is in :mod:`~weft.cli.lib`.
"""

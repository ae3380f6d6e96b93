"""Code shared by the commands: signatures as arguments, output, progress, signals and errors.

:mod:`~weft.cli.lib.command` defines a command and reads signatures (their annotations are in
:mod:`weft.app.lib.arguments`), :mod:`~weft.cli.lib.output` and :mod:`~weft.cli.lib.output` show and save results.
While a search runs, :mod:`~weft.cli.lib.progress` prints its progress and :mod:`~weft.cli.lib.signals` end it;
:mod:`~weft.cli.lib.faults` turns unexpected errors into one sentence.
"""

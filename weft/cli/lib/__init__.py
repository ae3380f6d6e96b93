"""What the commands of the command line share: arguments, output, progress, signals and faults.

:mod:`~weft.cli.lib.command` says what a command is, :mod:`~weft.cli.lib.arguments` what several of them accept,
:mod:`~weft.cli.lib.output` and :mod:`~weft.cli.lib.summary` how results are shown and kept. While a search runs,
:mod:`~weft.cli.lib.progress` prints where it stands and :mod:`~weft.cli.lib.signals` end it;
:mod:`~weft.cli.lib.faults` makes one sentence of what nobody has foreseen.
"""

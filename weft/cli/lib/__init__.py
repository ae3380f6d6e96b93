"""What the commands of the command line share: signatures as arguments, output, progress, signals and faults.

:mod:`~weft.cli.lib.command` says what a command is and reads signatures (what stands in them is in
:mod:`weft.app.lib.arguments`), :mod:`~weft.cli.lib.output` and :mod:`~weft.cli.lib.summary` how results are shown and
kept. While a search runs,
:mod:`~weft.cli.lib.progress` prints where it stands and :mod:`~weft.cli.lib.signals` end it;
:mod:`~weft.cli.lib.faults` makes one sentence of what nobody has foreseen.
"""
